"""Screening describes images, refuses everything else, and never raises anything but DecodeError."""

from __future__ import annotations

import struct
import warnings
import zlib
from io import BytesIO
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from energon_dali.decode import screen_image
from energon_dali.errors import DecodeError
from tests.decode.mutations import mutate
from tests.decode.sample_images import broken_images, encode, exif, photograph, sample_images

FORMATS = {"jp2": "jpeg2000", "j2k": "jpeg2000"}
TO_PIL = {
    "jpeg-cmyk": "rounded differently",
    "png-16bit-gray": "PIL clips what DALI scales",
    "png-16bit-rgb": "rounded differently",
    "png-animated": "frames",
    **dict.fromkeys(
        (
            "webp-lossy",
            "webp-lossless",
            "webp-rgba",
            "webp-rgba-lossless",
            "webp-exif-8",
            "webp-animated",
            "tiff-lzw",
            "tiff-deflate",
        ),
        "only decoding shows damage",
    ),
    "bmp-1bit": "rare",
    "tiff-jpeg": "rare",
    "tiff-rgba": "rare",
    "tiff-palette": "rare",
    "tiff-cmyk": "rare",
    "tiff-16bit": "PIL clips what DALI scales",
    "tiff-float": "PIL clips what DALI scales",
    "tiff-exif-6": "PIL turns TIFFs, DALI not",
    "pnm-bitmap": "rare",
    "pnm-comment": "rare",
    "jp2-lossless": "DALI crashes on broken ones",
    "jp2-lossy": "DALI crashes on broken ones",
    "jp2-gray": "DALI crashes on broken ones",
    "j2k": "DALI crashes on broken ones",
    "gif": "unknown to DALI",
    "gif-animated": "unknown to DALI",
    "avif": "unknown to DALI",
    "ico": "unknown to DALI",
    "tga": "unknown to DALI",
}
"""Images that DALI does not get, and why."""


@pytest.mark.parametrize("name", sample_images())
def test_facts(name: str) -> None:
    data = sample_images()[name]
    header = screen_image(data)
    kind = name.split("-")[0]
    assert header.format == FORMATS.get(kind, kind)
    with Image.open(BytesIO(data)) as image:
        assert (header.width, header.height) == image.size
        if kind != "webp":  # a lossy WebP without visible alpha is "RGB" to PIL
            assert header.has_alpha == image.has_transparency_data
    assert header.dali_decodable == (name not in TO_PIL)
    assert header.bit_depth == (16 if "16bit" in name else int(name[4]) if name[5:] == "bit" else header.bit_depth)
    assert screen_image(memoryview(data)) == header == screen_image(bytearray(data))


def test_facts_of_jpegs() -> None:
    found = {name: screen_image(data) for name, data in sample_images().items() if name.startswith("jpeg")}
    for subsampling in ("444", "422", "420", "411", "440"):
        assert found[f"jpeg-{subsampling}"].subsampling == subsampling
    assert {name for name, header in found.items() if header.progressive} == {"jpeg-progressive"}
    assert [found[f"jpeg-{name}"].color for name in ("gray", "cmyk", "rgb", "420")] == ["gray", "cmyk", "rgb", "ycc"]
    assert [found[f"jpeg-{name}"].channels for name in ("gray", "cmyk", "rgb")] == [1, 4, 3]
    assert [found[f"jpeg-exif-{number}"].orientation for number in range(1, 9)] == list(range(1, 9))
    assert found["jpeg-420"].orientation == 1


