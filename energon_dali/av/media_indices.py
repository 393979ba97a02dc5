"""The media indices of a dataset, found by the place of a sample; nothing of the sample is read."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from energon_dali.av.media_index import MediaIndex
from energon_dali.av.stored_index import read_media_index
from energon_dali.shards.folder import WebdatasetFolder
from energon_dali.shards.index.extent_index import UUID_NAME, read_uuid
from energon_dali.shards.index.media_index_file import (
    MEDIA_INDEX_NAME,
    MediaIndexFile,
    place_of_name,
    reason_in_entry,
)
from energon_dali.shards.meta.document import META
from energon_dali.shards.storage import StoragePath

_KEPT_PACKETS = 1 << 20
"""Packets of parsed indices that are kept, about 70 bytes each."""
_log = logging.getLogger(__name__)


class MediaIndices:
    """The media indices of a dataset or of a plain folder of files.

    A file `.nv-meta/media_index.bin` that was made for other samples is not used, and a warning says so once.
    Picklable; each process opens the file on first use. Not thread-safe.

    Args:
        root: Folder of the dataset, or of media files.
        shard_counts: Number of samples of each shard; none for a plain folder.
    """

    def __init__(self, root: StoragePath, shard_counts: dict[str, int]) -> None:
        self.root = root
        self.shard_counts = shard_counts
        self._forget()

    @classmethod
    def of_folder(cls, folder: WebdatasetFolder) -> MediaIndices:
        """Returns those of a prepared dataset."""
        return cls(folder.root, folder.index.shard_counts)

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._file: MediaIndexFile | None = None
        self._is_open = False
        self._obstacle = ""
        self._parsed: OrderedDict[tuple[int, int], MediaIndex] = OrderedDict()
        self._packets = 0

    @property
    def obstacle(self) -> str:
        """Why no media of the dataset have an index; "" if some may have one.

        Raises:
            StorageError: The file cannot be read.
            DatasetFormatError: It is damaged.
        """
        self._open()
        return self._obstacle

    def find(self, shard_index: int, place: int) -> MediaIndex | None:
        """Returns the index of a media part; None if it has none, and is read whole.

        Args:
            shard_index: Index of the shard.
            place: Offset of the content of the part in the shard, as `ShardExtents.parts` returns it.

        Raises:
            DatasetFormatError: The index is damaged.
            StorageError: It cannot be read.
        """
        file = self._open()
        if file is None or not 0 <= shard_index < file.num_sections:
            return None
        key = (shard_index, place)
        found = self._parsed.get(key)
        if found is not None:
            self._parsed.move_to_end(key)
            return found
        entry = file.entry(shard_index, place)
        if entry is None or reason_in_entry(entry):
            return None
        found = read_media_index(entry)
        self._parsed[key] = found
        self._packets += found.num_packets
        while self._packets > _KEPT_PACKETS and len(self._parsed) > 1:
            self._packets -= self._parsed.popitem(last=False)[1].num_packets
        return found

    def fetch(self, shard_indices: Iterable[int]) -> None:
        """Fetches what is stored about shards of a remote dataset, several at a time, so that `find` does not wait.

        Args:
            shard_indices: The shards.

        Raises:
            DatasetFormatError: The file is damaged.
            StorageError: It cannot be read.
        """
        file = self._open()
        if file is not None:
            file.fetch(number for number in shard_indices if 0 <= number < file.num_sections)

    def find_file(self, name: str) -> MediaIndex | None:
        """Returns the index of a file of a plain folder, by its path below the folder; None if it has none.

        Raises:
            DatasetFormatError: The index is damaged.
            StorageError: It cannot be read.
        """
        return self.find(0, place_of_name(name))

    def reason(self, shard_index: int, place: int) -> str:
        """Returns why a media part has no index; "" if it has one.

        Args:
            shard_index: Index of the shard.
            place: As in `find`.

        Raises:
            DatasetFormatError: The index is damaged.
            StorageError: It cannot be read.
        """
        file = self._open()
        if file is None or not 0 <= shard_index < file.num_sections:
            return self._obstacle or "there is no such shard"
        entry = file.entry(shard_index, place)
        return "it was not selected as media when they were indexed" if entry is None else reason_in_entry(entry)

    def close(self) -> None:
        """Closes the file; it is opened again when needed."""
        if self._file is not None and self._pid == os.getpid():
            self._file.close()
        self._forget()

    def _open(self) -> MediaIndexFile | None:
        if self._pid != os.getpid():
            self._forget()
        if self._is_open:
            return self._file
        path = self.root / META / MEDIA_INDEX_NAME
        command = f"energon-dali prepare-media {self.root.quoted} --media-metadata-by-extension"
        try:
            file = MediaIndexFile(path)
        except FileNotFoundError:
            self._obstacle = f"{path} does not exist. Run `{command}`."
        else:
            if file.belongs_to(read_uuid(self.root) if self.shard_counts else "", self.shard_counts):
                self._file = file
            else:
                file.close()
                self._obstacle = (
                    f"{path} was made for other samples than those of {UUID_NAME} and .info.json, and is not used: "
                    f"videos and audio files are read whole. Run `{command}`."
                )
                _log.warning("%s", self._obstacle)
        self._is_open = True
        return self._file

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.shard_counts)

    def __repr__(self) -> str:
        return f"MediaIndices({self.root}, {len(self.shard_counts)} shards)"
