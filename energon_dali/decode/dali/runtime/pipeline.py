"""How a pipeline runs, as a value, and the one place that builds a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.library import Pipeline, load_dali
from energon_dali.decode.dali.tuning import DaliTuning


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """Where and how a pipeline runs; together with its graph the identity of an engine."""

    device: Device
    """Where it decodes."""
    num_threads: int
    """CPU threads."""
    max_batch_size: int
    """Most samples per run."""
    tuning: DaliTuning = field(default_factory=DaliTuning)
    """Settings that change speed and memory."""


def build_pipeline(options: PipelineOptions, define: Callable[[], tuple[Any, ...]]) -> Pipeline:
    """Returns a new pipeline, built. Building takes 20 to 100 ms and holds the interpreter lock.

    Args:
        options: Where and how it runs.
        define: Creates the nodes inside the pipeline's scope and returns the output nodes.

    Raises:
        RuntimeError: DALI cannot build it.
    """
    pipeline = load_dali().Pipeline(
        batch_size=options.max_batch_size,
        num_threads=options.num_threads,
        device_id=options.device.ordinal,
        prefetch_queue_depth=1,
        exec_dynamic=True,
        set_affinity=False,
    )
    with pipeline:
        pipeline.set_outputs(*define())
    pipeline.build()
    built: Pipeline = pipeline
    return built


def define_input(name: str, dtype: Any, ndim: int) -> Any:
    """Returns the node of an input that is set without a copy. Call it inside a pipeline's scope.

    Args:
        name: Name for `Pipeline.feed_input`.
        dtype: Type of the values, of nvidia.dali.types.
        ndim: Dimensions of one sample.
    """
    return load_dali().fn.external_source(name=name, no_copy=True, batch=True, dtype=dtype, ndim=ndim)