def test_orientation_of_other_formats() -> None:
    assert screen_image(sample_images()["png-exif-6"]).orientation == 6
    assert screen_image(sample_images()["webp-exif-8"]).orientation == 8
    turned = screen_image(sample_images()["tiff-exif-6"])
    assert (turned.orientation, turned.width, turned.height) == (1, 118, 157), "PIL turns TIFFs when it loads them"


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize("orientation", [0, 1, 6, 8, 9, 65535])
def test_orientation_in_both_byte_orders(order: str, orientation: int) -> None:
    sign = "<" if order == "II" else ">"
    entries = struct.pack(sign + "HHIHH", 0x010F, 3, 1, 7, 0) + struct.pack(
        sign + "HHIHH", 0x0112, 3, 1, orientation, 0
    )
    block = b"Exif\0\0" + order.encode() + struct.pack(sign + "HIH", 42, 8, 2) + entries + bytes(4)
    data = encode(photograph(size=(8, 8)), "JPEG", exif=block)
    assert screen_image(data).orientation == (orientation if 1 <= orientation <= 8 else 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty", "The file is empty"),
        ("text", "does not recognise this as an image"),
        ("jpeg-huge", r"bytes cannot hold 65500 x 65500 pixels: its header is broken \(jpeg, screen\)"),
        ("jpeg-large", r"bytes cannot hold 10000 x 10000 pixels: its header is broken \(jpeg, screen\)"),
        ("jpeg-no-size", "0 x 0 pixels, nothing to decode"),
        ("png-huge", r"bytes cannot hold 100000 x 100000 pixels: its header is broken \(png, screen\)"),
        ("jpeg-header-only", "Truncated"),
    ],
)
def test_refused(name: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        screen_image(broken_images()[name])
    assert caught.value.route == "screen"


def test_the_densest_jpeg_is_understood() -> None:
    """A single colour takes the fewest bytes per pixel."""
    for options in ({"quality": 1, "optimize": True}, {"quality": 1, "progressive": True}):
        data = encode(Image.new("L", (4000, 4000)), "JPEG", **options)
        assert screen_image(data).dali_decodable
        assert 4000 * 4000 / len(data) > 100


def test_cut_containers_never_reach_dali() -> None:
    for name in ("png-half", "webp-half", "jpeg-flipped-lengths", "png-flipped-header", "webp-flipped-header"):
        try:
            header = screen_image(broken_images()[name])
        except DecodeError:
            continue
        assert not header.dali_decodable, name


def test_limits() -> None:
    data = sample_images()["jpeg-420"]
    assert screen_image(data, max_pixels=157 * 118, max_bytes=len(data)).width == 157
    with pytest.raises(DecodeError, match="157 x 118 pixels, more than the limit max_pixels=18,525"):
        screen_image(data, max_pixels=157 * 118 - 1)
    with pytest.raises(DecodeError, match="the limit max_bytes is 99"):
        screen_image(data, max_bytes=99)


def test_unusual_jpegs_go_to_pil() -> None:
    data = encode(photograph(), "JPEG")
    filled = data[:2] + b"\xff\xff" + data[2:]  # fill bytes, which the standard allows before a marker
    header = screen_image(filled)
    assert (header.width, header.format, header.dali_decodable) == (157, "jpeg", False)
    frame = data.index(b"\xff\xc0")
    deep = screen_image(data[: frame + 4] + b"\x0c" + data[frame + 5 :])
    assert (deep.bit_depth, deep.dali_decodable) == (12, False)


def test_images_that_dali_decodes_to_other_colours_go_to_pil() -> None:
    cmyk = encode(photograph().convert("CMYK"), "JPEG")
    marker = cmyk.index(b"Adobe") - 4
    for data in (cmyk, cmyk[:marker] + cmyk[marker + 16 :]):
        assert not screen_image(data).dali_decodable
    palette = encode(photograph().convert("P"), "BMP")
    assert screen_image(palette).dali_decodable
    assert not screen_image(palette[:46] + struct.pack("<I", 1) + palette[50:]).dali_decodable


def test_scripts_are_not_images() -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(DecodeError, match="does not recognise this as an image"):
        screen_image(postscript)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_understood(data: bytes) -> None:
    for prefix in (
        b"",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"RIFF\x40\0\0\0WEBP",
        b"II*\0",
        b"MM\0*",
        b"BM",
        b"P5 ",
    ):
        try:
            header = screen_image(prefix + data)
        except DecodeError:
            continue
        assert header.width * header.height > 0


def test_mutated_files_are_refused_or_understood() -> None:
    random = Random(7)
    good = list(sample_images().values())
    outcomes = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(10_000):
            try:
                outcomes.append(screen_image(mutate(good[number % len(good)], random)).dali_decodable)
            except DecodeError:
                outcomes.append(None)
    assert np.all([outcomes.count(kind) > 300 for kind in (True, False, None)]), "all outcomes must be seen"


def test_exif_that_points_nowhere() -> None:
    block = exif(6)
    for end in range(len(block)):
        data = encode(photograph(size=(8, 8)), "JPEG", exif=block[:end])
        assert screen_image(data).orientation in (1, 6)


def in_png(width: int, height: int, color_type: int, bits: int) -> bytes:
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(9000))),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def in_tiff(width: int, height: int, compression: int, bits: int = 8, samples: int = 1) -> bytes:
    tags = {256: width, 257: height, 258: bits, 259: compression, 262: 1, 273: 200, 277: samples, 278: height, 279: 50}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return (b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)).ljust(250, b"\0")


def in_bmp(width: int, height: int, bits: int) -> bytes:
    fields = (100, 0, 0, 54, 40, width, height, 1, bits, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", *fields) + bytes(99)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("png", in_png(100_000, 100_000, 2, 8)),
        ("png", in_png(100_000, 100_000, 0, 1)),
        *(("tiff", in_tiff(100_000, 100_000, compression)) for compression in (1, 5, 8, 32773)),
        ("tiff", in_tiff(100_000, 100_000, 5, 1)),
        *(("bmp", in_bmp(100_000, 100_000, bits)) for bits in (1, 8, 24, 32)),
        ("bmp", in_bmp(100_000, 100_000, 24)[14:]),
        *(("pnm", b"P%d\n100000 100000\n" % kind + b"1 " * 99) for kind in (1, 4)),
        *(("pnm", b"P%d\n100000 100000\n255 " % kind + b"1 " * 99) for kind in (2, 3, 5, 6)),
    ],
)
def test_impossible_sizes_are_refused_before_memory_is_allocated(
    name: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(DecodeError, match=f"{len(data):,} bytes cannot hold 100000 x 100000 pixels") as caught:
        screen_image(data, max_pixels=10**11)
    assert (caught.value.format, caught.value.route) == (name, "screen")


@pytest.mark.parametrize(
    ("mode", "form", "options"),
    [
        ("L", "PNG", {"optimize": True}),
        ("1", "PNG", {"optimize": True}),
        ("L", "TIFF", {"compression": "tiff_lzw"}),
        ("1", "TIFF", {"compression": "tiff_lzw"}),
        ("L", "TIFF", {"compression": "tiff_adobe_deflate"}),
        ("1", "TIFF", {"compression": "packbits"}),
        ("1", "TIFF", {"compression": "group4"}),
        ("L", "GIF", {}),
        ("L", "WEBP", {"lossless": True}),
        ("L", "JPEG2000", {}),
        ("1", "BMP", {}),
        ("1", "PPM", {}),
    ],
)
def test_a_well_compressed_single_colour_is_understood(mode: str, form: str, options: dict[str, Any]) -> None:
    assert screen_image(encode(Image.new(mode, (5000, 4000)), form, **options)).width == 5000
