"""Runs the demo's task encoder with one decoder, in its own process; writes numbers and a batch of images."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

BATCH_SIZES = {"images": 64, "videos": 8}
"""Samples per batch."""
STEP_MARGIN = 1.25
"""A training step takes this much longer than the decoding of its batch."""
TRAINED_SHARE = 0.5
"""Number of batches with a training step, as a fraction of the batches before."""


def run(media: str, decoder: str, dataset: str, batches: int, workers: int, sheet: Path) -> dict[str, Any]:
    """Returns samples/s, seconds to the first batch, the share of time the trainer was blocked, and decode routes.

    Args:
        media: "images" or "videos".
        decoder: Name of a decoder of the demo.
        dataset: Prepared dataset.
        batches: Batches to take as fast as they come.
        workers: Worker processes.
        sheet: File for the first batch, loaded by torch.load.
    """
    import torch

    from benchmarks.demo.encoder import DemoEncoder, VideoDemoEncoder
    from energon_dali import WorkerConfig, get_savable_loader, get_train_dataset

    began = time.perf_counter()
    config = WorkerConfig.default_worker_config(num_workers=workers)
    train = get_train_dataset(
        dataset,
        worker_config=config,
        batch_size=BATCH_SIZES[media],
        shuffle_buffer_size=1000,
        task_encoder=VideoDemoEncoder(decoder) if media == "videos" else DemoEncoder(decoder),
    )
    with get_savable_loader(train) as loader:
        stream = iter(loader)
        first = next(stream)
        first_batch_seconds = time.perf_counter() - began
        torch.save(
            {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in first.items()}, sheet
        )
        started = time.perf_counter()
        samples = sum(len(batch["caption"]) for batch in _counted(stream, batches, decoder))
        seconds = time.perf_counter() - started
        blocked = _next_to_a_trainer(stream, max(4, int(batches * TRAINED_SHARE)), STEP_MARGIN * seconds / batches)
        statistics = loader.stats()
    return {
        "decoder": decoder,
        "samples_per_second": samples / seconds,
        "first_batch_seconds": first_batch_seconds,
        "blocked_share": blocked,
        "routes": statistics.routes,
        "failed": statistics.counts.get("samples.failed", 0),
    }


def _counted(stream: Iterator[Any], batches: int, decoder: str) -> Iterator[Any]:
    with tqdm(desc=decoder, unit=" samples", leave=False) as progress:
        for _ in range(batches):
            batch = next(stream)
            progress.update(len(batch["caption"]))
            yield batch


def _next_to_a_trainer(stream: Iterator[Any], batches: int, step_seconds: float) -> float:
    """Returns the fraction of its time that a trainer with steps of a fixed length waits for batches."""
    blocked = 0.0
    started = time.perf_counter()
    for _ in range(batches):
        asked = time.perf_counter()
        next(stream)
        blocked += time.perf_counter() - asked
        time.sleep(step_seconds)  # a step on a GPU: it needs neither this core nor the interpreter lock
    return blocked / (time.perf_counter() - started)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    sheet_path = Path(arguments.pop("sheet"))
    print(json.dumps(run(**arguments, sheet=sheet_path)))
