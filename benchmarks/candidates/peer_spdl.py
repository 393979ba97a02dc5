"""SPDL: a pipeline of threads in one process.

Options: workers (threads that decode), threads (of the whole pipeline), decode.
`decode` is "ffmpeg" (its own: FFmpeg decodes, crops and scales) or "torchvision".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.candidates.fast_path import CollateRows, make_decode
from benchmarks.candidates.outputs import CROP_PIXELS, MEAN, STD, crop_ranges
from benchmarks.candidates.peer_grain import Images
from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import LeftOutError, Task
from benchmarks.candidates.torch_loader import random_box


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches."""
    from spdl.pipeline import PipelineBuilder

    threads = int(task.options.get("workers", 2))
    decode = make_decode(task) if task.options.get("decode") == "torchvision" else make_ffmpeg_decode(task)
    images = Images(task)

    def load(number: int) -> tuple[str, torch.Tensor]:
        key, data = images[number]
        return key, decode(data)

    pipeline: Any = (
        PipelineBuilder()
        .add_source(itertools.cycle(range(len(images))))
        .pipe(load, concurrency=threads, output_order="input")
        .aggregate(task.batch_size)
        .pipe(CollateRows(task.output))
        .add_sink(2)
        .build(num_threads=int(task.options.get("threads", threads)))
    )
    with pipeline.auto_stop():
        for keys, batch in pipeline:
            yield Delivered(batch, keys if with_keys else None)


def make_ffmpeg_decode(task: Task) -> Callable[[bytes], torch.Tensor]:
    """Returns the function from an encoded image to the output of a task.

    Raises:
        LeftOutError: This system has no FFmpeg libraries.
    """
    try:
        import spdl.io

        spdl.io.get_filter_desc  # noqa: B018 - loads the libraries
    except (ImportError, RuntimeError) as error:
        raise LeftOutError(f"SPDL cannot load the FFmpeg libraries of this system: {error}") from error
    rng = np.random.default_rng(0)
    mean, scale = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def decode_whole(data: bytes) -> torch.Tensor:
        return _decode(data, "format=pix_fmts=rgb24")

    def decode_crop(data: bytes) -> torch.Tensor:
        packets = spdl.io.demux_image(data)
        left, top, right, bottom = random_box(rng, packets.width, packets.height, *crop_ranges(task))
        flip = ",hflip" if rng.random() < 0.5 else ""
        size = (
            f"crop={right - left}:{bottom - top}:{left}:{top}:exact=1,scale={CROP_PIXELS}:{CROP_PIXELS}:flags=bilinear"
        )
        pixels = _decode(data, f"{size}{flip},format=pix_fmts=rgb24").float().div_(255)
        return pixels.sub_(mean).div_(scale)

    return decode_crop if task.output == "float224" else decode_whole


def _decode(data: bytes, filters: str) -> torch.Tensor:
    import spdl.io

    frames = spdl.io.decode_packets(spdl.io.demux_image(data), filter_desc=filters)
    pixels: torch.Tensor = spdl.io.to_torch(spdl.io.convert_frames(frames))
    return pixels.permute(2, 0, 1).contiguous()
