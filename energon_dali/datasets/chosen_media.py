"""Chooses the clips of large videos before they are read, so that only their groups of pictures are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from energon_dali.av.media_index import MediaIndex
from energon_dali.av.media_indices import MediaIndices
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.datasets.load_sample import part_seed
from energon_dali.decode import Decoder
from energon_dali.decode.media_decoder import MediaDecoder
from energon_dali.errors import DatasetFormatError, ShardError, StorageError
from energon_dali.shards import WebdatasetFolder
from energon_dali.shards.part_source import join_ranges
from energon_dali.shards.ranged_part import ByteRange


class ChosenMedia:
    """A video or sound of which the bytes of some packets are read; see RangedPart.

    Args:
        index: Of the file.
        ranges: What is read, in increasing order.
    """

    def __init__(self, index: MediaIndex, ranges: Sequence[ByteRange]) -> None:
        self.index = index
        self.ranges = ranges

    def content(
        self,
        pieces: Sequence[bytes | memoryview],
        source: Callable[[Sequence[ByteRange]], Sequence[bytes | memoryview]],
    ) -> SparseMedia:
        """Returns the file with the ranges that were read."""
        offsets = [offset for offset, _ in self.ranges]
        return SparseMedia(self.index, zip(offsets, pieces, strict=True), source)


class MediaChooser:
    """Chooses the packets that a decoder will want of the videos and sounds of a dataset; see RangeChooser.

    A file without an index is read whole, and so is one that the decoder needs as a whole.

    Args:
        folder: The dataset; its media indices are opened when the first part is read.
        decoder: Decodes the samples.
    """

    def __init__(self, folder: WebdatasetFolder, decoder: MediaDecoder) -> None:
        self._folder = folder
        self._decoder = decoder
        self._indices: MediaIndices | None = None

    def prepare(self, shards: Iterable[int]) -> None:
        """Fetches the indices of some shards of a remote dataset together."""
        with suppress(DatasetFormatError, StorageError, OSError):
            self._opened().fetch(shards)

    def _opened(self) -> MediaIndices:
        if self._indices is None:
            self._indices = MediaIndices.of_folder(self._folder)
        return self._indices

    def choose(self, shard: int, name: str, offset: int, size: int, seed: int) -> ChosenMedia | None:
        """Returns what to read of a part; None to read it whole.

        Raises:
            ShardError: The index of the part is damaged, which fails this sample alone.
            StorageError: It cannot be read.
        """
        if not self._decoder.takes_sparse(name):
            return None
        try:
            index = self._opened().find(shard, offset)
        except DatasetFormatError as error:
            raise ShardError(f"{name}: {error}", "") from error
        if index is None or index.size_bytes != size:
            return None
        return ChosenMedia(index, join_ranges(self._decoder.choose_ranges(name, index, part_seed(seed, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._folder, self._decoder)


def media_chooser(folder: WebdatasetFolder, decoder: Decoder | None) -> MediaChooser | None:
    """Returns what chooses the clips of a dataset before they are read; None if the decoder takes files whole.

    Args:
        folder: The dataset.
        decoder: Decodes its samples.
    """
    if not isinstance(decoder, MediaDecoder) or not (decoder.takes_sparse("mp4") or decoder.takes_sparse("wav")):
        return None
    return MediaChooser(folder, decoder)
