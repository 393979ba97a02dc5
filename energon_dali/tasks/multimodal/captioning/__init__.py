"""Captions of images: patches precede the text, and samples of different sizes are packed into rows.

The names below are imported when they are first used: reading processes load the task encoder, and neither torch nor
lightning.
"""

from __future__ import annotations

from energon_dali.lazy_names import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "data_module": "CaptioningDataConfig CaptioningDataModule",
        "model.backbone": "CaptioningGPT PatchPrefix PrefixBackbone",
        "model.transformers_gpt2": "TransformersGPT2",
        "samples": "CaptioningBatch",
        "task": "CaptioningTransformer",
        "task_encoder": "CaptioningTaskEncoder PackedCaptioningTaskEncoder",
    },
)
