"""Image formats, one module each.

To add a format, write a module with a `FORMAT` (`ImageFormat`) and list it in `registry.BUILT_IN`; a format that only
PIL reads takes one entry in `pil_only`. Screening, decoding, routing and `prepare` ask the registry and need no change.
A package outside this one calls `register_format` before the first sample is read.
"""

from __future__ import annotations

from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError
from energon_dali.decode.formats.registry import register_format, unregister_format

__all__ = [
    "Buffer",
    "ImageFormat",
    "ImageHeader",
    "IrregularHeaderError",
    "register_format",
    "unregister_format",
]
