"""What the ranks of a host with GPUs would use, computed without one: cores, threads, pipelines, reserved memory."""

from __future__ import annotations

from collections.abc import Iterator

from energon_dali.decode.dali.runtime.blocks import GPU_BUDGET_BYTES
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.decode.video_backends.nvdec import decoder_bytes
from energon_dali.errors import ConfigError
from energon_dali.host_cores import divide_cores

MIB = 1 << 20
_SIZE = (1280, 720)
"""Of the videos whose hardware decoders are shown."""


def simulate_host(ranks: int, cores: int) -> Iterator[str]:
    """Yields the lines of a table: what a rank uses with the default options, and what all ranks use together.

    Args:
        ranks: Of the host, each with its own GPU.
        cores: Of the host.

    Raises:
        ConfigError: There are fewer cores than ranks, or no ranks.
    """
    if ranks < 1 or cores < ranks:
        raise ConfigError(f"{ranks} ranks on {cores} cores is invalid: give at least one rank, and a core for each.")
    threads, tuning = divide_cores(cores // ranks, gpu=True), DaliTuning()
    rows = [
        ("threads of the pipeline of images", threads.images, ""),
        ("threads of the pipeline of PNG, BMP and PNM", threads.on_host, ""),
        ("threads of the pipeline of videos", threads.videos, ""),
        ("threads of PIL, PyAV and front ends", threads.fallbacks, ""),
        ("pipelines, if all of these are decoded", 3, ""),
        ("reserved by nvJPEG on the GPU", threads.images * tuning.device_memory_padding // MIB, " MiB"),
        ("page-locked by nvJPEG", 2 * threads.images * tuning.host_memory_padding // MIB, " MiB"),
        (f"hardware decoders of {_SIZE[1]}p videos", threads.videos * decoder_bytes(*_SIZE) // MIB, " MiB"),
        ("most memory of decoding on the GPU", GPU_BUDGET_BYTES // MIB, " MiB"),
    ]
    yield f"{ranks} ranks share {cores} cores, {cores // ranks} each; each has a GPU of its own"
    yield f"{'':<45}{'a rank':>12}{'the host':>14}"
    for name, of_rank, unit in rows:
        yield f"{name:<45}{f'{of_rank}{unit}':>12}{f'{of_rank * ranks}{unit}':>14}"
