"""The pixels of a PIL image where PIL keeps them: four bytes each, of which the last is unused. Nothing is copied.

PIL's own methods return pixels as packed bytes, which takes as long as resampling them to a small image.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class _ArrowArray(ctypes.Structure):
    """The beginning of Arrow's ArrowArray (https://arrow.apache.org/docs/format/CDataInterface.html)."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.POINTER(ctypes.c_void_p)),
    ]


_address_in = ctypes.pythonapi.PyCapsule_GetPointer
_address_in.restype = ctypes.c_void_p
_address_in.argtypes = [ctypes.py_object, ctypes.c_char_p]


def pixel_memory(image: Image.Image) -> NDArray[np.uint8] | None:
    """Returns uint8[H, W, 4], a view of an image's memory, which must not be written to.

    Args:
        image: Of mode RGB. It is loaded if it is not yet.

    Returns:
        None if PIL keeps the pixels in several pieces (more than 16 MiB of them), in rows with gaps, or is older than
        11.2, which has no interface for this.
    """
    image.load()
    export = getattr(image.im, "__arrow_c_array__", None)
    alignment: int = Image.core.get_alignment()  # type: ignore[attr-defined]
    if export is None or image.mode != "RGB" or 4 * image.width % alignment:
        return None
    try:
        capsule = export()
    except (ValueError, MemoryError):  # in several pieces
        return None
    whole = _ArrowArray.from_address(_address_in(capsule, b"arrow_array") or 0)
    pixels, size = image.width * image.height, 4 * image.width * image.height
    if (whole.length, whole.offset, whole.n_children) != (pixels, 0, 1):
        return None
    levels = _ArrowArray.from_address(whole.children[0] or 0)
    if (levels.length, levels.offset, levels.n_buffers) != (size, 0, 2) or not levels.buffers[1]:
        return None
    memory = (ctypes.c_ubyte * size).from_address(levels.buffers[1])
    memory.owner = capsule  # type: ignore[attr-defined]  # keeps the pixels, whatever becomes of the image
    return np.frombuffer(memoryview(memory), np.uint8).reshape(image.height, image.width, 4)


def split_planes(image: Image.Image) -> NDArray[np.uint8]:
    """Returns uint8[3, H, W], contiguous: the channels of an image, a copy.

    Args:
        image: Of mode RGB, with at least one pixel.
    """
    memory = pixel_memory(image) if sys.byteorder == "little" else None
    if memory is None:
        # PIL splits the channels in less time than a transposition takes.
        joined = bytearray().join([plane.tobytes() for plane in image.split()])
        return np.frombuffer(joined, np.uint8).reshape(3, image.height, image.width)
    pixels = memory.view(np.uint32)[..., 0]
    planes = np.empty((3, image.height, image.width), np.uint8)
    for number, plane in enumerate(planes):
        np.right_shift(pixels, 8 * number, out=plane, casting="unsafe")
    return planes
