"""References to files that are fetched later, and pools that may fetch them before they are asked for."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from energon_dali.cache.file_store import FileStore, add_source
from energon_dali.errors import DatasetError
from energon_dali.samples.base import SourceInfo
from energon_dali.shards.storage.store import current_scope

T = TypeVar("T")

_NOTHING: Any = object()


class Lazy(ABC, Generic[T]):
    """A reference to data that `get` returns; equal to every other reference to the same file.

    Samples and batches may contain it. At the worker border and at the decode stage its data is fetched: it arrives in
    the rank with its data, and with media decoded. An error while fetching is raised by `get`, so that only one sample
    fails.

    Args:
        ds: The store; None if the reference already has its data.
        fname: Name of the file in the store.
        pool: Where it is cached; None if it is not.
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
        """Returns the data, which the first call fetches; each call returns the same object.

        Args:
            sample: The source of the data is added to its `__sources__`; None adds nothing.

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
        """Returns (data, where it was read). Called once, and again after a failure."""

    def settle(self) -> None:
        """Fetches the data now; `get` raises the error if that fails."""
        if self._data is _NOTHING and self._error is None:
            try:
                self.get()
            except Exception as error:
                self._error = error

    def replace(self, change: Callable[[Any], Any]) -> None:
        """Fetches the data now and replaces it by `change(data)`."""
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
    """Returns an error if it can be pickled, else one with its text: one reference must not end a whole stream."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return DatasetError(f"{type(error).__name__}: {error}")
    return error


class DirectLazy(Lazy[T]):
    """Reads its file at the first `get`."""

    __slots__ = ()

    def _fetch(self) -> tuple[Any, SourceInfo | None]:
        assert self.ds is not None
        return self.ds[self.fname]


class MockLazy(Lazy[T]):
    """A reference to what a function returns.

    Args:
        fname: Name, for messages and for the function.
        get_fn: Called with the name at the first `get`.
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
    """A reference that has its data, which another process or the decode stage fetched.

    Args:
        identity: Equal for references to the same file; its last entry is the name.
        data: The data.
        error: The error that `get` raises instead.
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


class CachePool(ABC):
    """Returns references to files, and may fetch the files before they are asked for."""

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Returns a file at once.

        Args:
            ds: The store.
            fname: Name of the file in it.
            sample: The source of the file is added to its `__sources__`; None adds nothing.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It cannot be read.
        """
        return ds.get(fname, sample)

    @abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """Returns a reference to a file; the pool may start to fetch the file.

        Args:
            ds: The store.
            fname: Name of the file in it.
        """

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Stores a value and returns a reference to it.

        Args:
            data: The value; picklable.
            name: For messages.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends background threads and removes stored files; may be called more than once."""

    def shared_by(self, processes: int) -> CachePool:
        """Returns the pool for each of several processes, so that together they stay within the limits.

        Args:
            processes: Number of processes, at least 1.

        Returns:
            This pool, or another that the caller must close.
        """
        return self


class NoCachePool(CachePool):
    """Fetches nothing ahead: a reference reads its file at the first `get`."""

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        return DirectLazy(ds, fname, self)

    def to_cache(self, data: T, name: str) -> MockLazy[T]:
        return MockLazy(name, lambda _: data)

    def close(self) -> None:
        pass


_NO_CACHE = NoCachePool()


def active_pool() -> CachePool:
    """Returns the pool of the loader whose hooks run in this thread; a NoCachePool if it has none."""
    return current_scope().cache_pool or _NO_CACHE
