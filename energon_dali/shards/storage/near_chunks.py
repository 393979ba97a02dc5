"""Small parts of local files that are near each other: a chunk of the file is read once, and they are taken out of it.

A sample of some hundred bytes takes less time to parse than a read takes, even from the page cache. Where the window of
the shuffle stays within few slices, the samples of a chunk are wanted soon after each other.
"""

from __future__ import annotations

from collections import deque

from energon_dali.shards.storage.local import LocalReader

CHUNK_BITS = 16
CHUNK_BYTES = 1 << CHUNK_BITS
"""Reading this much from the page cache takes about five times as long as reading 800 bytes."""
SMALL_BYTES = 4096
"""Larger ranges are read alone: views of them would keep whole chunks in memory."""
KEPT_BYTES = 16 << 20
"""Most memory of all chunks of this process."""
_FEW_SAMPLES = 8
"""Samples that are read together, below which no chunk is read: a blend takes one sample of each of its datasets."""
_TRIED_CHUNKS = 64
_LEAST_USES = 8
"""Mean number of samples that are taken out of a chunk, below which no more chunks are read."""

_kept: deque[tuple[dict[int, bytes], int]] = deque()
"""The chunks that were read, oldest first: where each is kept, and under which number."""


class NearChunks:
    """Decides for one dataset whether chunks are read. All datasets of a process share the memory."""

    def __init__(self) -> None:
        self.are_expected = False
        """Whether the samples of a chunk are expected soon after each other."""
        self.are_wanted = False
        """Whether the samples of the current read are taken out of chunks."""
        self._chunks_read = 0
        self._samples_read = 0

    def begin_read(self, num_samples: int) -> None:
        """Decides how samples that are read together are read; gives up if chunks were read for too few of them."""
        self.are_wanted = self.are_expected and num_samples >= _FEW_SAMPLES
        if not self.are_wanted:
            return
        self._samples_read += num_samples
        if self._chunks_read >= _TRIED_CHUNKS:
            self.are_expected = self.are_wanted = self._samples_read >= self._chunks_read * _LEAST_USES
            self._chunks_read = self._samples_read = 0

    def read(self, reader: LocalReader, number: int, kept: dict[int, bytes]) -> bytes:
        """Returns a chunk of a file, and keeps it; shorter at the end of the file.

        One that cannot be read is empty: its samples are then read alone, so that a bad sector loses only the one that
        it is in.

        Args:
            reader: The file.
            number: Number of the chunk.
            kept: The chunks of the file that are in memory, by number. Receives this one.
        """
        start = number << CHUNK_BITS
        chunk = kept[number] = reader.try_read(start, max(0, min(CHUNK_BYTES, reader.size - start))) or b""
        self._chunks_read += 1
        _kept.append((kept, number))
        while len(_kept) * CHUNK_BYTES > KEPT_BYTES:
            try:
                oldest, oldest_number = _kept.popleft()
            except IndexError:  # another thread was faster
                break
            oldest.pop(oldest_number, None)
        return chunk
