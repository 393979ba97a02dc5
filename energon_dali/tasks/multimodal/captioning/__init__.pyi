"""The public names, as type checkers see them; `__init__.py` imports each from its module when it is first used."""

from energon_dali.tasks.multimodal.captioning.data_module import (
    CaptioningDataConfig as CaptioningDataConfig,
    CaptioningDataModule as CaptioningDataModule,
)
from energon_dali.tasks.multimodal.captioning.model.backbone import (
    CaptioningGPT as CaptioningGPT,
    PatchPrefix as PatchPrefix,
    PrefixBackbone as PrefixBackbone,
)
from energon_dali.tasks.multimodal.captioning.model.transformers_gpt2 import (
    TransformersGPT2 as TransformersGPT2,
)
from energon_dali.tasks.multimodal.captioning.samples import (
    CaptioningBatch as CaptioningBatch,
)
from energon_dali.tasks.multimodal.captioning.task import (
    CaptioningTransformer as CaptioningTransformer,
)
from energon_dali.tasks.multimodal.captioning.task_encoder import (
    CaptioningTaskEncoder as CaptioningTaskEncoder,
    PackedCaptioningTaskEncoder as PackedCaptioningTaskEncoder,
)

__all__: list[str]
