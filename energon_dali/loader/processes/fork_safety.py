"""Whether this process can be forked safely now, which decides what start_method="auto" does."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

_DRIVER_FILES = ("/proc/driver/nvidia", "/dev/nvidiactl")

_OWN_THREADS = "energon-dali-"
_HARMLESS = ("energon-dali-watchdog", "energon-dali-open", "energon-dali-fetch", "energon-dali-trace")
"""Threads that hold nothing that a child uses: the watchdog, those that opened a remote dataset and are ending, and the
one that writes the trace."""

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
    if uses_device and any(map(os.path.exists, _DRIVER_FILES)):
        return "the process uses a GPU, and CUDA does not work in a fork of a process that has looked for GPUs"
    if _has_cuda_context():
        return "CUDA is in use, which does not work in a forked process"
    registry: Any = sys.modules.get("energon_dali.decode.dali.runtime.registry")
    if registry is not None and registry.has_engines():
        return "DALI is in use, whose threads a forked process does not have"
    for thread in threading.enumerate():
        if thread.name.startswith(_OWN_THREADS) and not thread.name.startswith(_HARMLESS):
            return f"the thread {thread.name} is running, which may hold locks"
    ray: Any = sys.modules.get("ray")
    if ray is not None and getattr(ray, "is_initialized", bool)():
        return "the process belongs to Ray, whose threads and locks do not survive a fork"
    for module, reason in _THREADED.items():
        if module in sys.modules:
            return reason
    return None


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
