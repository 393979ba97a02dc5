"""What fetches files ahead of their use, and the pool that does not."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, TypeVar

from energon_dali.cache.file_store import FileStore
from energon_dali.cache.lazy import DirectLazy, Lazy, MockLazy

T = TypeVar("T")


class CachePool(ABC):
    """Gives references to files, and may fetch them before they are asked for."""

    @abstractmethod
    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Returns a file at once.

        Args:
            ds: The store.
            fname: Name of the file in it.
            sample: Where the file was read is added to its `__sources__`; None adds nothing.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It cannot be read.
        """

    @abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """Returns a reference to a file, which may be fetched from now on.

        Args:
            ds: The store.
            fname: Name of the file in it.
        """

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Puts a value away, and returns a reference to it.

        Args:
            data: The value; picklable.
            name: For messages.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends what works in the background and removes what was stored; may be called again."""

    def shared_by(self, processes: int) -> CachePool:
        """Returns the pool that each of several processes uses, so that they keep the limits together.

        Args:
            processes: How many there are, at least 1.

        Returns:
            This pool, or one that is closed by whoever asked for it.
        """
        return self


class NoCachePool(CachePool):
    """Fetches nothing ahead: references read their file when they are asked."""

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        return DirectLazy(ds, fname, self)

    def to_cache(self, data: T, name: str) -> MockLazy[T]:
        return MockLazy(name, lambda _: data)

    def close(self) -> None:
        pass


class _Active(threading.local):
    """The pool of the hooks that run in a thread."""

    pool: CachePool | None = None


_ACTIVE = _Active()
_NO_CACHE = NoCachePool()


def active_pool() -> CachePool:
    """Returns the pool that the loader was given whose hooks run in this thread; a NoCachePool if it has none."""
    return _ACTIVE.pool or _NO_CACHE


class pool_context:  # noqa: N801 - read as a statement: with pool_context(pool)
    """Makes a pool that of the hooks that run in this thread, as a `with` block.

    Args:
        pool: The pool; None is a NoCachePool.
    """

    __slots__ = ("_before", "_pool")

    def __init__(self, pool: CachePool | None) -> None:
        self._pool = pool
        self._before: CachePool | None = None

    def __enter__(self) -> None:
        self._before, _ACTIVE.pool = _ACTIVE.pool, self._pool

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _ACTIVE.pool = self._before
