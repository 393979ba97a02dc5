"""References to files that are fetched later: when they are asked for, or ahead of that by a cache pool."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from energon_dali.cache.file_store import FileStore, add_source
from energon_dali.errors import DatasetError
from energon_dali.samples import SourceInfo

if TYPE_CHECKING:
    from energon_dali.cache.pool import CachePool

T = TypeVar("T")

_NOTHING: Any = object()


class Lazy(ABC, Generic[T]):
    """A reference to data that `get` gives; equal to every other reference to the same file.

    It may stand in samples and batches. What crosses from a worker to the rank, or meets the decode stage, is fetched
    there and then: it arrives with its data, and a medium that the rank decodes arrives decoded. A failure to fetch
    is raised by `get`, so that one sample fails alone.

    Args:
        ds: The store; None where the data is at hand.
        fname: Name of the file in it.
        pool: Where it is cached; None where it is not.
    """

    __slots__ = ("_data", "_error", "_identity", "_source", "ds", "fname", "pool")

    def __init__(self, ds: FileStore[Any] | None, fname: str, pool: CachePool | None = None) -> None:
        self.ds = ds
        self.fname = fname
        self.pool = pool
        self._data: Any = _NOTHING
        self._error: Exception | None = None
        self._source: SourceInfo | None = None
        self._identity: tuple[Any, ...] = ("", "", fname) if ds is None else ds.identity(fname)

    def get(self, sample: Any = None) -> T:
        """Returns the data, fetched at the first call, the same object each time.

        Args:
            sample: Where the data was read is added to its `__sources__`; None adds nothing.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It cannot be read.
            DecodeError: It cannot be decoded.
        """
        if self._error is not None:
            raise self._error
        if self._data is _NOTHING:
            self._data, self._source = self._fetch()
        add_source(sample, self._source)
        return cast(T, self._data)

    @abstractmethod
    def _fetch(self) -> tuple[Any, SourceInfo | None]:
        """Returns (data, where it was read); called once, or again after it failed."""

    def settle(self) -> None:
        """Fetches the data now; a failure is kept for `get`."""
        if self._data is _NOTHING and self._error is None:
            try:
                self.get()
            except Exception as error:
                self._error = error

    def replace(self, change: Callable[[Any], Any]) -> None:
        """Fetches the data now and puts what `change` makes of it in its place."""
        self.settle()
        if self._error is None:
            self._data = change(self._data)

    def __reduce__(self) -> tuple[Any, ...]:
        self.settle()
        if self._error is not None:
            return SettledLazy, (self._identity, None, _portable(self._error), self._source)
        return SettledLazy, (self._identity, self._data, None, self._source)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and self._identity == other._identity

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fname!r})"


def _portable(error: Exception) -> Exception:
    """Returns an error as it is if it survives a pickle, else its text: one reference must not end a whole stream."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return DatasetError(f"{type(error).__name__}: {error}")
    return error


class DirectLazy(Lazy[T]):
    """Reads its file when it is first asked for."""

    __slots__ = ()

    def _fetch(self) -> tuple[Any, SourceInfo | None]:
        assert self.ds is not None
        return self.ds[self.fname]


class MockLazy(Lazy[T]):
    """A reference to what a function gives.

    Args:
        fname: Name, for messages and for the function.
        get_fn: Called with the name when the data is first asked for.
    """

    __slots__ = ("get_fn",)

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        super().__init__(None, fname)
        self.get_fn = get_fn
        self._identity = (get_fn, fname)

    def _fetch(self) -> tuple[Any, SourceInfo | None]:
        return self.get_fn(self.fname), None

    def __reduce__(self) -> tuple[Any, ...]:
        kind, (_, data, error, source) = super().__reduce__()
        return kind, (("MockLazy", self.fname), data, error, source)  # the function may not be picklable


class SettledLazy(Lazy[T]):
    """A reference whose data is at hand: what another process, or the decode stage, fetched.

    Args:
        identity: What makes references equal; its last entry is the name.
        data: The data.
        error: What `get` raises instead.
        source: Where the data was read.
    """

    __slots__ = ()

    def __init__(
        self, identity: tuple[Any, ...], data: Any, error: Exception | None = None, source: SourceInfo | None = None
    ) -> None:
        super().__init__(None, identity[-1])
        self._identity = identity
        self._data, self._error, self._source = data, error, source

    def _fetch(self) -> tuple[Any, SourceInfo | None]:
        raise AssertionError("a settled reference has its data")
