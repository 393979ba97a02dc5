from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from energon_dali import SampleDecoder
from energon_dali.decode.formats.png import MOST_PLAIN_BYTES, open_plain_png
from energon_dali.errors import DecodeError

PLAIN = ("L", "RGB", "RGBA")


def png(mode: str, width: int = 7, height: int = 9, **options: object) -> bytes:
    rng = np.random.default_rng(5)
    pixels = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA").convert(mode).save(file, "PNG", **options)
    return file.getvalue()


def by_pil(data: bytes) -> Image.Image:
    image = PngImagePlugin.PngImageFile(io.BytesIO(data), "")
    image.load()
    return image


@pytest.mark.parametrize("mode", PLAIN)
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (32, 32), (61, 3)])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_plain_file_has_the_pixels_that_pil_reads(mode: str, size: tuple[int, int], kind: type) -> None:
    data = png(mode, *size)
    image = open_plain_png(kind(data))
    assert image is not None
    expected = by_pil(data)
    assert (image.mode, image.size, image.info) == (expected.mode, expected.size, expected.info)
    assert image.tobytes() == expected.tobytes()


def interlaced() -> bytes:
    data = bytearray(png("RGB"))
    data[28] = 1
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        png("P"),
        png("LA"),
        png("1"),
        png("I;16"),
        png("RGB", dpi=(72, 72)),
        png("RGB") + b"more",
        png("RGB")[:60],
        png("RGB", 200, 200),
        interlaced(),
        b"",
        b"\x89PNG\r\n\x1a\n",
    ],
    ids=[
        "palette",
        "gray-alpha",
        "bits",
        "16-bit",
        "metadata",
        "trailing",
        "cut",
        "large",
        "interlaced",
        "empty",
        "signature",
    ],
)
def test_any_other_file_is_left_to_pil(data: bytes) -> None:
    assert open_plain_png(data) is None


def test_the_large_file_is_larger_than_the_limit() -> None:
    assert len(png("RGB", 200, 200)) > MOST_PLAIN_BYTES


@pytest.mark.parametrize("mode", PLAIN)
def test_a_changed_byte_never_gives_pixels_that_pil_does_not_read(mode: str) -> None:
    whole = png(mode)
    taken = 0
    for position in range(len(whole)):
        for bit in (0, 3, 7):
            data = bytearray(whole)
            data[position] ^= 1 << bit
            image = open_plain_png(bytes(data))
            if image is not None:
                taken += 1
                assert image.tobytes() == by_pil(bytes(data)).tobytes()
    assert taken  # the checksum of the pixels, which PIL does not compare


def test_damaged_pixels_are_the_same_error_as_without_it() -> None:
    data = bytearray(png("RGB"))
    data[44] ^= 0xFF
    with pytest.raises(DecodeError, match="PIL cannot decode it: OSError"):
        SampleDecoder(image_decode="rgb8").decode("a.png", bytes(data))


@pytest.mark.parametrize("side", [1, 2, 33, 64, 65])
def test_small_and_large_images_have_the_same_layout(side: int) -> None:
    data = png("RGB", side, side + 1)
    value = SampleDecoder(image_decode="torchrgb8").decode("a.png", data)
    expected = np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1)
    assert (value.shape, value.is_contiguous()) == ((3, side + 1, side), True)
    np.testing.assert_array_equal(value.numpy(), expected)
    value += 1  # the tensor is writable, and its own
    np.testing.assert_array_equal(SampleDecoder(image_decode="torchrgb8").decode("a.png", data).numpy(), expected)
