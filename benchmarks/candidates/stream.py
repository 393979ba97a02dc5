"""Measures a stream of batches: checks its pictures, and counts samples per second beside a quiet or a busy trainer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.candidates.spinner import spin_beside
from benchmarks.candidates.task import Task

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CROP_PIXELS = 224
CHECKED_SAMPLES = 128


@dataclass(frozen=True, slots=True)
class Delivered:
    """One batch as it reaches the trainer."""

    images: Sequence[torch.Tensor] | torch.Tensor
    """One tensor per sample; a stacked batch is a sequence of its rows."""
    keys: Sequence[str] | None = None
    """Keys of the samples, asked for only while checking."""


Open = Callable[[Task, bool], Iterator[Delivered]]
"""Opens an endless stream; the flag asks for keys."""


class WrongOutputError(Exception):
    """A candidate delivers something else than the workload asks for, so its speed means nothing."""


def measure_stream(open_stream: Open, task: Task) -> dict[str, float]:
    """Returns the numbers of a task: {"samples_checked"} or {"samples_per_second", "first_batch_seconds", ...}.

    Raises:
        WrongOutputError: The pictures are wrong.
    """
    if task.action == "check":
        return {"samples_checked": check(open_stream(task, True), task)}
    return time_stream(open_stream, task)


def time_stream(open_stream: Open, task: Task) -> dict[str, float]:
    """Returns throughput; with the option `trainer` also how fast that trainer's own Python ran meanwhile."""
    began = time.perf_counter()
    batches = open_stream(task, False)
    next(batches)
    first_batch_seconds = time.perf_counter() - began
    with spin_beside(str(task.options.get("trainer", "none"))) as turns:
        _take(batches, task.warmup_samples)
        turns_before, start = turns(), time.perf_counter()
        taken = _take(batches, task.samples)
        seconds = time.perf_counter() - start
        turned = turns() - turns_before
    numbers = {"samples_per_second": taken / seconds, "first_batch_seconds": first_batch_seconds}
    if task.options.get("trainer"):
        numbers["trainer_turns_per_second"] = turned / seconds
    return numbers


def _take(batches: Iterator[Delivered], samples: int) -> int:
    taken = 0
    while taken < samples:
        taken += len(next(batches).images)
    return taken


def check(batches: Iterator[Delivered], task: Task) -> int:
    """Returns how many samples were compared with the facts of the dataset.

    Raises:
        WrongOutputError: A key is unknown, or a shape, dtype or sum of pixels is not what the facts say.
    """
    facts = json.loads((Path(task.dataset) / "facts.json").read_text())
    one = {"uint8": _check_uint8, "float224": _check_float224}[task.output]
    checked = 0
    brightness = expected_brightness = 0.0
    for batch in batches:
        keys = batch.keys or []
        if len(keys) != len(batch.images):
            raise WrongOutputError(f"{task.program}: {len(keys)} keys for {len(batch.images)} images.")
        for key, image in zip(keys, batch.images, strict=True):
            if key not in facts:
                raise WrongOutputError(f"{task.program}: no sample of the dataset has the key {key!r}.")
            brightness += one(task, key, image, facts[key])
            height, width, total = facts[key]
            expected_brightness += total / (height * width * 3)
            checked += 1
        if checked >= CHECKED_SAMPLES:
            break
    if abs(brightness - expected_brightness) / checked > (0.5 if task.output == "uint8" else 20):
        raise WrongOutputError(
            f"{task.program}: pixels have the mean {brightness / checked:.1f}, those in the files "
            f"{expected_brightness / checked:.1f}."
        )
    return checked


def _check_uint8(task: Task, key: str, image: torch.Tensor, fact: list[int]) -> float:
    height, width, total = fact
    shape = (height, width, 3) if task.layout == "HWC" else (3, height, width)
    _expect(task, key, image, torch.uint8, shape)
    found = int(image.sum(dtype=torch.int64))
    if found != total:
        raise WrongOutputError(f"{task.program}: the pixels of {key} sum to {found}, not to {total}.")
    return found / (height * width * 3)


def _check_float224(task: Task, key: str, image: torch.Tensor, fact: list[int]) -> float:
    _expect(task, key, image, torch.float32, (3, CROP_PIXELS, CROP_PIXELS))
    pixels = image * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    if not bool(torch.isfinite(pixels).all()) or float(pixels.min()) < -0.01 or float(pixels.max()) > 1.01:
        raise WrongOutputError(f"{task.program}: {key} is not a normalised picture.")
    return float(pixels.mean()) * 255


def _expect(task: Task, key: str, image: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(image, torch.Tensor) or image.dtype != dtype or tuple(image.shape) != shape:
        found = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
        raise WrongOutputError(f"{task.program}: {key} is {found}, not a tensor of {dtype} {shape}.")
