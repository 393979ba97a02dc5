"""Declared operations: the same crop on both backends, and values as close as the tolerance policy says."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_dali.decode import (
    CenterCrop,
    DaliDecoder,
    Decoded,
    HorizontalFlip,
    Normalize,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    SampleDecoder,
)
from energon_dali.decode.geometry import handle_geometry
from tests.decode.sample_images import encode, photograph, sample_images
from tests.decode.tolerance import (
    CPU_BICUBIC,
    CPU_BILINEAR,
    EXACT,
    NORMALIZED_ULPS,
    Tolerance,
    explain_difference,
)
from tests.part import sampled

IMAGENET = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CASES: dict[str, tuple[list[Any], Tolerance]] = {
    "center_crop": ([CenterCrop(64)], EXACT),
    "random_crop_flip": ([RandomCrop((40, 70)), HorizontalFlip()], EXACT),
    "flip": ([HorizontalFlip(1.0)], EXACT),
    "nearest": ([RandomResizedCrop(64, interpolation="nearest")], EXACT),
    "random_resized_crop": ([RandomResizedCrop(64), HorizontalFlip()], CPU_BILINEAR),
    "bicubic": ([RandomResizedCrop(64, interpolation="bicubic")], CPU_BICUBIC),
    "no_antialias": ([Resize((50, 60), antialias=False)], CPU_BILINEAR),
    "shorter_side": ([Resize(60)], CPU_BILINEAR),
    "enlarge": ([Resize((200, 300))], CPU_BILINEAR),
    "resize_crop": ([Resize(80), CenterCrop(64)], CPU_BILINEAR),
    "resize_random_resized_crop": ([Resize(80), RandomResizedCrop(64)], CPU_BILINEAR),
    "crop_resize_crop": ([CenterCrop(100), Resize(80), RandomCrop(33), HorizontalFlip()], CPU_BILINEAR),
}


def decode_both(
    options: dict[str, Any],
) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], tuple[int, int, int, int]]]:
    """Returns (DALI's, PIL's, window) for photographs of several formats, sizes and seeds."""
    dali, pil = DaliDecoder(image_decode_device="cpu", **options), SampleDecoder(**options)
    files = [sample_images()[name] for name in ("jpeg-444", "jpeg-420", "png-rgb", "tiff-raw", "jpeg-exif-6")]
    files += [encode(photograph(name, (301, 253)), "JPEG", quality=95) for name in ("china", "coffee", "astronaut")]
    handles = [dali.stage("jpg", data, seed=seed) for seed, data in enumerate(files)]
    outcomes = dali.decode_block(handles)
    assert all(isinstance(outcome, Decoded) and outcome.route == "dali-cpu" for outcome in outcomes)
    windows = [geometry.window if geometry else (0, 0, 0, 0) for geometry in map(handle_geometry, handles)]
    wanted = [np.asarray(pil.stage("jpg", data, seed=seed)) for seed, data in enumerate(files)]
    got = [np.asarray(outcome.value) for outcome in outcomes if isinstance(outcome, Decoded)]
    return list(zip(got, wanted, windows, strict=True))


@pytest.mark.parametrize("upright", [False, True], ids=["as_stored", "upright"])
@pytest.mark.parametrize("name", ["rgb8", "l8", "rgba8", "pil"])
@pytest.mark.parametrize("case", sampled(CASES, 2))
def test_operations_equal_pil(case: str, name: str, upright: bool) -> None:
    operations, tolerance = CASES[case]
    options = {"image_decode": name, "operations": operations, "apply_exif_orientation": upright}
    for got, wanted, box in decode_both(options):
        if case == "nearest":
            off_ties = np.ix_(
                *([place for place in range(64) if (2 * place + 1) * size % 128 != 0] for size in box[2:])
            )
            got, wanted = got[off_ties], wanted[off_ties]
        assert explain_difference(got, wanted, tolerance) is None


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [48, 64, 211])
def test_resampling_is_what_pil_computes_in_floats(interpolation: Any, size: int) -> None:
    """The strict reference: without PIL's rounding between the passes one level is left for either filter."""
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    for data in (sample_images()["jpeg-420"], encode(photograph("coffee", (301, 253)), "JPEG", quality=95)):
        decoder = DaliDecoder(
            image_decode="l8", image_decode_device="cpu", operations=[Resize((size, size + 5), interpolation)]
        )
        (outcome,) = decoder.decode_block([decoder.stage("jpg", data)])
        assert isinstance(outcome, Decoded)
        floats = Image.open(BytesIO(data)).convert("L").convert("F").resize((size + 5, size), filters[interpolation])
        wanted = np.clip(np.floor(np.asarray(floats) + 0.5), 0, 255).astype(np.uint8)
        assert explain_difference(outcome.value, wanted, CPU_BILINEAR) is None


@pytest.mark.parametrize("name", ["rgb", "torchrgb", "l", "torchrgba"])
def test_normalize_is_within_a_few_ulps(name: str) -> None:
    channels = {"l": 1, "torchrgba": 4}.get(name, 3)
    normalize = IMAGENET if channels == 3 else Normalize((0.4,) * channels, (0.3,) * channels)
    for got, wanted, _ in decode_both(
        {"image_decode": name, "operations": [CenterCrop(64), HorizontalFlip(), normalize]}
    ):
        assert got.dtype == wanted.dtype == np.float32
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max() <= NORMALIZED_ULPS * np.spacing(np.float32(1)) * np.abs(wanted).max()


def test_the_result_does_not_depend_on_the_block() -> None:
    decoder = DaliDecoder(
        image_decode="torchrgb", image_decode_device="cpu", operations=[RandomResizedCrop(48), IMAGENET]
    )
    names = ["jpeg-444", "png-rgb", "jpeg-420", "tiff-raw"] * 5
    block = [decoder.stage("jpg", sample_images()[name], seed=seed) for seed, name in enumerate(names)]
    together = [outcome.value for outcome in decoder.decode_block(block)]  # type: ignore[union-attr]
    for position in (0, 7, 19):
        (alone,) = decoder.decode_block([block[position]])
        assert isinstance(alone, Decoded)
        assert np.array_equal(alone.value, together[position])


def test_tolerance_says_what_differs() -> None:
    black = np.zeros((20, 20), np.uint8)
    dot = black.copy()
    dot[10, 10] = 2
    assert explain_difference(black, dot, CPU_BILINEAR) is not None
    assert explain_difference(black, dot, EXACT) is not None
    assert explain_difference(black, black, EXACT) is None
    assert "shape" in str(explain_difference(black, black[1:], EXACT))
