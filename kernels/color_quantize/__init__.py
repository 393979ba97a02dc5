"""Replaces each pixel by the nearest of K palette colours: the tokens of models that draw with a palette."""

from __future__ import annotations

from .operation import IndexDtype, color_quantize
from .palette import Palette

__all__ = ["IndexDtype", "Palette", "color_quantize"]
