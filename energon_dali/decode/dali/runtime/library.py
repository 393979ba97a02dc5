"""The door to DALI: imported when first used. Its type stubs lack much of what is used here."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

_before_exit: list[Callable[[], None]] = []
_loaded = False


class Pipeline(Protocol):
    """What is used of `nvidia.dali.Pipeline`; one thread at a time."""

    def feed_input(self, data_node: str, data: Any) -> None:
        """Gives an input its data for one run; with no_copy the caller keeps it alive until the outputs are there."""

    def schedule_run(self) -> None:
        """Starts a run and returns."""

    def outputs(self, cuda_stream: Any = None) -> tuple[Any, ...]:
        """Waits for the oldest run and returns its TensorLists; raises RuntimeError if it failed."""

    def reader_meta(self, name: str) -> dict[str, int]:
        """Returns what a reader says of its data."""


def load_dali() -> Any:
    """Returns the module nvidia.dali with its `fn` and `types`; takes 0.8 s the first time."""
    global _loaded
    module = import_module("nvidia.dali")
    import_module("nvidia.dali.fn")
    if not _loaded:
        _loaded = True
        # Exit handlers run last in, first out: DALI's own takes pipelines apart that are still at work in a thread.
        atexit.register(_call_before_exit)
    return module


def call_before_dali_exits(callback: Callable[[], None]) -> None:
    """Has a function called at exit, before DALI takes its pipelines apart; never if DALI was not loaded."""
    _before_exit.append(callback)


def _call_before_exit() -> None:
    for callback in _before_exit:
        callback()


def load_backend() -> Any:
    """Returns the module nvidia.dali.backend: tensors, tensor lists, devices and memory."""
    load_dali()
    return import_module("nvidia.dali.backend")
