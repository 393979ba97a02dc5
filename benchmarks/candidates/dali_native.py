"""Bare DALI: one pipeline with its own reader of tar shards, nothing of ours. Options: layout, threads, permute."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.dlpack import from_dlpack

from benchmarks.candidates.stream import CROP_PIXELS, MEAN, STD, Delivered, measure_stream
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches: torch views of DALI's own memory, made without a copy."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = _pipeline(task, _write_indexes(task.shards, Path(folder)))
        pipeline.build()
    permute = task.options.get("permute", False)
    while True:
        pixels, _ = pipeline.run()
        keys = [_key(pixels[i]) for i in range(len(pixels))] if with_keys else None
        if task.output == "float224":
            yield Delivered(from_dlpack(pixels.as_tensor()), keys)
        elif permute:
            yield Delivered([from_dlpack(one).permute(2, 0, 1) for one in pixels], keys)
        else:
            yield Delivered([from_dlpack(one) for one in pixels], keys)


def _key(sample: Any) -> str:
    return str(sample.source_info()).rpartition(":")[2].partition(".")[0]


def _pipeline(task: Task, indexes: list[str]) -> Any:
    dali: Any = importlib.import_module("nvidia.dali")
    fn, types = dali.fn, dali.types
    threads = int(task.options.get("threads", 2))

    def native() -> Any:
        # The captions too: what is compared with it delivers both.
        encoded, caption = fn.readers.webdataset(
            paths=task.shards, index_paths=indexes, ext=["jpg", "txt"], name="reader",
            missing_component_behavior="error",
        )  # fmt: skip
        if task.output == "float224":
            seed = 42
            pixels = fn.decoders.image_random_crop(encoded, device="cpu", random_area=[0.08, 1.0], seed=seed)
            pixels = fn.resize(pixels, size=[CROP_PIXELS, CROP_PIXELS])
            pixels = fn.crop_mirror_normalize(
                pixels, mirror=fn.random.coin_flip(seed=seed), dtype=types.FLOAT, output_layout="CHW",
                mean=[255 * value for value in MEAN], std=[255 * value for value in STD],
            )
            return pixels, caption
        pixels = fn.decoders.image(encoded, device="cpu", adjust_orientation=False)
        if task.layout == "CHW" and not task.options.get("permute", False):
            pixels = fn.transpose(pixels, perm=[2, 0, 1])
        return pixels, caption

    options = {"batch_size": task.batch_size, "num_threads": threads, "device_id": None, "prefetch_queue_depth": 2}
    return dali.pipeline_def(native)(**options)


def _write_indexes(shards: list[str], folder: Path) -> list[str]:
    """Writes DALI's index files, so that the first batch does not wait for a scan of the shards."""
    import tarfile

    paths = []
    for number, shard in enumerate(shards):
        with tarfile.open(shard, "r:") as tar:
            members = {member.name: member for member in tar}
        lines = []
        for key in sorted(name.removesuffix(".jpg") for name in members if name.endswith(".jpg")):
            parts = [(part, members[f"{key}.{part}"]) for part in ("jpg", "txt")]
            lines.append(" ".join(f"{part} {member.offset_data} {member.size} {member.name}" for part, member in parts))
        path = folder / f"{number}.idx"
        path.write_text("\n".join([f"v1.2 {len(lines)}", *lines]) + "\n")
        paths.append(str(path))
    return paths
