"""Stores of the files of a dataset by name: parts of samples in tar shards, files of a folder, lines of JSONL."""

from __future__ import annotations

import os
import posixpath
import shlex

from energon_dali.cache.file_store import FileStore, split_file_name
from energon_dali.cache.store_index import StoreIndex, unreadable
from energon_dali.calls import explain_call
from energon_dali.errors import (
    DatasetError,
    DatasetFormatError,
    EnergonDaliError,
    FileMissingError,
    ShardError,
    StorageError,
    StoreUnavailableError,
)
from energon_dali.samples import SourceInfo
from energon_dali.samples.media_metadata import MediaMetadata
from energon_dali.shards import StoragePath
from energon_dali.shards.index.extents import changed_shard, check_member
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES
from energon_dali.shards.jsonl import JsonlFile, JsonlReader
from energon_dali.shards.meta.info import read_shard_counts
from energon_dali.shards.storage import OpenFiles

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


class SystemFileStore(FileStore[bytes]):
    """Reads files below a folder or URL: `store["train/0001.jpg"]`.

    Names come from datasets, so they cannot leave the folder: neither by `..`, nor as absolute paths, nor by symbolic
    links. Picklable and thread-safe.

    Args:
        base_dir: The folder, as a local path or URL. None takes absolute paths and URLs of any file that this process
            may read: for names from the program, not for names from datasets.
        follow_links: Whether to follow symbolic links out of the folder, if you trust the folder.

    Raises:
        StorageError: The URL's scheme is not known.
    """

    @explain_call
    def __init__(
        self, base_dir: str | os.PathLike[str] | StoragePath | None = None, *, follow_links: bool = False
    ) -> None:
        self.base_dir = None if base_dir is None else StoragePath.of(base_dir)
        self.follow_links = follow_links
        self._index = None if self.base_dir is None else StoreIndex(self.base_dir)
        self._real_base: str | None = None

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Returns (content, where it was read) of a file.

        Args:
            key: Path below the folder; without a folder, an absolute path or URL.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: The name leads out of the folder, is not a file, or cannot be read.
        """
        path = self._resolve(key)
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileMissingError(f"{self.get_path() or 'The file system'} has no file {key!r}.") from error
        except StoreUnavailableError:
            raise
        except (StorageError, OSError, ValueError) as error:
            raise unreadable(path.url, error) from error
        base = self.get_path()
        return content, SourceInfo(dataset_path=base, index=key, shard_name=base, file_names=(key,))

    def get_path(self) -> str:
        return "" if self.base_dir is None else self.base_dir.url

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Returns what `energon-dali prepare-media` found out about a media file.

        Raises:
            FileMissingError: There is no metadata of this file.
            DatasetError: There is no folder, or no index in it, or it is damaged.
        """
        if self._index is None:
            raise DatasetError("A SystemFileStore without base_dir has no media metadata. Give it a base_dir.")
        return self._index.media_metadata(key)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()

    def _resolve(self, key: str) -> StoragePath:
        """Returns the path of a file.

        Raises:
            DatasetError: The name leads out of the folder.
        """
        if self.base_dir is None:
            path = StoragePath.of(key)
            if path.is_local and not os.path.isabs(os.path.expanduser(key)) and "://" not in key:
                raise DatasetError(
                    f"{key!r} is not an absolute path, and the SystemFileStore has no base_dir. Give it one, or give "
                    "absolute paths."
                )
            return path
        name = posixpath.normpath(key)
        outside = not key or key.startswith("/") or name == ".." or name.startswith("../") or "\0" in key
        if not outside and self.base_dir.is_local and not self.follow_links:
            base = self._real_base = self._real_base or os.path.realpath(self.base_dir.url)
            real = os.path.realpath(os.path.join(base, name))
            if os.path.commonpath((base, real)) == base:
                return StoragePath(real)
            outside = True
        if outside:
            raise DatasetError(
                f"{key!r} leads out of {self.base_dir}, which names from a dataset must not. Give paths below the "
                "folder, or SystemFileStore(..., follow_links=True) if it may follow symbolic links."
            )
        return self.base_dir / name

    def __repr__(self) -> str:
        return f"SystemFileStore({self.get_path()!r})"


class JsonlFileStore(FileStore[bytes]):
    """Reads lines of a prepared JSONL file: `store["5.json"]`, or `store["5"]`, is the sixth.

    Picklable and thread-safe.

    Args:
        path: The `.jsonl` file.

    Raises:
        DatasetFormatError: It is not prepared, or has changed since.
        StorageError: It cannot be read.
    """

    @explain_call
    def __init__(self, path: str | os.PathLike[str] | StoragePath) -> None:
        self.file = JsonlFile(path)
        self._reader = JsonlReader(self.file)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Returns (line, where it was read).

        Args:
            key: Number of the line, blank lines not counted, with or without the suffix `.json`.

        Raises:
            FileMissingError: There is no such line.
            DatasetError: It cannot be read.
        """
        number = key.removesuffix(".json")
        if not (number.isascii() and number.isdigit() and int(number) < self.file.num_samples):
            raise FileMissingError(
                f"{self.file.path} has no line {key!r}. Its lines are 0.json to {self.file.num_samples - 1}.json."
            )
        (raw,) = self._reader.read([0], [int(number)])
        if isinstance(raw, DatasetError):
            raise raw
        source = SourceInfo(
            dataset_path=self.file.path, index=int(number), shard_name=raw.shard, file_names=(f"{raw.key}.json",)
        )
        return bytes(raw.parts["json"]), source

    def get_path(self) -> str:
        return self.file.path

    def close(self) -> None:
        self._reader.close()

    def __repr__(self) -> str:
        return f"JsonlFileStore({self.file.path})"
