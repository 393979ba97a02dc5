"""Measures a stream of batches: samples per second, their cost, and how long a trainer waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.candidates.checks import WrongOutputError, check
from benchmarks.candidates.gpu_meter import GpuMeter
from benchmarks.candidates.outputs import CROP_PIXELS, MEAN, STD, count_samples, on_device, synchronize
from benchmarks.candidates.process_tree import tree_cpu_seconds, tree_memory_mib
from benchmarks.candidates.ranks import meet
from benchmarks.candidates.spinner import spin_next_to
from benchmarks.candidates.task import Task
from benchmarks.candidates.training_step import make_training_step, measure_blocked

__all__ = ["CROP_PIXELS", "MEAN", "STD", "Delivered", "Open", "WrongOutputError", "measure_stream", "time_stream"]

STEP_OVER_BATCH = 1.1
"""Length of the simulated training step, relative to the time that the candidate needs for a batch at full speed."""
_LEAST_STEP_SECONDS = 0.005
_LEAST_STEPS = 6
_LEAST_BATCHES = 4


@dataclass(frozen=True, slots=True)
class Delivered:
    """One batch as it reaches the trainer."""

    images: Sequence[torch.Tensor] | torch.Tensor | dict[str, Any]
    """One tensor per sample; a stacked batch is a sequence of its rows. A dict holds packed patch tokens."""
    keys: Sequence[str] | None = None
    """Keys of the samples, only needed for checks."""


Open = Callable[[Task, bool], Iterator[Delivered]]
"""Opens an endless stream; the flag requests keys."""


def measure_stream(open_stream: Open, task: Task) -> dict[str, float]:
    """Returns the numbers of a task: {"samples_checked"}, {"samples_per_second", "first_batch_seconds", ...}, or both.

    Raises:
        WrongOutputError: The images are wrong.
    """
    numbers: dict[str, float] = {}
    if task.action in ("time", "both"):
        numbers |= time_stream(open_stream, task)
    if task.action in ("check", "both"):
        numbers["samples_checked"] = check(_arriving(open_stream(task, True), task.device), task)
    return numbers


def time_stream(open_stream: Open, task: Task) -> dict[str, float]:
    """Returns throughput and its cost; with the option `trainer` also the speed of that trainer's Python, and
    with `memory` the memory of all processes right after it.

    CPU time is that of all processes. Beside a trainer that spins it is not given.
    """
    meter = GpuMeter(task.device)
    began = time.perf_counter()
    batches = _arriving(open_stream(task, False), task.device)
    next(batches)
    synchronize(task.device)
    numbers = {"first_batch_seconds": time.perf_counter() - began}
    meet(task)
    with spin_next_to(str(task.options.get("trainer", "none"))) as turns:
        _warm_up(batches, task)
        synchronize(task.device)
        with meter:
            turns_before, cpu_before, start = turns(), tree_cpu_seconds(), time.perf_counter()
            taken = _take_for(batches, task) if task.seconds else _take(batches, task.samples)
            synchronize(task.device)
            seconds = time.perf_counter() - start
            cpu_seconds, turned = tree_cpu_seconds() - cpu_before, turns() - turns_before
    numbers["samples_per_second"] = taken / seconds
    if task.options.get("memory"):
        numbers["memory_mib"] = tree_memory_mib()
    if task.options.get("trainer"):
        numbers["trainer_turns_per_second"] = turned / seconds
    else:
        numbers |= {"cpu_cores": cpu_seconds / seconds, "cpu_milliseconds_per_sample": 1e3 * cpu_seconds / taken}
    if task.trains:
        numbers |= _train(batches, task, task.batch_size * seconds / taken)
    return numbers | meter.numbers()


def _train(batches: Iterator[Delivered], task: Task, batch_seconds: float) -> dict[str, float]:
    wanted = max(_LEAST_STEP_SECONDS, STEP_OVER_BATCH * batch_seconds)
    step, alone_seconds = make_training_step(task.device, wanted)

    def take() -> Delivered:
        batch = next(batches)
        if task.device == "gpu":  # also wait for work that is still running when `next` returns
            torch.cuda.current_stream().synchronize()
        return batch

    return measure_blocked(take, step, alone_seconds, seconds=task.seconds, steps=_LEAST_STEPS)


def _arriving(batches: Iterator[Delivered], device: str) -> Iterator[Delivered]:
    """Yields the batches on the device of the trainer."""
    for batch in batches:
        yield Delivered(on_device(batch.images, device), batch.keys)


def _warm_up(batches: Iterator[Delivered], task: Task) -> None:
    """Drains what was queued since the first batch, and takes the warm-up samples of the task."""
    if not task.seconds:
        _take(batches, task.warmup_samples)
        return
    # Queued batches arrive at once, however many there are; after half of the time only fresh ones are left.
    end = time.perf_counter() + task.seconds / 2
    while time.perf_counter() < end:
        next(batches)


def _take(batches: Iterator[Delivered], samples: int) -> int:
    taken = 0
    while taken < samples:
        taken += count_samples(next(batches).images)
    return taken


def _take_for(batches: Iterator[Delivered], task: Task) -> int:
    """Returns the number of samples in the time of the task; with few batches in up to ten times that time.

    Workers that began together deliver together, so that two rounds of them have to be inside.
    """
    least = max(_LEAST_BATCHES, 2 * int(task.options.get("workers", 0)))
    began, taken, count = time.perf_counter(), 0, 0
    while taken < task.samples:
        passed = time.perf_counter() - began
        if passed >= 10 * task.seconds or (passed >= task.seconds and count >= least):
            break
        taken += count_samples(next(batches).images)
        count += 1
    return taken
