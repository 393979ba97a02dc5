"""How pipelines run, as values, and the one place that builds a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from energon_dali.decode.dali.runtime.device import Device, DeviceOption, Media, load_dali
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.host_cores import cores_per_rank, divide_cores

if TYPE_CHECKING:
    from energon_dali.decode.spec import BackendOption


class Pipeline(Protocol):
    """The methods of `nvidia.dali.Pipeline` that are used here; for one thread at a time."""

    def feed_input(self, data_node: str, data: Any) -> None:
        """Sets an input for one run; with no_copy the caller keeps the data alive until the outputs are there."""

    def schedule_run(self) -> None:
        """Starts a run and returns."""

    def outputs(self, cuda_stream: Any = None) -> tuple[Any, ...]:
        """Waits for the oldest run and returns its TensorLists; raises RuntimeError if it failed."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of a `DaliDecoder` that decide where and how its blocks are decoded, as the user gave them."""

    image_decode_device: DeviceOption
    video_decode_device: DeviceOption
    num_threads: int | None
    max_batch_size: int
    gpu_memory_budget_bytes: int | None
    tuning: DaliTuning
    video_backend: BackendOption = "auto"

    def on(
        self,
        device: Device,
        media: Media = "image",
        *,
        most_samples: int | None = None,
        batch_size: int | None = None,
        on_host: bool = False,
    ) -> PipelineOptions:
        """Returns how a pipeline runs on a device.

        Args:
            device: Where it decodes.
            media: What it decodes.
            most_samples: Another bound of the samples per run, next to `max_batch_size`.
            batch_size: Samples per run, in place of both bounds.
            on_host: Whether CPU threads of a GPU's pipeline decode: PNG, BMP and PNM. They need no memory of nvJPEG.
        """
        tuning = self.tuning
        if on_host:
            tuning = replace(tuning, hw_decoder_load=0.0, device_memory_padding=0, host_memory_padding=0)
        return PipelineOptions(
            device=device,
            num_threads=self.threads_on(device, media, on_host=on_host),
            max_batch_size=batch_size or min(self.max_batch_size, most_samples or self.max_batch_size),
            tuning=tuning,
        )

    def threads_on(self, device: Device, media: Media = "image", *, on_host: bool = False) -> int:
        """Returns the number of CPU threads of a pipeline on a device; the arguments are those of `on`."""
        if self.num_threads is not None:
            return self.num_threads
        shares = divide_cores(cores_per_rank(), gpu=device.kind == "gpu")
        if media == "video":
            return shares.videos
        return shares.on_host if on_host else shares.images


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
