"""Files of a folder, by path."""

from __future__ import annotations

import os
import posixpath

from energon_dali.cache.file_store import FileStore
from energon_dali.cache.store_index import StoreIndex, unreadable
from energon_dali.calls import explain_call
from energon_dali.errors import DatasetError, FileMissingError, StorageError, StoreUnavailableError
from energon_dali.samples.base import SourceInfo
from energon_dali.samples.media_metadata import MediaMetadata
from energon_dali.shards import StoragePath


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
