"""Whether this process can be forked safely now, which decides what start_method="auto" does.

A forked child has one thread, and a copy of all memory: a lock that another thread of the parent held at that moment
stays locked in the child. These are the threads of this package, by name, and why they do or do not matter:

- `energon-dali-rank` runs hooks and decoders, which may hold any lock. It alone decides against a fork.
- `energon-dali-gpu`, `energon-dali-cpu` and `energon-dali-pil` belong to engines of DALI, which decide against a fork.
- `energon-dali-video` feed hardware decoders. CUDA is then in use, which decides against a fork.
- `energon-dali-frames` decode groups of pictures while a thread that runs hooks, or one of the user's, waits for them.
  They are never alone with a fork.
- `energon-dali-receive` takes batches of a decode process. It holds nothing that a child uses.
- `energon-dali-read` and `-blend` read from storage. What they lock is replaced in a child
  (`shards/storage/forks.drop_in_child`), or only used by one loader.
- `energon-dali-cache` fetches files for hooks. Its files and locks belong to one process, which they compare.
- `energon-dali-panel` and `energon-dali-watchdog` write to the standard error. Forks wait for that (`without_forks`).
- `energon-dali-publish` gives batches to other ranks. Its sockets are closed in a child. Where it runs hooks, it is
  named as the rank's thread.
- `energon-dali-share` and `energon-dali-files` wait for other processes of the node. Their sockets are closed in a
  child.
- `energon-dali-work` reports what a process works on. Its locks are not used in a child.
- `energon-dali-trace` and `energon-dali-close` hold nothing that a child uses.

Modules that another thread is importing would never be complete in a child: see `wait_for_imports`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_DRIVER_FILES = ("/proc/driver/nvidia", "/dev/nvidiactl")

_RUNS_HOOKS = "energon-dali-rank"
"""The thread that runs hooks and decoders."""

_IMPORT_CODE = "<frozen importlib._bootstrap>"
"""File name of the code that runs while a module is imported."""
_IMPORT_SECONDS = 5.0
_POLL_SECONDS = 0.001
_HELD_OFF_SECONDS = 1.0

_THREADED = {
    "grpc._cython.cygrpc": "gRPC is loaded, whose threads and locks do not survive a fork",
    "jaxlib": "JAX is loaded, which is multithreaded",
    "tensorflow": "TensorFlow is loaded, which is multithreaded",
}
"""Modules of libraries whose documentation says that they do not work after a fork."""


def fork_hazard(*, uses_device: bool) -> str | None:
    """Returns why a fork of this process might hang or crash; None if a fork is safe.

    Clients of object stores do not count, because a child creates its own (`shards/storage/forks.py`). Nor do the
    threads of OpenMP, because workers compute with one thread. Threads of the user's program are ignored.

    Args:
        uses_device: Whether the child may use a GPU. Then a GPU in the machine is enough, because merely asking whether
            there is one makes CUDA unusable in a child.
    """
    if uses_device and may_use_gpu():
        return "the process uses a GPU, and CUDA does not work in a fork of a process that has looked for GPUs"
    if _has_cuda_context():
        return "CUDA is in use, which does not work in a forked process"
    engines: Any = sys.modules.get("energon_dali.decode.dali.runtime.engine")
    if engines is not None and engines.has_engines():
        return "DALI is in use, whose threads a forked process does not have"
    for thread in threading.enumerate():
        if thread.name == _RUNS_HOOKS:
            return f"the thread {thread.name} is running hooks, which may hold locks"
    ray: Any = sys.modules.get("ray")
    if ray is not None and getattr(ray, "is_initialized", bool)():
        return "the process belongs to Ray, whose threads and locks do not survive a fork"
    for module, reason in _THREADED.items():
        if module in sys.modules:
            return reason
    return None


def may_use_gpu() -> bool:
    """Returns whether this machine has a GPU, so that CUDA may be used in this process some time."""
    return any(map(os.path.exists, _DRIVER_FILES))


def _has_cuda_context() -> bool:
    """Returns whether torch, or anything else in this process, has a context on a GPU. Creates none."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            if "libcuda.so" not in maps.read():
                return False
        return _has_primary_context(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return False


def _has_primary_context(driver: Any) -> bool:
    """Returns whether a GPU has an active context of the runtime, which all libraries share, in this process."""
    count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:  # the driver was not initialised
        return False
    for device in range(count.value):
        state = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if state == 0 and active.value:
            return True
    return False


def wait_for_imports() -> bool:
    """Waits until no other thread is importing a module; returns whether that is so.

    In a forked child, such a module would never be complete, and its lock would stay held. Threads that import
    for longer than a few seconds are not waited for: a whole program may run inside an import.
    """
    own, end = threading.get_ident(), time.monotonic() + _IMPORT_SECONDS
    while any(_imports(frame) for thread, frame in frames_of_threads().items() if thread != own):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _imports(frame: FrameType | None) -> bool:
    """Returns whether a thread that executes a frame is importing a module."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_CODE:
            return True
        frame = frame.f_back
    return False


class _Gate:
    """What forks of this process wait for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.forking = threading.local()


_gate = _Gate()


@contextmanager
def without_forks() -> Iterator[None]:
    """Context manager for work of a thread that takes a lock which a child needs too, such as that of `sys.stderr`.

    Forks wait until it is over, but not for longer than a second: it must be short.
    """
    with _gate.lock:
        yield


def frames_of_threads() -> dict[int, FrameType]:
    """Returns the frame that each thread executes, by the thread's identifier.

    `sys._current_frames` of Python 3.11 waits for itself indefinitely if it makes the collector run, and the collector
    frees a `threading.local` (https://github.com/python/cpython/issues/106883). So no collection begins meanwhile.
    """
    with without_forks():  # two threads at once would leave the collector off, or turn it on too early
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()


def _before_fork() -> None:
    _gate.forking.holds = _gate.lock.acquire(timeout=_HELD_OFF_SECONDS)


def _after_fork_in_parent() -> None:
    if _gate.forking.holds:
        _gate.lock.release()


def _after_fork_in_child() -> None:
    global _gate
    _gate = _Gate()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
