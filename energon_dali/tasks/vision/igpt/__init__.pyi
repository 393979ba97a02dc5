"""The public names, as type checkers see them; `__init__.py` imports each from its module when it is first used."""

from energon_dali.tasks.vision.gpt2 import (
    GPT2 as GPT2,
)
from energon_dali.tasks.vision.igpt.data import (
    ImageGPTDataConfig as ImageGPTDataConfig,
    ImageGPTDataModule as ImageGPTDataModule,
)
from energon_dali.tasks.vision.igpt.model import (
    GenerativePixelsTransformer as GenerativePixelsTransformer,
    draw_pixels as draw_pixels,
    quantize as quantize,
    to_images as to_images,
)
from energon_dali.tasks.vision.igpt.palette import (
    learn_palette as learn_palette,
    stored_palette as stored_palette,
)

__all__: list[str]
