"""Decoding with NVIDIA DALI. Nothing outside this folder imports DALI, and here only functions do, when they run.

`decoder` has the options. `dispatch` chooses an engine, or PIL or PyAV, for each file, and sends blocks there; where
several could, `thresholds` says which is faster. `images/` and `video/` define the pipelines and run them; both use
`runtime/`, which imports neither.
"""

from __future__ import annotations

from energon_dali.decode.dali.decoder import DaliDecoder
from energon_dali.decode.dali.runtime.blocks import MemoryUse
from energon_dali.decode.dali.runtime.engine import close_engines, memory_use, release_memory
from energon_dali.decode.dali.tuning import DaliTuning

__all__ = ["DaliDecoder", "DaliTuning", "MemoryUse", "close_engines", "memory_use", "release_memory"]
