"""The families of front ends, and the choice of one for a processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from energon_dali.decode.front_ends.fixed_size import FixedSize
from energon_dali.decode.front_ends.frame_video import InternVLVideo, LlavaOnevisionVideo
from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.gemma3 import Gemma3
from energon_dali.decode.front_ends.glm4v import Glm4V
from energon_dali.decode.front_ends.glm4v_video import Glm4VVideo, Glm46VVideo
from energon_dali.decode.front_ends.idefics3 import Idefics3
from energon_dali.decode.front_ends.imagegpt import ImageGPT
from energon_dali.decode.front_ends.internvl import InternVL
from energon_dali.decode.front_ends.llava_next import LlavaNext
from energon_dali.decode.front_ends.llava_onevision import LlavaOnevision
from energon_dali.decode.front_ends.mllama import Mllama
from energon_dali.decode.front_ends.pixtral import Pixtral
from energon_dali.decode.front_ends.processor_config import read_processor, read_video_processor
from energon_dali.decode.front_ends.qwen2_vl import Qwen2VL
from energon_dali.decode.front_ends.qwen_video import Qwen2VLVideo, Qwen3VLVideo
from energon_dali.decode.front_ends.siglip2 import Siglip2
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.decode.front_ends.resampling import Resampling
    from energon_dali.decode.spec import ImageDtype

Made = TypeVar("Made", bound=FrontEnd)

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


VIDEO_FAMILIES: tuple[type[VideoFrontEnd], ...] = (
    Qwen2VLVideo,
    Qwen3VLVideo,
    Glm4VVideo,
    Glm46VVideo,
    InternVLVideo,
    LlavaOnevisionVideo,
)


def make_front_end(
    kind: type[Made], processor: object, dtype: ImageDtype | None, resampling: Resampling | None, fields: dict[str, Any]
) -> Made:
    """Returns the front end for a processor, or for its video half; see `FrontEnd.from_processor`.

    Raises:
        ConfigError: No family covers the processor, or one of its values.
    """
    config = (read_video_processor if issubclass(kind, VideoFrontEnd) else read_processor)(processor)
    families = [family for family in (*FAMILIES, *VIDEO_FAMILIES) if issubclass(family, kind)]
    for family in families:
        if config.type_name in family.processors:
            front_end = family.from_config(config)
            config.finish(family.unused_keys)
            if config.image_token_id is not None:
                fields.setdefault("image_token_id", config.image_token_id)
            if config.video_token_id is not None and issubclass(family, VideoFrontEnd):
                fields.setdefault("video_token_id", config.video_token_id)
            if dtype is None:
                values = front_end.values
                converts = values.rescale is not None or values.mean is not None
                dtype = "float32" if converts or config.arithmetic in family.float_backends else "uint8"
            return front_end.with_fields(dtype=dtype, resampling=resampling or config.arithmetic, **fields)
    known = ", ".join(sorted(name for family in families for name in family.processors))
    if not config.type_name:
        raise ConfigError(
            "There is no front end for a processor that does not name its type: its file has neither "
            "image_processor_type nor video_processor_type. Give the processor that transformers makes of it, or add "
            f"the type. Covered are {known}."
        )
    raise ConfigError(
        f"There is no front end for {config.type_name}. Covered are {known}. Run this processor in encode_sample on "
        "what the decoder gives."
    )
