"""Random access to files by name, for cookers that read more than the samples of their dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar
from zlib import crc32

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, DatasetError, DecodeError
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


class FileStoreDecoder(ABC):
    """Decodes files by their names; SampleDecoder and DaliDecoder do so too."""

    @abstractmethod
    def decode(self, fname: str, data: bytes) -> Any:
        """Returns the decoded content of a file.

        Args:
            fname: Name of the file; its suffix says what it is.
            data: Its content.
        """


class StagingDecoder(Protocol):
    """A decoder that may leave media encoded in the worker, to be decoded later in a block."""

    def stage(self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None) -> Any:
        """Returns what a file becomes in the worker: a decoded value, or a handle."""


class DecodeFileStore(WrappedFileStore[Any]):
    """Decodes the files of another store.

    With a decoder that works in the rank's process (DaliDecoder) media become handles, which the decode stage decodes
    in the same blocks as the media of the samples; `handle.decode()` returns the pixels at once.

    Args:
        inner: Store of encoded files.
        decoder: SampleDecoder, DaliDecoder, or your own FileStoreDecoder.
        seed: Seed of the current sample, for random operations of the decoder; None uses seed 0 for all.
        name: Distinguishes, for random operations, stores whose files have equal names.
        current_key: Key of the sample, if `inner` has the parts of samples: its parts then get the seeds that they
            have in the sample itself.

    Raises:
        ConfigError: The decoder is not one.
    """

    @explain_call
    def __init__(
        self,
        inner: FileStore[Any],
        *,
        decoder: FileStoreDecoder | StagingDecoder,
        seed: int | None = None,
        name: str = "",
        current_key: str | None = None,
    ) -> None:
        if isinstance(decoder, type) or not (hasattr(decoder, "stage") or hasattr(decoder, "decode")):
            raise ConfigError(
                f"DecodeFileStore was given the decoder {decoder!r}, which has no decode(fname, data). Give "
                "SampleDecoder(), DaliDecoder(), or a FileStoreDecoder."
            )
        super().__init__(inner)
        self.decoder = decoder
        self._sample_seed = seed
        self._name = name
        self._current_key = current_key

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        content, source = self.inner.read_encoded(key)
        return self.decode_content(key, content, source), source

    def decode_content(self, key: str, content: Any, source: SourceInfo) -> Any:
        """Returns the decoded content of a file, or a handle for media.

        Raises:
            DecodeError: It cannot be decoded; the message names it.
        """
        content = self.inner.decode_content(key, content, source)
        if not isinstance(content, (bytes, memoryview)):
            return content  # the store returns values, not files
        try:
            decoder: Any = self.decoder
            if getattr(decoder, "overrides_decode", False):
                return decoder.decode_part(key, content, seed=self._seed(key), source=source)
            stage = getattr(decoder, "stage", None)
            if stage is not None:
                return stage(suffix_of(key), content, seed=self._seed(key), source=source)
            return decoder.decode(key, bytes(content))
        except DecodeError as error:
            raise DecodeError(f"{key} of {self.get_path()}: {error.reason}", error.format, error.route) from error

    def for_sample(self, seed: int, current_key: str | None = None) -> DecodeFileStore:
        """Returns this store with the seed of one sample; both share the open files."""
        return DecodeFileStore(self.inner, decoder=self.decoder, seed=seed, name=self._name, current_key=current_key)

    def _seed(self, key: str) -> int:
        if self._sample_seed is None:
            return 0
        sample, part = split_file_name(key)
        name = part if sample == self._current_key else f"{self._name}/{key}"
        return self._sample_seed ^ crc32(name.encode("utf-8", "surrogatepass"))

    def __repr__(self) -> str:
        return f"DecodeFileStore({self.inner!r}, decoder={type(self.decoder).__name__})"


def suffix_of(key: str) -> str:
    """Returns the suffix of a file name, with the one before it if it is `.gz`; "" if it has none.

    A decoder remembers the meaning of each name that it was given, so it must not get a new name with every file.
    """
    pieces = key.rpartition("/")[2].split(".")
    if len(pieces) == 1:
        return ""
    return ".".join(pieces[-2:]) if pieces[-1].lower() == "gz" and len(pieces) > 2 else pieces[-1]


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
