"""Random access to files by name, for cookers that read more than the samples of their dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from energon_dali.errors import DatasetError
from energon_dali.samples.base import SourceInfo
from energon_dali.samples.media_metadata import MediaMetadata

T = TypeVar("T")


class FileStore(ABC, Generic[T]):
    """Files that are found by their names.

    Your own store needs `__getitem__` and `get_path`. Stores travel to worker processes and several threads use them at
    a time: a store must be picklable, and open its files when they are first used.
    """

    @abstractmethod
    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        """Returns (content, where it was read) of a file.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It cannot be read.
        """

    @abstractmethod
    def get_path(self) -> str:
        """Returns the path or URL of the store."""

    def get(self, key: str, sample: Any = None) -> T:
        """Returns the content of a file, and adds its source to the `__sources__` of a sample.

        Args:
            key: Name of the file.
            sample: A crude sample, Sample or batch; None adds nothing.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It cannot be read.
        """
        content, source = self[key]
        add_source(sample, source)
        return content

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Returns what the index says about a media file, without decoding it.

        Raises:
            DatasetError: This store has no media metadata, or none of this file.
        """
        raise DatasetError(
            f"{self.get_path()} has no media metadata ({type(self).__name__}). Run `energon-dali prepare-media` on the "
            "dataset and read it as a dataset or a folder, or decode the file."
        )

    def read_encoded(self, key: str) -> tuple[Any, SourceInfo]:
        """Returns (content before any decoding, where it was read), for a cache on disk.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It cannot be read.
        """
        return self[key]

    def decode_content(self, key: str, content: Any, source: SourceInfo) -> T:
        """Returns the content of `self[key]`, made from that of `read_encoded`.

        Raises:
            DecodeError: It cannot be decoded.
        """
        return content  # type: ignore[no-any-return]

    def identity(self, key: str) -> tuple[str, str, str]:
        """Returns a unique identity of a file: (kind of store, path of the store, full name)."""
        return type(self).__qualname__, self.get_path(), key

    def close(self) -> None:
        """Closes open files; they are opened again when needed."""


class WrappedFileStore(FileStore[T]):
    """A store that gives what another one has, under the same names unless a subclass says otherwise.

    Args:
        inner: The other store.
    """

    def __init__(self, inner: FileStore[Any]) -> None:
        self.inner = inner

    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        return self.inner[self._inner_name(key)]

    def get_path(self) -> str:
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadata:
        return self.inner.get_media_metadata(self._inner_name(key))

    def read_encoded(self, key: str) -> tuple[Any, SourceInfo]:
        return self.inner.read_encoded(self._inner_name(key))

    def decode_content(self, key: str, content: Any, source: SourceInfo) -> T:
        found: T = self.inner.decode_content(self._inner_name(key), content, source)
        return found

    def identity(self, key: str) -> tuple[str, str, str]:
        return self.inner.identity(self._inner_name(key))

    def close(self) -> None:
        self.inner.close()

    def _inner_name(self, key: str) -> str:
        return key


class PrimaryFileStore(WrappedFileStore[T]):
    """A store in which names that begin with a dot are the parts of one sample.

    Args:
        inner: The store.
        current_key: Key of the sample: ".jpg" is then `{current_key}.jpg`.
    """

    def __init__(self, inner: FileStore[T], current_key: str) -> None:
        super().__init__(inner)
        self._current_key = current_key

    def _inner_name(self, key: str) -> str:
        return f"{self._current_key}{key}" if key.startswith(".") else key

    def __repr__(self) -> str:
        return f"PrimaryFileStore({self.inner!r}, {self._current_key!r})"


def add_source(sample: Any, source: SourceInfo | None) -> None:
    """Adds a source to the `__sources__` of a sample, unless it has it already.

    Args:
        sample: A dict, Sample or batch; anything else is not changed.
        source: The source; None adds nothing.
    """
    if sample is None or source is None:
        return
    if isinstance(sample, dict):
        known = sample.get("__sources__") or ()
        if source not in known:
            sample["__sources__"] = (*known, source)
    elif hasattr(sample, "__sources__"):
        known = sample.__sources__ or ()
        if source not in known:
            sample.__sources__ = (*known, source)


def split_file_name(name: str) -> tuple[str, str]:
    """Returns (sample key, part name) of a file name: the text before and after the first dot of its last component."""
    directory, slash, base = name.rpartition("/")
    key, _, part = base.partition(".")
    return f"{directory}{slash}{key}", part
