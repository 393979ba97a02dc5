"""Cuts images of different sizes, or clips, into the packed patch tokens of native-resolution vision models."""

from __future__ import annotations

from ..normalization import Dtype, Normalization
from ..ragged_images import Layout
from .operation import patchify
from .patches import Grid, Patches

__all__ = ["Dtype", "Grid", "Layout", "Normalization", "Patches", "patchify"]
