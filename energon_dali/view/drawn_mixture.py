"""The mixture of a metadataset as it is drawn: the shares that are wanted, and those that the first draws give.

Where weights change while a job runs, its draws are those of global batches, and shares are shown over its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import ConfigError
from energon_dali.plan.mixtures import BlendPlan, EpochizedBlendPlan
from energon_dali.plan.plan import Plan
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.scheduled import Schedule, ScheduledBlendPlan
from energon_dali.view.blended import open_blend

DEFAULT_DRAWS = 10_000
MAX_DRAWS = 10_000_000
MAX_STEPS = 1_000_000_000
MAX_SAMPLES_PER_STEP = 1 << 17
WINDOWS = 10
"""Consecutive parts of the draws that are counted for themselves; fewer if there are fewer steps."""


@dataclass(frozen=True, slots=True)
class MixtureRow:
    """One dataset of a mixture."""

    name: str
    """Its path."""
    split_part: str
    """Part of its split."""
    num_samples: int
    """Number of its samples in that part and its subset."""
    weight: float | None
    """Its weight, 0 to 1; None if datasets are not blended by weight."""
    repetitions: float | None
    """How often its samples are repeated in an epoch; None if that is not given."""
    wanted: float
    """Share of the draws that it should have, 0 to 1."""
    draws: int
    """How many of the first draws take it."""
    given: float
    """Share of the first draws that take it, 0 to 1."""
    windows: tuple[float, ...]
    """The same for `WINDOWS` consecutive parts of the draws."""
    wanted_windows: tuple[float, ...]
    """Share that it should have in each of these parts."""
    passes: float
    """How often the draws go through its samples."""


@dataclass(frozen=True, slots=True)
class DrawnMixture:
    """The first draws of a mixture."""

    mode: Literal["none", "weights", "repetitions"]
    """How the datasets are put together."""
    num_draws: int
    """Number of draws, over all streams."""
    rows: tuple[MixtureRow, ...]
    """The datasets, in the order of the file."""
    samples_per_step: int | None = None
    """Draws of a step, if weights change while the job runs."""
    window_edges: tuple[int, ...] = ()
    """The first step of each part of the draws, and the step after the last; () if there are no steps."""


def drawn_mixture(
    path: str | Mapping[str, Any],
    split_part: str = "train",
    *,
    num_draws: int = DEFAULT_DRAWS,
    num_streams: int = 4,
    samples_per_step: int | None = None,
    seed_offset: int = 0,
    allow_imports: bool = False,
    allow_code: bool = False,
) -> DrawnMixture:
    """Returns which datasets the first draws of training take. Reads indices and splits, but no data.

    Args:
        path: A metadataset (.yaml, or a dict), a prepared folder or a .jsonl file.
        split_part: Part of the split.
        num_draws: Number of draws, spread evenly over the streams; rounded up to a multiple of them. An epoch of
            repeated datasets has no more than its samples. With `samples_per_step`, rounded up to whole steps.
        num_streams: Number of streams of the job: `WorkerConfig.num_streams`. Global batches have one.
        samples_per_step: Draw as global batches of this size do, which weights that change over time need.
        seed_offset: Seed of the job.
        allow_imports: Import what the datasets name, as in `get_train_dataset`.
        allow_code: Run code that is in the datasets, as there.

    Raises:
        ConfigError: There is no such split, or a number is out of range.
        DatasetError: A dataset cannot be opened.
        StorageError: A file cannot be read.
    """
    most = MAX_DRAWS if samples_per_step is None else MAX_STEPS * samples_per_step
    if not 1 <= num_draws <= most:
        raise ConfigError(f"num_draws={num_draws} is invalid: it must be from 1 to {most:,}.")
    opened = open_blend(
        path,
        split_part,
        num_streams=num_streams,
        samples_per_step=samples_per_step,
        seed_offset=seed_offset,
        allow_imports=allow_imports,
        allow_code=allow_code,
    )
    blend, sizes, plan = opened.blend, opened.sizes, opened.plan
    edges: tuple[int, ...] = ()
    if samples_per_step is not None:
        if not isinstance(plan, ScheduledBlendPlan):
            raise ConfigError(
                f"samples_per_step={samples_per_step} is for weights that change over time, and {path} has none. Leave "
                "it out."
            )
        steps = -(-num_draws // samples_per_step)
        edges = tuple(np.unique(np.linspace(0, steps, WINDOWS + 1).astype(np.int64)).tolist())
        counts, wanted = _over_steps(plan, edges)
    else:
        counts, wanted = _first_draws(plan, -(-num_draws // num_streams), range(num_streams), len(sizes))
    draws, total = counts.sum(0), int(counts.sum())
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    overall = wanted[0] if samples_per_step is None else wanted.T @ counts.sum(1) / max(1, total)
    rows = tuple(
        MixtureRow(
            reference.path,
            reference.split_part,
            sizes[number],
            reference.weight,
            reference.repetitions,
            float(overall[number]),
            int(draws[number]),
            float(draws[number] / max(1, total)),
            tuple(shares[:, number].tolist()),
            tuple(wanted[:, number].tolist()),
            float(draws[number] / sizes[number]) if sizes[number] else 0.0,
        )
        for number, reference in enumerate(blend.sources)
    )
    return DrawnMixture(blend.mode, total, rows, samples_per_step, edges)


def steps_of_schedule(schedule: Schedule, samples_per_step: int) -> int:
    """Returns a number of steps that shows all of a schedule, and how it goes on."""
    last = schedule.points[-1].at
    if schedule.over == "samples":
        last = -(-last // samples_per_step)
    return min(MAX_STEPS, max(WINDOWS, last + last // 4))


def _over_steps(plan: ScheduledBlendPlan, edges: Sequence[int]) -> tuple[Int64Array, NDArray[np.float64]]:
    """Returns the draws of each dataset between steps, and the shares that the weights want.

    Returns:
        (int64[parts, datasets], float64[parts, datasets]).
    """
    units = [edge * plan.step_size for edge in edges]
    counts = np.array([plan.given_between(start, stop) for start, stop in pairwise(units)], np.int64)
    wanted = np.array([plan.wanted_between(start, stop) for start, stop in pairwise(units)])
    return counts, wanted / counts.sum(1, keepdims=True)


def _first_draws(
    plan: Plan, per_stream: int, streams: Sequence[int], num_datasets: int
) -> tuple[Int64Array, NDArray[np.float64]]:
    """Returns the first draws of each dataset in parts, and the shares that are wanted; see `_over_steps`."""
    wanted = np.ones(1)
    if isinstance(plan, BlendPlan):
        weights = np.asarray(plan.weights, np.float64)
        wanted = weights / weights.sum()
    elif isinstance(plan, EpochizedBlendPlan):
        lengths = np.array([plan.lengths(0, stream) for stream in streams], np.float64)  # [streams, datasets]
        wanted = lengths.sum(0) / max(1.0, lengths.sum())
    counts = []  # [streams, WINDOWS, datasets]: how often each dataset is drawn in consecutive parts of the draws
    for stream in streams:
        most = sum(plan.lengths(0, stream)) if isinstance(plan, EpochizedBlendPlan) else per_stream
        draws = plan.rows(0, min(per_stream, most), stream).sources
        counts.append([np.bincount(part, minlength=num_datasets) for part in np.array_split(draws, WINDOWS)])
    return np.array(counts).sum(0), np.tile(wanted, (WINDOWS, 1))
