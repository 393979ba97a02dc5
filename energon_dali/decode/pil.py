"""Decodes images with PIL, equal bit for bit to what webdataset's image handler gives where no operation is declared."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from energon_dali.decode.geometry import Geometry, draw_geometry
from energon_dali.decode.headers.header import Buffer
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from energon_dali.decode.interface import MediaHandle
    from energon_dali.decode.spec import ImageSpec

_PLUGINS = {
    "jpeg": "JPEG", "png": "PNG", "webp": "WEBP", "bmp": "BMP", "tiff": "TIFF", "pnm": "PPM", "jpeg2000": "JPEG2000",
    "gif": "GIF", "avif": "AVIF",
}  # fmt: skip
_REFUSED_PLUGINS = frozenset({"EPS", "WMF", "MPEG", "BUFR", "GRIB", "HDF5"})
"""EPS starts Ghostscript, that is: it runs a program out of a dataset. The others PIL can only name, not decode."""
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "nearest": Image.Resampling.NEAREST}
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_OWN_ORIENTATION = frozenset({"jpeg", "png", "webp", "tiff"})
"""Formats whose orientation the header screening reads (a TIFF is turned by PIL itself); the others' PIL reads."""


def open_image(data: Buffer, format: str = "") -> Image.Image:
    """Returns an image whose header is read and whose pixels are not.

    Args:
        data: The encoded file; it must stay unchanged until the image is loaded.
        format: `ImageHeader.format` if it is known, which saves trying PIL's readers one by one.

    Raises:
        DecodeError: PIL cannot read it, or it is of a format that is refused.
    """
    try:
        plugin = _PLUGINS.get(format)
        if plugin is None:
            Image.init()
            formats = [name for name in Image.ID if name not in _REFUSED_PLUGINS]
        else:
            formats = [plugin]
        return Image.open(BytesIO(data), formats=formats)
    except UnidentifiedImageError as error:
        raise DecodeError("PIL does not recognise this as an image", format, "pil") from error
    except Exception as error:
        raise _decode_error(error, format, 0) from error


def _decode_error(error: Exception, format: str, pixels: int) -> DecodeError:
    """Returns the DecodeError for what PIL raised; raises MemoryError again if memory is really short."""
    if isinstance(error, DecodeError):
        return error
    if isinstance(error, MemoryError):
        # A broken file can ask for absurd amounts. Only if what the image needs is not there, it is the machine's fault.
        del error
        np.empty(max(pixels, 1 << 20) * 4, np.uint8).fill(0)
        return DecodeError("PIL ran out of memory: the file asks for more than an image of its size needs", format, "pil")
    return DecodeError(f"PIL cannot decode it: {type(error).__name__}: {error}", format, "pil")
