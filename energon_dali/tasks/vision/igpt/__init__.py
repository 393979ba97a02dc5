"""Image GPT: a GPT-2 that draws images pixel by pixel (Chen et al., "Generative Pretraining from Pixels", 2020).

The names below are imported when they are first used: reading workers need few of them, and no torch.
"""

from __future__ import annotations

import warnings
from typing import Any

from energon_dali.lazy_names import attach

_import_name, __dir__, __all__ = attach(
    __name__,
    {
        ".gpt2": "GPT2",
        "data": "ImageGPTDataConfig ImageGPTDataModule",
        "model": "GenerativePixelsTransformer draw_pixels quantize to_images",
        "palette": "learn_palette stored_palette",
    },
)


def __getattr__(name: str) -> Any:
    if name == "to_pictures":
        warnings.warn("to_pictures is now called to_images.", DeprecationWarning, stacklevel=2)
        name = "to_images"
    return _import_name(name)
