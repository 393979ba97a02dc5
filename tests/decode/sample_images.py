"""Sample images: real photographs in every form that the tests name, and files that are broken in known ways.

The photographs ship with scikit-image and scikit-learn. `data/photo-411.jpg` and `photo-440.jpg` are scikit-image's
astronaut (public domain, NASA) made small, encoded once by nvImageCodec, because PIL does not write these subsamplings.
"""

from __future__ import annotations

import io
import struct
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from tests.photographs import full_photograph

DATA = Path(__file__).parent / "data"
SIZE = (157, 118)
"""Width and height of most images: odd, so that no block or row is full."""
ORIENTATION_TAG = 0x0112


@lru_cache
def photograph(name: str = "china", size: tuple[int, int] = SIZE) -> Image.Image:
    """Returns a real photograph in RGB.

    Args:
        name: "china", "flower", "astronaut", "coffee" or "chelsea".
        size: (width, height) in pixels.
    """
    return full_photograph(name).resize(size, Image.Resampling.LANCZOS)


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    """Returns an image as a file of one of PIL's formats."""
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def exif(orientation: int) -> bytes:
    """Returns an EXIF block with an orientation."""
    block = Image.Exif()
    block[ORIENTATION_TAG] = orientation
    return block.tobytes()


def with_alpha(image: Image.Image) -> Image.Image:
    """Returns the image with a transparency ramp from left to right."""
    ramp = np.linspace(0, 255, image.width).astype(np.uint8)[None, :].repeat(image.height, axis=0)
    result = image.convert("RGBA")
    result.putalpha(Image.fromarray(ramp))
    return result


def jpegs() -> dict[str, bytes]:
    """Returns JPEGs: subsamplings, progressive, gray, CMYK, RGB, restart markers, profile, EXIF 1 to 8."""
    photo = photograph()
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    found = {
        "jpeg-444": encode(photo, "JPEG", subsampling="4:4:4", quality=92),
        "jpeg-422": encode(photo, "JPEG", subsampling="4:2:2", quality=85),
        "jpeg-420": encode(photo, "JPEG", subsampling="4:2:0", quality=85),
        "jpeg-411": (DATA / "photo-411.jpg").read_bytes(),
        "jpeg-440": (DATA / "photo-440.jpg").read_bytes(),
        "jpeg-100": encode(photo, "JPEG", quality=100),
        "jpeg-progressive": encode(photo, "JPEG", progressive=True),
        "jpeg-gray": encode(photo.convert("L"), "JPEG"),
        "jpeg-cmyk": encode(photo.convert("CMYK"), "JPEG"),
        "jpeg-rgb": encode(photo, "JPEG", keep_rgb=True),
        "jpeg-restart": encode(photo, "JPEG", restart_marker_blocks=3),
        "jpeg-icc": encode(photo, "JPEG", icc_profile=profile),
        "jpeg-comment": encode(photo, "JPEG", comment=b"not a marker: \xff\xd8\xff\xc0"),
        "jpeg-trailing": encode(photo, "JPEG") + b"garbage after the end" * 9,
        "jpeg-1x1": encode(photo.resize((1, 1)), "JPEG"),
    }
    return found | {f"jpeg-exif-{number}": encode(photo, "JPEG", exif=exif(number)) for number in range(1, 9)}


def pngs() -> dict[str, bytes]:
    """Returns PNGs of all colour types, bit depths and kinds of transparency."""
    photo = photograph("flower")
    gray, palette = photo.convert("L"), photo.convert("P", palette=Image.Palette.ADAPTIVE)
    deep = (np.asarray(gray).astype(np.uint16) << 8) | np.asarray(gray)[:, ::-1]
    return {
        "png-rgb": encode(photo, "PNG"),
        "png-gray": encode(gray, "PNG"),
        "png-rgba": encode(with_alpha(photo), "PNG"),
        "png-la": encode(with_alpha(photo).convert("LA"), "PNG"),
        "png-palette": encode(palette, "PNG"),
        "png-palette-trns": encode(palette, "PNG", transparency=bytes(range(256))),
        "png-rgb-trns": encode(photo, "PNG", transparency=(10, 20, 30)),
        "png-gray-trns": encode(gray, "PNG", transparency=7),
        "png-1bit": encode(photo.convert("1"), "PNG"),
        "png-2bit": encode(photo.quantize(4), "PNG", bits=2),
        "png-4bit": encode(photo.quantize(16), "PNG", bits=4),
        "png-16bit-gray": encode(Image.fromarray(deep), "PNG"),
        "png-16bit-rgb": deep_png(np.asarray(photo)),
        "png-exif-6": encode(photo, "PNG", exif=exif(6)),
        "png-animated": encode(photo, "PNG", save_all=True, append_images=[photo.rotate(90)]),
    }


