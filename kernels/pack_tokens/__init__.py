"""Packs token sequences of different lengths into rows of one length, for variable-length attention."""

from __future__ import annotations

from .operation import pack_tokens
from .rows import PackedTokens, Place, place_sequences

__all__ = ["PackedTokens", "Place", "pack_tokens", "place_sequences"]
