"""The engines of this process: one per graph and device, shared by all decoders and datasets."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from energon_dali.decode.dali.runtime.device import Device, DeviceOption
from energon_dali.decode.dali.runtime.engine import DaliEngine
from energon_dali.decode.dali.runtime.library import call_before_dali_exits
from energon_dali.decode.dali.runtime.memory import DeviceMemory, MemoryUse, release_unused
from energon_dali.decode.dali.runtime.pipeline import PipelineOptions
from energon_dali.decode.dali.tuning import DaliTuning

_CLOSE_SECONDS = 10.0
_MAX_CPU_THREADS = 32
_MOST_AWAKE = 16
"""This many engines, the last used ones, keep a thread and a pipeline; those of sizes no longer used rest."""
_engines: dict[tuple[Hashable, PipelineOptions, int | None], DaliEngine[Any, Any]] = {}
_memories: dict[tuple[Device, int | None], DeviceMemory] = {}
_lock = threading.Lock()
_is_exiting = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of a `DaliDecoder` that decide where and how its blocks are decoded, as the user gave them."""

    image_decode_device: DeviceOption
    video_decode_device: DeviceOption
    num_threads: int | None
    max_batch_size: int
    gpu_memory_budget_bytes: int | None
    tuning: DaliTuning

    def on(
        self, device: Device, *, most_samples: int | None = None, batch_size: int | None = None, on_host: bool = False
    ) -> PipelineOptions:
        """Returns how a pipeline runs on a device.

        Args:
            device: Where it decodes.
            most_samples: Another bound of the samples per run, next to `max_batch_size`.
            batch_size: Samples per run, in place of both bounds.
            on_host: Whether CPU threads of a GPU's pipeline decode: PNG, BMP and PNM.
        """
        return PipelineOptions(
            device=device,
            num_threads=self.threads_on(device, on_host=on_host),
            max_batch_size=batch_size or min(self.max_batch_size, most_samples or self.max_batch_size),
            tuning=self.tuning,
        )

    def threads_on(self, device: Device, *, on_host: bool = False) -> int:
        """Returns the number of CPU threads of a pipeline on a device; the arguments are those of `on`."""
        if self.num_threads is not None:
            return self.num_threads
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, _MAX_CPU_THREADS if device.kind == "cpu" or on_host else 4)


GraphT_contra = TypeVar("GraphT_contra", bound=Hashable, contravariant=True)


class EngineMaker(Protocol[GraphT_contra]):
    """The class of image engines, or that of video engines."""

    def __call__(self, graph: GraphT_contra, options: PipelineOptions, memory: DeviceMemory) -> DaliEngine[Any, Any]:
        """Returns a new engine."""


def engine_for(
    make: EngineMaker[GraphT_contra],
    graph: GraphT_contra,
    options: PipelineOptions,
    *,
    gpu_memory_budget_bytes: int | None = None,
) -> DaliEngine[Any, Any]:
    """Returns the engine of this process for a graph, and makes it if there is none; its first block builds a pipeline.

    If more than 16 engines are in use, those that were not used for the longest time are put to rest.

    Args:
        make: The class of engines that the graph is for.
        graph: What to produce.
        options: Where and how the pipeline runs.
        gpu_memory_budget_bytes: Budget of the runs in flight on a GPU; ignored on the CPU.

    Raises:
        RuntimeError: The process is about to end.
    """
    device = options.device
    budget = gpu_memory_budget_bytes if device.kind == "gpu" else None
    key = (graph, options, budget)
    with _lock:
        if _is_exiting:
            # A thread that decodes ahead may still run. DALI ends the process if a pipeline is made while it exits.
            raise RuntimeError("No new pipeline is made: the process is about to end.")
        engine = _engines.get(key)
        if engine is None:
            memory = _memories.setdefault((device, budget), DeviceMemory(device, budget))
            engine = make(graph, options, memory)
        _engines.pop(key, None)
        _engines[key] = engine  # at the end, as the last one used
        if not engine.awake:
            for other in list(_engines.values())[:-_MOST_AWAKE]:
                other.rest()
        return engine


def has_engines() -> bool:
    """Returns whether a pipeline of DALI may be running in this process."""
    return bool(_engines)


def close_engines(timeout_seconds: float | None = None, *, abandon: bool = False) -> None:
    """Closes all engines of this process; the next block starts new ones.

    Args:
        timeout_seconds: Longest wait per engine; None waits as long as it takes.
        abandon: Whether to cancel blocks that wait; False finishes all that was submitted.
    """
    with _lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.close(timeout_seconds, abandon=abandon)


def release_memory() -> None:
    """Closes all engines of this process and returns DALI's unused memory to the devices; held values stay valid."""
    close_engines()
    release_unused()


def memory_use() -> list[tuple[str, MemoryUse]]:
    """Returns (device, memory that decoding takes there) for each device ("cpu", "gpu 0", ...) and budget in use."""
    with _lock:
        return [(str(device), memory.use()) for (device, _), memory in _memories.items()]


def _forget_engines() -> None:
    """After a fork: the threads of the engines exist only in the parent."""
    global _lock
    _lock = threading.Lock()
    for engine in _engines.values():
        # Leaked on purpose: destroying it would wait for threads and use a CUDA context that the child does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    _engines.clear()
    _memories.clear()


def _abandon_engines() -> None:
    """At exit: finishes the runs in flight, cancels the blocks that wait, and makes no more engines."""
    global _is_exiting
    with _lock:
        _is_exiting = True
    close_engines(_CLOSE_SECONDS, abandon=True)


call_before_dali_exits(_abandon_engines)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_engines)
