"""GPT-2 over pixels and its layer, under the module name that the guide of custom tasks imports them from."""

from __future__ import annotations

from energon_dali.tasks.vision.igpt.gpt2 import GPT2, Block

__all__ = ["GPT2", "Block"]
