"""The families of front ends, and the choice of one for a processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.decode.front_ends.fixed_size import FixedSize
from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.gemma3 import Gemma3
from energon_dali.decode.front_ends.glm4v import Glm4V
from energon_dali.decode.front_ends.idefics3 import Idefics3
from energon_dali.decode.front_ends.imagegpt import ImageGPT
from energon_dali.decode.front_ends.internvl import InternVL
from energon_dali.decode.front_ends.llava_next import LlavaNext
from energon_dali.decode.front_ends.llava_onevision import LlavaOnevision
from energon_dali.decode.front_ends.mllama import Mllama
from energon_dali.decode.front_ends.pixtral import Pixtral
from energon_dali.decode.front_ends.processor_config import read_processor
from energon_dali.decode.front_ends.qwen2_vl import Qwen2VL
from energon_dali.decode.front_ends.siglip2 import Siglip2
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.decode.front_ends.resampling import Resampling
    from energon_dali.decode.spec import ImageDtype

FAMILIES: tuple[type[FrontEnd], ...] = (
    FixedSize,
    Qwen2VL,
    Glm4V,
    Gemma3,
    Idefics3,
    ImageGPT,
    InternVL,
    LlavaNext,
    LlavaOnevision,
    Mllama,
    Pixtral,
    Siglip2,
)


def make_front_end(
    processor: object, *, dtype: ImageDtype = "float32", resampling: Resampling | None = None, **fields: Any
) -> FrontEnd:
    """Returns the front end for a processor; see `FrontEnd.from_processor`.

    Raises:
        ConfigError: No family covers the processor, or one of its values.
    """
    config = read_processor(processor)
    for family in FAMILIES:
        if config.type_name in family.processors:
            front_end = family.from_config(config)
            config.finish()
            if config.image_token_id is not None:
                fields.setdefault("image_token_id", config.image_token_id)
            return front_end.with_fields(dtype=dtype, resampling=resampling or config.arithmetic, **fields)
    known = sorted(name for family in FAMILIES for name in family.processors)
    raise ConfigError(
        f"There is no front end for {config.type_name or 'a processor that does not name its type'}. Covered are "
        f"{', '.join(known)}. Run this processor in encode_sample on decoded images."
    )
