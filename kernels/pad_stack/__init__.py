"""Puts images of different sizes into one padded batch: normalised, mirrored and laid out in a single pass."""

from __future__ import annotations

from ..normalization import Dtype, Normalization
from ..ragged_images import Layout
from .operation import pad_stack

__all__ = ["Dtype", "Layout", "Normalization", "pad_stack"]
