"""Captions of images: patches precede the text, and samples of different sizes are packed into rows.

The names below are imported when they are first used: reading processes load the task encoder, and neither torch nor
lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.tasks.multimodal.captioning.data_module import CaptioningDataConfig, CaptioningDataModule
    from energon_dali.tasks.multimodal.captioning.model.backbone import CaptioningGPT, PatchPrefix, PrefixBackbone
    from energon_dali.tasks.multimodal.captioning.model.transformers_gpt2 import TransformersGPT2
    from energon_dali.tasks.multimodal.captioning.samples import CaptioningBatch
    from energon_dali.tasks.multimodal.captioning.task import CaptioningTransformer
    from energon_dali.tasks.multimodal.captioning.task_encoder import CaptioningTaskEncoder, PackedCaptioningTaskEncoder

_HOMES = {
    "model.backbone": ("CaptioningGPT", "PatchPrefix", "PrefixBackbone"),
    "data_module": ("CaptioningDataConfig", "CaptioningDataModule"),
    "samples": ("CaptioningBatch",),
    "task": ("CaptioningTransformer",),
    "task_encoder": ("CaptioningTaskEncoder", "PackedCaptioningTaskEncoder"),
    "model.transformers_gpt2": ("TransformersGPT2",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CaptioningBatch",
    "CaptioningDataConfig",
    "CaptioningDataModule",
    "CaptioningGPT",
    "CaptioningTaskEncoder",
    "CaptioningTransformer",
    "PackedCaptioningTaskEncoder",
    "PatchPrefix",
    "PrefixBackbone",
    "TransformersGPT2",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
