"""Captions of images: patches precede the text, and samples of different sizes are packed into rows.

The names below are imported when they are first used: reading processes load the task encoder, and neither torch nor
lightning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.lazy_names import import_name, names_of

if TYPE_CHECKING:
    from energon_dali.tasks.multimodal.captioning.data_module import CaptioningDataConfig, CaptioningDataModule
    from energon_dali.tasks.multimodal.captioning.model.backbone import CaptioningGPT, PatchPrefix, PrefixBackbone
    from energon_dali.tasks.multimodal.captioning.model.transformers_gpt2 import TransformersGPT2
    from energon_dali.tasks.multimodal.captioning.samples import CaptioningBatch
    from energon_dali.tasks.multimodal.captioning.task import CaptioningTransformer
    from energon_dali.tasks.multimodal.captioning.task_encoder import CaptioningTaskEncoder, PackedCaptioningTaskEncoder

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
    return import_name(__name__, name)


def __dir__() -> list[str]:
    return names_of(__name__)
