"""Front ends of vision-language models: what a processor makes of an image, declared and computed by the decoder."""

from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.vision_input import VisionInput, batch_vision

__all__ = ["FrontEnd", "ImageLayout", "View", "VisionInput", "batch_vision"]
