"""Bare DALI: one pipeline with its own reader of tar shards, without this package.

Options: layout, threads, permute, device, iterator (through DALI's own PyTorch iterator).
"""

from __future__ import annotations

import importlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.dlpack import from_dlpack

from benchmarks.candidates.bare_graph import as_output, decode_images, decode_videos, make_pipeline, shape_output
from benchmarks.candidates.files import MEDIA, frames_in
from benchmarks.candidates.outputs import VIDEO_OUTPUTS, frame_numbers
from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches: torch views of DALI's own memory, without a copy."""
    with tempfile.TemporaryDirectory() as folder:
        indexes, order = _write_indexes(task.shards, Path(folder))
        pipeline = _pipeline(task, indexes)
        pipeline.build()
    if task.options.get("iterator"):
        yield from _through_iterator(pipeline, task, order)
    permute = task.options.get("permute", False)
    while True:
        pixels, _ = pipeline.run()
        keys = [_key(pixels[i]) for i in range(len(pixels))] if with_keys else None
        if permute:
            yield Delivered([from_dlpack(one).permute(2, 0, 1) for one in pixels], keys)
        else:
            yield Delivered(as_output(pixels, task), keys)


def _through_iterator(pipeline: Any, task: Task, order: list[str]) -> Iterator[Delivered]:
    """Yields the batches of DALIRaggedIterator, which copies into torch tensors; keys follow their order."""
    plugin: Any = importlib.import_module("nvidia.dali.plugin.pytorch")
    kind = plugin.DALIRaggedIterator
    dense = task.output in ("float224", "frames224", "frames")
    tags = [kind.DENSE_TAG if dense else kind.SPARSE_LIST_TAG, kind.SPARSE_LIST_TAG]
    names = itertools.cycle(order)
    for (batch,) in kind([pipeline], ["image", "caption"], output_types=tags):
        yield Delivered(shape_output(batch["image"], task), list(itertools.islice(names, len(batch["image"]))))


def _key(sample: Any) -> str:
    return str(sample.source_info()).rpartition(":")[2].partition(".")[0]


def _pipeline(task: Task, indexes: list[str]) -> Any:
    def native(fn: Any) -> Any:
        # The captions too, because the candidates that it is compared with deliver both.
        encoded, caption = fn.readers.webdataset(
            paths=task.shards,
            index_paths=indexes,
            ext=[";".join(MEDIA), "txt"],
            name="reader",
            missing_component_behavior="error",
        )
        if task.output in VIDEO_OUTPUTS:
            frames = frame_numbers(next(iter(frames_in(task).values())))  # all videos of a dataset have the same length
            return decode_videos(encoded, frames, task), caption
        return decode_images(encoded, task), caption

    return make_pipeline(native, task, default_threads=2)


def _write_indexes(shards: list[str], folder: Path) -> tuple[list[str], list[str]]:
    """Writes DALI's index files, so that DALI does not scan the shards; returns them, and the keys in order."""
    import tarfile

    paths, keys = [], []
    for number, shard in enumerate(shards):
        with tarfile.open(shard, "r:") as tar:
            members = {member.name: member for member in tar}
        lines = []
        for name in sorted(members):
            key, _, suffix = name.partition(".")
            if suffix in MEDIA:
                parts = [(part, members[f"{key}.{part}"]) for part in (suffix, "txt")]
                keys.append(key)
                lines.append(" ".join(f"{part} {one.offset_data} {one.size} {one.name}" for part, one in parts))
        path = folder / f"{number}.idx"
        path.write_text("\n".join([f"v1.2 {len(lines)}", *lines]) + "\n")
        paths.append(str(path))
    return paths, keys
