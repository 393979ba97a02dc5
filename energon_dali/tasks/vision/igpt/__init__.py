"""Image GPT: a GPT-2 that draws images pixel by pixel (Chen et al., "Generative Pretraining from Pixels", 2020).

The names below are imported when they are first used: reading workers need few of them, and no torch.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from energon_dali.lazy_names import import_name

if TYPE_CHECKING:
    from energon_dali.tasks.vision.gpt2 import GPT2
    from energon_dali.tasks.vision.igpt.data import ImageGPTDataConfig, ImageGPTDataModule
    from energon_dali.tasks.vision.igpt.model import GenerativePixelsTransformer, draw_pixels, quantize, to_images
    from energon_dali.tasks.vision.igpt.palette import learn_palette, stored_palette

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


def __getattr__(name: str) -> Any:
    if name == "to_pictures":
        warnings.warn("to_pictures is now called to_images.", DeprecationWarning, stacklevel=2)
        name = "to_images"
    return import_name(__name__, name)
