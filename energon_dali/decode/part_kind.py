"""What a part is: image, video or audio, or something basic; by its name, or by its content."""

from __future__ import annotations

from typing import Literal

from energon_dali.errors import ConfigError

PartKind = Literal["image", "av", "basic"]

IMAGE_SUFFIXES = frozenset(
    {
        "apng",
        "avif",
        "avifs",
        "blp",
        "bmp",
        "bw",
        "cur",
        "dcx",
        "dds",
        "dib",
        "emf",
        "eps",
        "fit",
        "fits",
        "flc",
        "fli",
        "ftc",
        "ftu",
        "gbr",
        "gif",
        "icb",
        "icns",
        "ico",
        "iim",
        "im",
        "j2c",
        "j2k",
        "jfif",
        "jp2",
        "jpc",
        "jpe",
        "jpeg",
        "jpf",
        "jpg",
        "jpx",
        "mpo",
        "msp",
        "pbm",
        "pcd",
        "pcx",
        "pgm",
        "png",
        "pnm",
        "ppm",
        "ps",
        "psd",
        "pxr",
        "qoi",
        "ras",
        "rgb",
        "rgba",
        "sgi",
        "tga",
        "tif",
        "tiff",
        "vda",
        "vst",
        "webp",
        "wmf",
        "xbm",
        "xpm",
    }
)
"""Suffixes (in lower case) of images. Against webdataset: avif, avifs, mpo and qoi came in; mpg and mpeg are video
here, and bufr, grib, h5, hdf stay bytes, because PIL cannot decode them."""
AV_SUFFIXES = frozenset(
    {"aac", "avi", "flac", "flv", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "mpeg", "mpg", "ogg", "opus", "wav", "webm"}
)
"""Suffixes (in lower case) of video and audio. Against Energon: aac, m4a, m4v, mpeg, mpg, ogg and opus came in."""
_GUESS_BYTES = 8192
"""What `filetype` looks at."""


def find_part_kind(name: str) -> tuple[PartKind, str]:
    """Returns what a part is by its part name or file name, and its suffix.

    Args:
        name: Part name ("jpg", "left.png"), or file name with a directory ("train/0001.jpg").
    """
    directory, _, base = name.rpartition("/")
    suffix = base.rpartition(".")[2] if "." in base or not directory else ""
    lower = suffix.lower()
    if lower in IMAGE_SUFFIXES:
        return "image", suffix
    return ("av" if lower in AV_SUFFIXES else "basic"), suffix


def guess_part_kind(raw: bytes | memoryview, named: tuple[PartKind, str]) -> tuple[PartKind, str]:
    """Returns the kind of a part by its content where that is media; what its name says otherwise.

    Args:
        raw: The content.
        named: What `find_part_kind` says of its name.
    """
    import filetype

    found = filetype.guess(bytes(raw[:_GUESS_BYTES]))
    if found is None:
        return named
    if found.mime.startswith(("video/", "audio/")):
        return "av", str(found.extension)
    guessed = find_part_kind(found.extension)
    return guessed if guessed[0] != "basic" else ("basic", named[1])


def require_filetype() -> None:
    """Does nothing where the package that guesses is installed.

    Raises:
        ConfigError: It is not.
    """
    try:
        import filetype  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "guess_content=True was given and the package filetype is not installed. It is what recognises media by "
            "their content. Run `pip install filetype`, or leave guess_content out."
        ) from error
