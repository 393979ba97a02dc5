"""Remote clients and forks: whether a client was used, and an obstore that works in a forked child.

obstore runs its requests on threads of its own, which a forked child does not have: every request of the child would
wait forever, through new stores too, because the runtime belongs to the loaded library. So the child loads the library
a second time, as a copy in memory. A child that was forked before the first request shares the library with its parent.

The copy costs a child little more than loading the library first would: 12 ms of CPU and 5 MiB, compared with 8 ms and
6 MiB (obstore 0.12.1, proportional set size). So the trainer uses the library too: reading its documents in a process
of its own would take 240 ms of CPU and 27 MiB, and a client with botocore's signing 92 ms and 12 MiB, for s3:// alone.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Protocol

from energon_dali.errors import StorageError

_PACKAGE = "obstore"
_LIBRARY = "obstore._obstore"
_RUNTIME_THREADS = "1"
"""Threads of obstore's runtime; its default is one per core in every worker. It receives up to 2 GB/s, and requests are
not bounded by it. With two or four, handing work from thread to thread took a quarter more CPU per request."""


class ForkAware(Protocol):
    """An object that holds connections or locks."""

    def after_fork(self) -> None:
        """Drops them in a forked child; the next use creates new ones."""


class _Clients:
    """The remote clients of this process."""

    def __init__(self) -> None:
        self.in_use = False
        self.stale = False
        """Whether the loaded obstore belongs to the parent."""
        self.obstore: ModuleType | None = None
        self.lock = threading.Lock()
        self.fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


_clients = _Clients()


def storage_in_use() -> bool:
    """Returns whether this process has sent requests to an object store.

    Its clients have threads and connections, which a forked child does not have. A child can still read, because the
    clients are recreated in it, but "spawn" and "forkserver" avoid the copy of the library that this takes.
    """
    return _clients.in_use


def mark_in_use() -> None:
    """Records that a client of an object store is about to send its first request."""
    _clients.in_use = True


def drop_in_child(holder: ForkAware) -> None:
    """Calls `holder.after_fork()` in forked children; holds no reference to it."""
    _clients.fork_aware.add(holder)


def never_finalise(stores: Iterable[object]) -> None:
    """Keeps the parent's stores in a forked child, also while the interpreter ends.

    A store that is finalised leaves its connections to the threads of obstore's runtime. In a child this waits forever
    for a lock that one of these threads, which it does not have, held at the moment of the fork.

    Args:
        stores: Of the library that the parent loaded.
    """
    for store in stores:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


def load_obstore() -> Any:
    """Returns the module obstore, one that works in this process.

    Raises:
        StorageError: It is not installed, or cannot be loaded a second time after a fork.
    """
    loaded = _clients.obstore
    if loaded is None:
        with _clients.lock:
            loaded = _clients.obstore
            if loaded is None:
                loaded = _clients.obstore = _load_again() if _clients.stale else _load()
                _clients.stale = False
    return loaded


def _load() -> ModuleType:
    os.environ.setdefault("TOKIO_WORKER_THREADS", _RUNTIME_THREADS)
    try:
        importlib.import_module(f"{_PACKAGE}.store")
        return importlib.import_module(_PACKAGE)
    except ImportError as error:
        raise StorageError(
            f"Object stores need obstore, which cannot be imported: {error}. Run `pip install obstore`."
        ) from error


def _load_again() -> ModuleType:
    """Loads a copy of the library: the dynamic linker returns the loaded one for the same file."""
    origin = sys.modules[_LIBRARY].__file__
    assert origin is not None
    for name in list(sys.modules):  # a copy: other threads of this process import modules meanwhile
        # The library stays until its copy replaces it, for another try if this one fails.
        if name == _PACKAGE or (name.startswith(f"{_PACKAGE}.") and name != _LIBRARY):
            del sys.modules[name]
    try:
        copy = os.memfd_create(_PACKAGE, os.MFD_CLOEXEC)
        try:
            with open(origin, "rb") as library:
                left = os.fstat(library.fileno()).st_size
                while left:
                    left -= os.sendfile(copy, library.fileno(), None, left)
            # By its number: the linker takes a path that it has seen for the library that it has loaded, and a copy
            # that a process before this fork made may have had the same descriptor.
            path = f"/proc/{os.getpid()}/fd/{copy}"
            loader = importlib.machinery.ExtensionFileLoader(_LIBRARY, path)
            spec = importlib.util.spec_from_file_location(_LIBRARY, path, loader=loader)
            assert spec is not None
            library_module = importlib.util.module_from_spec(spec)
            loader.exec_module(library_module)
            library_module.__file__ = origin  # for children of this process
            sys.modules[_LIBRARY] = library_module
        finally:
            os.close(copy)
        return _load()
    except (OSError, ImportError) as error:
        raise StorageError(
            f"This process was forked from one that had used an object store, and obstore could not be loaded again: "
            f"{error}. Start processes with the method 'spawn' or 'forkserver'."
        ) from error


def _after_fork() -> None:
    """Leaves the clients to the parent; the child creates its own."""
    was_used = _clients.in_use and _clients.obstore is not None
    _clients.lock = threading.Lock()
    if was_used:
        _clients.stale, _clients.obstore = True, None
    _clients.in_use = False
    for holder in list(_clients.fork_aware):
        holder.after_fork()


os.register_at_fork(after_in_child=_after_fork)
