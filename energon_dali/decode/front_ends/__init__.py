"""Front ends of vision-language models: the output of a processor, declared and computed by the decoder."""

from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, VideoLayout, View
from energon_dali.decode.front_ends.multimodal_rope import MultimodalRope
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd, VideoInput
from energon_dali.decode.front_ends.vision_batch import batch_vision

__all__ = [
    "FrontEnd",
    "ImageLayout",
    "MultimodalRope",
    "VideoFrontEnd",
    "VideoInput",
    "VideoLayout",
    "View",
    "VisionInput",
    "batch_vision",
]
