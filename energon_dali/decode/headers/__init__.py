"""Readers of image headers in pure Python, one format per file."""

from __future__ import annotations

from energon_dali.decode.headers.header import ImageHeader

__all__ = ["ImageHeader"]
