"""The data of Image GPT, under the module name that the guide of custom tasks imports it from."""

from __future__ import annotations

from energon_dali.tasks.vision.igpt.config import ImageGPTDataConfig
from energon_dali.tasks.vision.igpt.data_module import ImageGPTDataModule

__all__ = ["ImageGPTDataConfig", "ImageGPTDataModule"]
