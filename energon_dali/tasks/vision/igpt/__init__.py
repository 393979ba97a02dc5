"""Image GPT: a GPT-2 that draws images pixel by pixel (Chen et al., "Generative Pretraining from Pixels", 2020)."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.tasks.vision.igpt.config import ImageGPTDataConfig
    from energon_dali.tasks.vision.igpt.data_module import ImageGPTDataModule
    from energon_dali.tasks.vision.igpt.drawing import draw_pixels
    from energon_dali.tasks.vision.igpt.gpt2 import GPT2
    from energon_dali.tasks.vision.igpt.palette import learn_palette, stored_palette
    from energon_dali.tasks.vision.igpt.sequence import quantize, to_images
    from energon_dali.tasks.vision.igpt.task import GenerativePixelsTransformer

__all__ = [
    "GPT2",
    "GenerativePixelsTransformer",
    "ImageGPTDataConfig",
    "ImageGPTDataModule",
    "draw_pixels",
    "learn_palette",
    "quantize",
    "stored_palette",
    "to_images",
]

_HOME_OF = {
    "GPT2": "gpt2",
    "GenerativePixelsTransformer": "task",
    "ImageGPTDataConfig": "config",
    "ImageGPTDataModule": "data_module",
    "draw_pixels": "drawing",
    "learn_palette": "palette",
    "quantize": "sequence",
    "stored_palette": "palette",
    "to_images": "sequence",
}
"""Module of each name, imported when the name is first used: reading workers need few of them, and no torch."""


def __getattr__(name: str) -> Any:
    if name == "to_pictures":
        warnings.warn("to_pictures is now called to_images.", DeprecationWarning, stacklevel=2)
        return importlib.import_module(f"{__name__}.sequence").to_images
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
