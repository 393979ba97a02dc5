"""Imports DALI when it is first used. Its own type stubs lack much of what is used here."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

POOL_VARIABLE = "DALI_MALLOC_POOL_THRESHOLD"
"""DALI's variable for the size from which buffers on the CPU come from its own pool, read when DALI allocates first."""
_POOL_FROM = "64k"

_before_exit: list[Callable[[], None]] = []


class Pipeline(Protocol):
    """The methods of `nvidia.dali.Pipeline` that are used here; for one thread at a time."""

    def feed_input(self, data_node: str, data: Any) -> None:
        """Sets an input for one run; with no_copy the caller keeps the data alive until the outputs are there."""

    def schedule_run(self) -> None:
        """Starts a run and returns."""

    def outputs(self, cuda_stream: Any = None) -> tuple[Any, ...]:
        """Waits for the oldest run and returns its TensorLists; raises RuntimeError if it failed."""


@functools.cache
def load_dali() -> Any:
    """Returns the module nvidia.dali with its `fn` and `types`; takes 0.8 s the first time.

    Decoded images then come from DALI's pool, unless the user set the variable. The allocator would give their memory
    back to the system after each run: a pipeline of JPEGs of 100 KB had 30 to 40 page faults per image, from the pool
    none as long as few runs are held.
    """
    os.environ.setdefault(POOL_VARIABLE, _POOL_FROM)
    module = import_module("nvidia.dali")
    import_module("nvidia.dali.fn")
    # Exit handlers run last in, first out: this runs before DALI's own, which destroys pipelines that a thread may use.
    atexit.register(_call_before_exit)
    return module


@functools.cache
def load_backend() -> Any:
    """Returns the module nvidia.dali.backend: tensors, tensor lists, devices and memory."""
    load_dali()
    return import_module("nvidia.dali.backend")


def call_before_dali_exits(callback: Callable[[], None]) -> None:
    """Registers a function to be called at exit, before DALI destroys its pipelines; never if DALI was not loaded."""
    _before_exit.append(callback)


def _call_before_exit() -> None:
    for callback in _before_exit:
        callback()
