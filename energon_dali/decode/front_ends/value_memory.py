"""Memory for the values of a batch, which are tens to hundreds of megabytes."""

from __future__ import annotations

import weakref
from collections import deque
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_LARGE_BYTES = 32 << 20
"""Memory of at least this size is requested from the system each time, and returned to it: glibc's largest threshold
(M_MMAP_THRESHOLD)."""
_ALIGNMENT = 64
"""As torch aligns its memory: a cache line."""
_LARGEST_KEPT = 4
"""Kept memory is used for values of at least one in this many of its bytes."""
_kept: deque[NDArray[np.uint8]] = deque(maxlen=1)
"""The memory of the last batch that nothing refers to any more. Appending to it is safe in any thread and takes no
lock, as a garbage collector's callback requires."""


def empty_values(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a contiguous tensor whose values are not set.

    A large one on the CPU may be in memory that the process used for an earlier batch: writing to fresh memory takes
    ten times as long as writing to it again (58 ms and 6 ms for 120 MB).

    Args:
        shape: Of the tensor.
        dtype: Likewise.
        device: Likewise.
    """
    import torch

    size = prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _LARGE_BYTES:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    memory = _take(size)
    visible = memory[:size]
    # The tensor keeps `visible`, and so does every view of it.
    weakref.finalize(visible, _kept.append, memory).atexit = False
    return torch.from_numpy(visible).view(dtype).view(tuple(shape))


def zero_values(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns the same, with all values zero."""
    return empty_values(shape, dtype, device).zero_()


def _take(size: int) -> NDArray[np.uint8]:
    """Returns at least `size` bytes that nothing else refers to."""
    try:
        memory = _kept.pop()
    except IndexError:
        memory = None
    if memory is not None and size <= len(memory) <= _LARGEST_KEPT * size:
        return memory
    # A quarter more, so that a slightly larger batch fits too. NumPy asks Linux for pages of 2 MiB, torch does not.
    fresh = np.empty(size + size // 4 + _ALIGNMENT, np.uint8)
    return fresh[-fresh.ctypes.data % _ALIGNMENT :]
