"""Files of a prepared dataset of tar shards, by name."""

from __future__ import annotations

import os
import shlex

from energon_dali.cache.file_store import FileStore, split_file_name
from energon_dali.cache.store_index import StoreIndex, unreadable
from energon_dali.calls import explain_call
from energon_dali.errors import (
    DatasetFormatError,
    EnergonDaliError,
    FileMissingError,
    ShardError,
    StoreUnavailableError,
)
from energon_dali.samples.base import SourceInfo
from energon_dali.samples.media_metadata import MediaMetadata
from energon_dali.shards import StoragePath
from energon_dali.shards.index.extents import changed_shard, check_member
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES
from energon_dali.shards.meta.info import read_shard_counts
from energon_dali.shards.storage.open_files import OpenFiles

MAX_OPEN_SHARDS = 128


class WebdatasetFileStore(FileStore[bytes]):
    """Reads single files out of tar shards: `store["0001.jpg"]` is the part `jpg` of the sample `0001`.

    The tar header before each file is read too and compared, so that a shard that changed since it was indexed raises
    an error and never returns another file's bytes. Picklable and thread-safe.

    Args:
        dataset_path: Folder or URL of a prepared dataset.

    Raises:
        DatasetFormatError: It is not prepared.
        StorageError: It cannot be read.
    """

    @explain_call
    def __init__(self, dataset_path: str | os.PathLike[str] | StoragePath) -> None:
        self.root = StoragePath.of(dataset_path)
        self._shards = list(read_shard_counts(self.root))
        self._index = StoreIndex(self.root)
        self._files = OpenFiles(MAX_OPEN_SHARDS)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Returns (content, where it was read) of a file.

        Args:
            key: `KEY.PART`, the name of the file in the tar.

        Raises:
            FileMissingError: There is no such file.
            DatasetFormatError: The index is missing or damaged.
            ShardError: The shard is missing, cannot be read, or changed since it was indexed.
        """
        sample_key, part = split_file_name(key)
        extent = self._index.part(sample_key, part)
        if extent is None:
            raise FileMissingError(
                f"{self.root} has no file {key!r}. Names are KEY.PART, such as 0001.jpg, as they are in the shards."
            )
        number, offset, size = extent
        if not 0 <= number < len(self._shards):
            raise DatasetFormatError(
                f"{self.root} has {len(self._shards)} shards by .info.json, and its index puts {key!r} in shard "
                f"{number}. Run `energon-dali prepare {shlex.quote(str(self.root))}`."
            )
        shard = self._shards[number]
        data = self._read(number, offset - TAR_BLOCK_BYTES, size + TAR_BLOCK_BYTES)
        member = key.encode("utf-8", "surrogateescape")
        common = len(member) < 100 and data.startswith(member + b"\0") and data[124:135] == b"%011o" % size
        if not common:
            check_member(shard, data[:TAR_BLOCK_BYTES], member, size, offset)
        if len(data) < size + TAR_BLOCK_BYTES:
            raise changed_shard(shard, f"it ends before byte {offset + size}")
        return data[TAR_BLOCK_BYTES:], SourceInfo(
            dataset_path=self.root.url, index=key, shard_name=shard, file_names=(key,)
        )

    def get_path(self) -> str:
        return self.root.url

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Returns what `energon-dali prepare --media-metadata-by-...` found out about a media file.

        Raises:
            FileMissingError: There is no metadata of this file.
            DatasetFormatError: The index is missing or damaged, or has no media metadata.
        """
        return self._index.media_metadata(key)

    def close(self) -> None:
        self._files.close()
        self._index.close()

    def _read(self, number: int, offset: int, size: int) -> bytes:
        shard = self._shards[number]
        try:
            reader = self._files.get(self.root / shard)
            if offset + size > reader.size:  # checked before memory is allocated for it
                raise changed_shard(shard, f"it ends before byte {offset + size}")
            return reader.read_at(offset, size)
        except (ShardError, StoreUnavailableError):
            raise
        except FileNotFoundError as error:
            raise ShardError(
                f"{self.root / shard} is missing. Put it back, or run `energon-dali prepare "
                f"{shlex.quote(str(self.root))}` without it.",
                shard,
            ) from error
        except (EnergonDaliError, OSError) as error:
            raise ShardError(str(unreadable(str(self.root / shard), error)), shard) from error

    def __repr__(self) -> str:
        return f"WebdatasetFileStore({self.root})"
