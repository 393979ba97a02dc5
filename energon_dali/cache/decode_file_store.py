"""A store whose files are decoded when they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol
from zlib import crc32

from energon_dali.cache.file_store import FileStore, WrappedFileStore, split_file_name
from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.samples.base import SourceInfo


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
