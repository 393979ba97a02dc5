"""Buffers that are used again as soon as nobody sees what they hold: for reads of local files, and for results.

The allocator gives the memory of large freed objects back to the system, which clears every page before the next read
may write to it: for a part of 100 KB that takes longer than reading it from the page cache.
"""

from __future__ import annotations

from collections import deque

LEAST_BYTES = 32 << 10
"""Smaller reads are left to the allocator, which keeps their memory."""
MOST_BYTES = 4 << 20
"""Larger ones too: clearing their pages is a small part of decoding them."""
KEPT_BYTES = 64 << 20
"""Most memory of all buffers for reading that a process keeps."""
_STEP_BYTES = 32 << 10
_TRIED = 4
"""Buffers that are looked at before a new one is made."""


class ReusedBuffers:
    """Buffers of a process by size. Thread-safe without a lock: appending to a deque and popping from it are atomic.

    Args:
        kept_bytes: Most memory of all buffers that are kept, whether they are in use or not.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most_kept = kept_bytes
        self._queues: dict[int, deque[bytearray]] = {}
        self._kept_bytes = 0

    def take(self, size: int) -> memoryview:
        """Returns `size` writable bytes that nobody else sees; they may hold anything.

        The buffer is used again when the last view of it is gone: a slice, an array or a tensor of it is a view.

        Args:
            size: Number of bytes; LEAST_BYTES to MOST_BYTES is where this takes less time than the allocator.
        """
        capacity = -(-size // _STEP_BYTES) * _STEP_BYTES
        queue = self._queues.setdefault(capacity, deque())
        # They are released in about the order in which they were taken, so that one of the oldest is free if any is.
        for _ in range(_TRIED):
            try:
                buffer = queue.popleft()
            except IndexError:
                break
            view = memoryview(buffer) if _is_unseen(buffer) else None  # before another thread can find the buffer
            queue.append(buffer)
            if view is not None:
                return view[:size]
        return self._new(queue, capacity)[:size]

    def _new(self, queue: deque[bytearray], capacity: int) -> memoryview:
        buffer = bytearray(capacity)
        view = memoryview(buffer)
        if self._kept_bytes + capacity <= self._most_kept:
            self._kept_bytes += capacity
            queue.append(buffer)
        return view

    def clear(self) -> None:
        """Drops all buffers; what is still seen stays valid."""
        self._queues.clear()
        self._kept_bytes = 0


def _is_unseen(buffer: bytearray) -> bool:
    """Returns whether there is no view of a buffer: only then may its size change."""
    try:
        del buffer[-1:]
    except BufferError:
        return False
    buffer.append(0)  # its memory stays where it is
    return True


READ_BUFFERS = ReusedBuffers()
"""The buffers of this process for all readers."""