def deep_png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Returns a PNG of 16 bits per channel, which PIL does not write.

    Args:
        pixels: uint8[H, W, 3]; the lower bytes are made from the neighbours'.
    """
    deep = (pixels.astype(">u2") << 8) | np.roll(pixels, 1, axis=1)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    height, width, _ = pixels.shape
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    body = b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def other_images() -> dict[str, bytes]:
    """Returns WebP, BMP, TIFF, PNM, JPEG 2000, GIF, AVIF, ICO and TGA files."""
    photo = photograph("astronaut")
    gray, palette = photo.convert("L"), photo.convert("P", palette=Image.Palette.ADAPTIVE)
    turned = photo.rotate(90, expand=False)
    return {
        "webp-lossy": encode(photo, "WEBP"),
        "webp-lossless": encode(photo, "WEBP", lossless=True),
        "webp-rgba": encode(with_alpha(photo), "WEBP"),
        "webp-rgba-lossless": encode(with_alpha(photo), "WEBP", lossless=True),
        "webp-exif-8": encode(photo, "WEBP", exif=exif(8)),
        "webp-animated": encode(photo, "WEBP", save_all=True, append_images=[turned]),
        "bmp-rgb": encode(photo, "BMP"),
        "bmp-palette": encode(palette, "BMP"),
        "bmp-gray": encode(gray, "BMP"),
        "bmp-1bit": encode(photo.convert("1"), "BMP"),
        "bmp-32": encode(with_alpha(photo), "BMP"),
        "tiff-raw": encode(photo, "TIFF"),
        "tiff-gray": encode(gray, "TIFF"),
        "tiff-lzw": encode(photo, "TIFF", compression="tiff_lzw"),
        "tiff-deflate": encode(photo, "TIFF", compression="tiff_adobe_deflate"),
        "tiff-jpeg": encode(photo, "TIFF", compression="jpeg"),
        "tiff-rgba": encode(with_alpha(photo), "TIFF"),
        "tiff-palette": encode(palette, "TIFF"),
        "tiff-cmyk": encode(photo.convert("CMYK"), "TIFF"),
        "tiff-16bit": encode(Image.fromarray(np.asarray(gray).astype(np.uint16) * 257), "TIFF"),
        "tiff-float": encode(gray.convert("F"), "TIFF"),
        "tiff-exif-6": encode(photo, "TIFF", tiffinfo={ORIENTATION_TAG: 6}),
        "tiff-pages": encode(photo, "TIFF", save_all=True, append_images=[turned]),
        "pnm-rgb": encode(photo, "PPM"),
        "pnm-gray": encode(gray, "PPM"),
        "pnm-bitmap": encode(photo.convert("1"), "PPM"),
        "pnm-comment": encode(photo, "PPM").replace(b"P6\n", b"P6\n# a comment\n", 1),
        "jp2-lossless": encode(photo, "JPEG2000"),
        "jp2-lossy": encode(photo, "JPEG2000", quality_mode="rates", quality_layers=[12]),
        "jp2-gray": encode(gray, "JPEG2000"),
        "j2k": encode(photo, "JPEG2000", no_jp2=True),
        "gif": encode(palette, "GIF"),
        "gif-animated": encode(palette, "GIF", save_all=True, append_images=[turned.convert("P")]),
        "avif": encode(photo, "AVIF"),
        "ico": encode(photo.resize((64, 64)), "ICO"),
        "tga": encode(photo, "TGA"),
    }


@lru_cache
def sample_images() -> dict[str, bytes]:
    """Returns all good images by name; a name begins with its format."""
    return jpegs() | pngs() | other_images()


@lru_cache
def broken_images() -> dict[str, bytes]:
    """Returns files that no decoder can read, named after what is wrong with them."""
    jpeg, png, webp = sample_images()["jpeg-420"], sample_images()["png-rgb"], sample_images()["webp-lossy"]
    frame = jpeg.index(b"\xff\xc0")
    return {
        "empty": b"",
        "one-byte": b"\xff",
        "text": b"This is not an image, whatever its name says.\n" * 20,
        "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "jpeg-half": jpeg[: len(jpeg) // 2],
        "jpeg-header-only": jpeg[: frame + 4],
        "jpeg-no-end": jpeg[:-40],
        "jpeg-flipped-lengths": jpeg[:4] + bytes(byte ^ 0xFF for byte in jpeg[4:40]) + jpeg[40:],
        "jpeg-huge": jpeg[: frame + 5] + struct.pack(">HH", 65500, 65500) + jpeg[frame + 9 :],
        "jpeg-large": jpeg[: frame + 5] + struct.pack(">HH", 10_000, 10_000) + jpeg[frame + 9 :],
        "jpeg-no-size": jpeg[: frame + 5] + bytes(4) + jpeg[frame + 9 :],
        "png-half": png[: len(png) // 2],
        "png-huge": png[:16] + struct.pack(">II", 100_000, 100_000) + png[24:],
        "png-flipped-header": png[:8] + bytes(byte ^ 0x55 for byte in png[8:33]) + png[33:],
        "png-flipped-pixels": png[:200] + bytes(byte ^ 0xA5 for byte in png[200:1200]) + png[1200:],
        "webp-half": webp[: len(webp) // 2],
        "webp-flipped-header": webp[:12] + bytes(byte ^ 0x5A for byte in webp[12:30]) + webp[30:],
    }
