"""Front ends of vision-language models: the output of a processor, declared and computed by the decoder."""

from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, VideoLayout, View
from energon_dali.decode.front_ends.multimodal_rope import MultimodalRope
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.registration import register_front_end
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd, VideoInput
from energon_dali.decode.front_ends.vision_batch import batch_vision

__all__ = [
    "FrontEnd",
    "ImageLayout",
    "MultimodalRope",
    "ProcessorConfig",
    "VideoFrontEnd",
    "VideoInput",
    "VideoLayout",
    "View",
    "VisionInput",
    "batch_vision",
    "register_front_end",
]
