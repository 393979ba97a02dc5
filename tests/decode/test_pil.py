"""PIL's images equal webdataset's bit for bit; operations, orientation, dtypes and layouts work as documented."""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from webdataset.autodecode import imagehandler

from energon_dali import FrontEnd
from energon_dali.decode import (
    CenterCrop,
    HorizontalFlip,
    ImageSpec,
    MediaHandle,
    Normalize,
    RandomResizedCrop,
    Resize,
    screen_image,
)
from energon_dali.decode.geometry import draw_geometry
from energon_dali.decode.images import decode_image, open_image
from energon_dali.decode.spec import IMAGE_DECODE_NAMES
from energon_dali.errors import DecodeError
from tests.decode.sample_images import broken_images, encode, exif, photograph, sample_images, with_alpha

FLIP = HorizontalFlip(1.0)


def handle(data: bytes, spec: ImageSpec, seed: int = 0) -> MediaHandle:
    header = screen_image(data)
    return MediaHandle(
        "jpg", data, header.format, header.width, header.height, spec, orientation=header.orientation, seed=seed
    )


def decode(data: bytes, name: str = "torchrgb", *operations: Any, seed: int = 0, **options: Any) -> Any:
    return decode_image(handle(data, ImageSpec(name, operations, **options), seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", IMAGE_DECODE_NAMES)
def test_all_formats_equal_webdataset(name: str) -> None:
    handler = imagehandler(name)
    for picture, data in sample_images().items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Palette images with Transparency")
            expected = handler(".jpg", data)
        value = decode(data, name)
        assert type(value) is type(expected), picture
        if isinstance(value, Image.Image):
            assert (value.mode, value.size, value.tobytes()) == (expected.mode, expected.size, expected.tobytes()), (
                picture
            )
        else:
            assert (value.dtype, value.shape) == (expected.dtype, expected.shape), picture
            assert np.array_equal(np.asarray(value), np.asarray(expected)), picture
            assert np.asarray(value).flags.writeable, picture
            assert np.asarray(value).flags.c_contiguous, picture


# libjpeg fills what is missing after an early end with gray; the screening refuses "jpeg-large".
@pytest.mark.parametrize("name", sorted(broken_images().keys() - {"jpeg-large"}))
@pytest.mark.parametrize("known", ["", "jpeg", "png"])
def test_broken_files_are_decode_errors(name: str, known: str) -> None:
    with pytest.raises(DecodeError):
        decode_image(MediaHandle("jpg", broken_images()[name], known, 9, 9, ImageSpec("pil")))


def test_a_view_decodes_without_a_copy_of_its_own() -> None:
    data = sample_images()["jpeg-420"]
    block = bytearray(b"before") + data + b"behind"
    view = memoryview(block)[6 : 6 + len(data)]
    assert torch.equal(decode(view), decode(data))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", range(1, 9))
def test_exif_orientation(number: int) -> None:
    data = sample_images()[f"jpeg-exif-{number}"]
    with Image.open(BytesIO(data)) as image:
        upright, stored = np.asarray(ImageOps.exif_transpose(image)), np.asarray(image)
    assert np.array_equal(decode(data, "rgb8", apply_exif_orientation=True), upright)
    assert np.array_equal(decode(data, "rgb8"), stored)
    # Operations see the upright image.
    cropped = decode(data, "rgb8", CenterCrop((50, 100)), apply_exif_orientation=True)
    top, left = round((upright.shape[0] - 50) / 2), round((upright.shape[1] - 100) / 2)
    assert np.array_equal(cropped, upright[top : top + 50, left : left + 100])


@pytest.mark.parametrize("name", ["png-exif-6", "webp-exif-8", "tiff-exif-6", "avif"])
def test_exif_orientation_of_other_formats(name: str) -> None:
    data = sample_images()[name]
    with Image.open(BytesIO(data)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(decode(data, "rgb8", apply_exif_orientation=True), upright)


def test_a_front_end_turns_transparent_images_of_other_formats() -> None:
    """PIL drops EXIF when it puts transparent pixels on white."""
    data = encode(with_alpha(photograph("astronaut", (60, 40))), "AVIF", exif=exif(6))
    with Image.open(BytesIO(data)) as image:
        upright = encode(ImageOps.exif_transpose(image), "PNG")
    front_end = FrontEnd.from_processor({"image_processor_type": "PerceptionLMImageProcessor", "tile_size": 28})
    found, expected = (decode(each, front_end=front_end, apply_exif_orientation=True) for each in (data, upright))
    assert found.layout == expected.layout == front_end.layout(40, 60)
    assert torch.equal(found.values, expected.values)


def test_layouts_and_dtypes() -> None:
    data = sample_images()["jpeg-420"]
    pixels = decode(data, "rgb8")
    assert np.array_equal(decode(data, "torchrgb8", image_layout="HWC"), pixels)
    assert np.array_equal(decode(data, "rgb8", image_layout="CHW"), pixels.transpose(2, 0, 1))
    assert decode(data, "torchl8", image_layout="CHW").shape == (1, 118, 157)
    assert decode(data, "l", image_layout="HWC").shape == (118, 157, 1)
    floats = decode(data, "torchrgb")
    assert torch.equal(decode(data, "torchrgb", image_dtype="uint8"), decode(data, "torchrgb8"))
    assert torch.equal(decode(data, "torchrgb8", image_dtype="float32"), floats)
    assert torch.equal(decode(data, "torchrgb", image_dtype="bfloat16"), floats.to(torch.bfloat16))
    assert torch.equal(decode(data, "torchrgb", image_dtype="float16"), floats.to(torch.float16))
    assert np.array_equal(decode(data, "rgb", image_dtype="float16"), decode(data, "rgb").astype(np.float16))


@pytest.mark.parametrize("name", ["torchrgb", "rgb", "torchl"])
def test_normalize_is_torchvisions_formula(name: str) -> None:
    data = sample_images()["jpeg-420"]
    mean, std = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if "rgb" in name else ((0.5,), (0.25,))
    plain = torch.as_tensor(decode(data, name))
    shape = (3, 1, 1) if name == "torchrgb" else (-1,)
    expected = plain.sub(torch.tensor(mean).reshape(shape)).div(torch.tensor(std).reshape(shape))
    value = torch.as_tensor(decode(data, name, Normalize(mean, std), FLIP))
    assert torch.equal(value.flip(1 if name == "rgb" else -1), expected)


def test_crops_and_flips_are_exact() -> None:
    data = sample_images()["png-rgb"]
    pixels = decode(data, "rgb8")
    assert np.array_equal(decode(data, "rgb8", FLIP), pixels[:, ::-1])
    assert np.array_equal(decode(data, "rgb8", CenterCrop((100, 51)), FLIP), pixels[9:109, 53:104][:, ::-1])


@pytest.mark.parametrize("mode", ["pill", "pil", "pilrgba"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_a_random_resized_crop_is_a_crop_and_a_resize(mode: str, interpolation: str) -> None:
    data = encode(photograph("astronaut", (300, 200)), "PNG")
    operation = RandomResizedCrop((96, 80), interpolation=interpolation)  # type: ignore[arg-type]
    for seed in range(5):
        box = draw_geometry((operation,), 300, 200, seed)
        assert box is not None
        edges = (int(box.left), int(box.top), int(box.left + box.width), int(box.top + box.height))
        expected = decode(data, mode).crop(edges).resize((80, 96), Image.Resampling[interpolation.upper()])
        assert decode(data, mode, operation, seed=seed).tobytes() == expected.tobytes()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_without_antialias_it_is_the_filter_of_torch(interpolation: str) -> None:
    """Without antialiasing torch's bilinear filter is the same; its cubic one has a = -0.75 and is not tested."""
    data = encode(photograph("coffee", (211, 173)), "PNG")
    operation = Resize((64, 97), interpolation, antialias=False)  # type: ignore[arg-type]
    value = decode(data, "torchrgb", operation, image_dtype="uint8").float()
    enlarged = decode(data, "rgb8", Resize((400, 500), interpolation, antialias=False)).astype(int)  # type: ignore[arg-type]
    with_antialias = decode(data, "rgb8", Resize((400, 500), interpolation))  # type: ignore[arg-type]
    # Enlarging needs no antialiasing, so both filters are the same; PIL rounds and clips between its two passes.
    assert np.abs(enlarged - with_antialias).mean() < 0.2
    if interpolation == "bilinear":
        source = decode(data, "torchrgb8").float()[None]
        expected = torch.nn.functional.interpolate(source, (64, 97), mode="bilinear", align_corners=False)[0]
        assert (value - expected).abs().max() <= 0.51
    else:
        assert value.shape == (3, 64, 97)
        assert (value - decode(data, "torchrgb8", Resize((64, 97))).float()).abs().mean() < 12


def test_more_pixels_than_the_header_said_are_refused() -> None:
    data = sample_images()["jpeg-420"]
    with pytest.raises(DecodeError, match=r"157 x 118 pixels are more than max_pixels=100 \(jpeg, pil\)"):
        decode_image(MediaHandle("jpg", data, "jpeg", 1, 1, ImageSpec("pil", max_pixels=100)))


def test_the_limit_is_ours_and_not_pils(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for name in ("jpeg-420", "png-rgb", "bmp-rgb", "pnm-rgb", "jp2-lossless"):
        assert decode(sample_images()[name], "rgb8").shape == (118, 157, 3)


def test_a_file_that_asks_for_too_much_memory_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", fail)
    with pytest.raises(DecodeError, match="more memory than an image of its size needs"):
        decode(sample_images()["jpeg-420"], "pil")
    monkeypatch.setattr(np, "empty", fail)
    with pytest.raises(MemoryError):
        decode(sample_images()["jpeg-420"], "pil")


def test_programs_are_not_run() -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(DecodeError, match="does not recognise"):
        open_image(postscript)


def test_a_palette_with_transparency_gives_no_warning() -> None:
    """Warnings are errors here, so a warning would be a DecodeError."""
    assert decode(sample_images()["png-palette-trns"], "torchrgb8").shape == (3, 118, 157)
    assert decode(sample_images()["png-palette-trns"], "rgba8")[..., 3].std() > 0


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
def test_a_bitmap_without_a_file_header(mode: str) -> None:
    """A .dib is a .bmp without "BM" and the offset of the pixels at its start."""
    data = encode(photograph().convert(mode), "DIB")
    assert data[:2] != b"BM"
    with Image.open(BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(decode(data, "rgb8"), expected)
    assert screen_image(data).format == "bmp"
