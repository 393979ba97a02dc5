"""The graph's arithmetic equals PIL's and numpy's for every value there is."""

from __future__ import annotations

import numpy as np
from PIL import Image

from energon_dali.decode import (
    CenterCrop,
    DaliDecoder,
    Decoded,
    HorizontalFlip,
    ImageSpec,
    Normalize,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from energon_dali.decode.dali.images.graph import ImageGraph
from tests.decode.sample_images import encode, sample_images


def test_gray_equals_pil_for_all_colours() -> None:
    """All 2**24 colours in one lossless image."""
    colours = np.arange(1 << 24, dtype=np.uint32)
    pixels = np.stack([colours >> 16, (colours >> 8) & 255, colours & 255], -1).astype(np.uint8).reshape(4096, 4096, 3)
    image = Image.fromarray(pixels)
    decoder = DaliDecoder(image_decode="l8", image_decode_device="cpu")
    (outcome,) = decoder.decode_block([decoder.stage("bmp", encode(image, "BMP"))])
    assert isinstance(outcome, Decoded)
    assert outcome.route == "dali-cpu"
    np.testing.assert_array_equal(outcome.value, np.asarray(image.convert("L")))


def test_floats_equal_numpy_for_all_bytes() -> None:
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    for dtype in ("float32", "float16"):
        decoder = DaliDecoder(image_decode="rgb", image_dtype=dtype, image_decode_device="cpu")  # type: ignore[arg-type]
        (outcome,) = decoder.decode_block([decoder.stage("png", encode(Image.fromarray(pixels), "PNG"))])
        assert isinstance(outcome, Decoded)
        np.testing.assert_array_equal(outcome.value, (pixels.astype(np.float32) / 255).astype(dtype))


def test_grayscale_files_do_no_harm() -> None:
    """output_type=ANY_DATA ends the process (SIGSEGV) for a grayscale JPEG; RGB is asked for instead."""
    for name in ("rgb8", "l8", "rgba8"):
        decoder = DaliDecoder(image_decode=name, image_decode_device="cpu")  # type: ignore[arg-type]
        for outcome in decoder.decode_block([decoder.stage("jpg", sample_images()["jpeg-gray"])] * 40):
            assert isinstance(outcome, Decoded)
            assert outcome.route == "dali-cpu"


def test_graphs_are_equal_where_pixels_are() -> None:
    assert ImageGraph.from_spec(ImageSpec("torchrgb")) == ImageGraph.from_spec(ImageSpec("torch", max_pixels=9))
    assert ImageGraph.from_spec(ImageSpec("torchrgb", image_dtype="bfloat16")) == ImageGraph.from_spec(
        ImageSpec("torchrgb")
    )
    assert ImageGraph.from_spec(ImageSpec("torchrgb")) != ImageGraph.from_spec(ImageSpec("rgb"))
    crops = [ImageGraph.from_spec(ImageSpec("rgb8", (operation(64),))) for operation in (CenterCrop, RandomCrop)]
    assert crops[0] == crops[1]


def test_inputs_are_only_those_that_are_needed() -> None:
    def inputs(*operations: object) -> tuple[str, ...]:
        return ImageGraph.from_spec(ImageSpec("torchrgb", operations)).inputs  # type: ignore[arg-type]

    assert inputs() == ()
    assert inputs(HorizontalFlip()) == ("mirror",)
    assert inputs(Resize(32)) == ("size",)
    assert inputs(Resize((32, 40))) == ()
    assert inputs(RandomResizedCrop(32), HorizontalFlip(), Normalize((0.5,), (0.5,))) == ("start", "shape", "mirror")
    assert inputs(Resize(40), CenterCrop(32)) == ("start", "shape", "roi_start", "roi_end")
