"""Finds out whether a GPU's pipeline decodes an image on the GPU or on its CPU threads."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from energon_dali.decode.dali.runtime.device import load_backend
from energon_dali.decode.formats import FORMATS
from energon_dali.decode.interface import Route

_REGIONS_INTERPOLATE_FROM = (13, 2)
"""First version of nvJPEG with which nvImageCodec decodes a region of a JPEG with interpolated chroma. In earlier ones
the outermost pixels of the region may be wrong, so nvImageCodec refuses and DALI's CPU threads decode the file."""
_RTLD_NOLOAD = 4


def has_gpu_codec(format: str) -> bool:
    """Returns whether a format is decoded on the GPU in a GPU's pipeline: by nvJPEG, nvJPEG2000 or nvTIFF.

    Args:
        format: As in the header ("jpeg").
    """
    known = FORMATS.get(format)
    return known is not None and known.gpu_codec


def image_route(format: str) -> Route:
    """Returns the route of an image that a GPU's pipeline decoded.

    DALI does not report which codec decoded a file; this follows from its format and the installed libraries.
    Rare kinds of JPEG and TIFF that nvJPEG or nvTIFF refuse are counted as if they had decoded them.

    Args:
        format: As in the header.
    """
    if not has_gpu_codec(format) or (format == "jpeg" and nvjpeg_version() is None):
        return "dali-host"
    return "dali-gpu"


def decodes_regions(fancy_upsampling: bool) -> bool:
    """Returns whether a GPU can decode a region of a JPEG.

    Args:
        fancy_upsampling: Whether chroma is interpolated (`DaliTuning.jpeg_fancy_upsampling`).
    """
    version = nvjpeg_version()
    return version is not None and (not fancy_upsampling or version >= _REGIONS_INTERPOLATE_FROM)


@functools.cache
def nvjpeg_version() -> tuple[int, int] | None:
    """Returns (major, minor) of the nvJPEG that DALI uses in this process, None if there is none.

    DALI does not report it. This loads the library from where nvImageCodec would find it, which then uses that one.
    """
    major = int(load_backend().__cuda_version__) // 1000
    name = f"libnvjpeg.so.{major}"
    for path, mode in (
        (name, os.RTLD_NOW | _RTLD_NOLOAD),
        *((str(found), os.RTLD_NOW) for found in _next_to_dali(name)),
        (name, os.RTLD_NOW),
    ):
        try:
            library = ctypes.CDLL(path, mode)
            return _property(library, 0), _property(library, 1)
        except (OSError, AttributeError):
            continue
    return None


def _next_to_dali(name: str) -> list[Path]:
    """Returns a library's files in nvImageCodec's search order: LD_LIBRARY_PATH, Python packages, the CUDA toolkit."""
    packages = Path(load_backend().__file__).parents[1]  # site-packages/nvidia
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += [packages / "nvjpeg" / "lib", *sorted(packages.glob("cu*/lib")), Path("/usr/local/cuda/lib64")]
    return [folder / name for folder in folders if (folder / name).exists()]


def _property(library: ctypes.CDLL, number: int) -> int:
    value = ctypes.c_int()
    library.nvjpegGetProperty(number, ctypes.byref(value))
    return value.value
