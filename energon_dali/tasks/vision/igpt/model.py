"""The task of Image GPT and what it makes of images, under the module name that the guide of custom tasks has."""

from __future__ import annotations

from energon_dali.tasks.vision.igpt.sequence import _to_sequence, quantize
from energon_dali.tasks.vision.igpt.task import GenerativePixelsTransformer

__all__ = ["GenerativePixelsTransformer", "_to_sequence", "quantize"]
