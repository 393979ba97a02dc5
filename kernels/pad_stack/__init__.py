"""Stacks images of different sizes to one padded batch, and normalises, mirrors and transposes them in one pass."""

from __future__ import annotations

from ..normalization import Dtype, Normalization
from ..ragged_images import Layout
from .operation import pad_stack

__all__ = ["Dtype", "Layout", "Normalization", "pad_stack"]
