"""The mixture of a metadataset as it is drawn: the shares that are wanted, and those that the first draws give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from energon_dali.build.mixture import blended_plan, open_sources
from energon_dali.build.options import DatasetOptions
from energon_dali.errors import ConfigError
from energon_dali.plan import BlendPlan, EpochizedBlendPlan
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.slices import Int32Array
from energon_dali.task_encoder import Cooker, DefaultTaskEncoder
from energon_dali.worker_config import WorkerConfig

DEFAULT_DRAWS = 10_000
MAX_DRAWS = 10_000_000
WINDOWS = 10
"""Consecutive parts of the draws that are counted for themselves."""


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


def drawn_mixture(
    path: str | Mapping[str, Any],
    split_part: str = "train",
    *,
    num_draws: int = DEFAULT_DRAWS,
    num_streams: int = 4,
    seed_offset: int = 0,
    trust_dataset_code: bool = False,
) -> DrawnMixture:
    """Returns which datasets the first draws of training take. Reads indices and splits, but no data.

    Args:
        path: A metadataset (.yaml, or a dict), a prepared folder or a .jsonl file.
        split_part: Part of the split.
        num_draws: Number of draws, spread evenly over the streams; rounded up to a multiple of them. An epoch of
            repeated datasets has no more than its samples.
        num_streams: Number of streams of the job: `WorkerConfig.num_streams`.
        seed_offset: Seed of the job.
        trust_dataset_code: Let code of the datasets run.

    Raises:
        ConfigError: There is no such split, or a number is out of range.
        DatasetError: A dataset cannot be opened.
        StorageError: A file cannot be read.
    """
    if not 1 <= num_draws <= MAX_DRAWS:
        raise ConfigError(f"num_draws={num_draws} is invalid: it must be from 1 to {MAX_DRAWS:,}.")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=num_streams, seed_offset=seed_offset)
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.cookers = (Cooker(_as_it_is),)
    trust = {"trust_dataset_code": True} if trust_dataset_code else {}
    options = DatasetOptions.of_call(encoder, config, trust, split_part=split_part, training=True, repeat=True)
    blend, opened = open_sources(path, options)
    sources = [one.source for one in opened]
    sizes = [source.num_samples for source in sources]
    plan = blended_plan(blend, sources, options)
    per_stream = -(-num_draws // num_streams)
    if isinstance(plan, BlendPlan):
        weights = np.asarray(plan.weights, np.float64)
        wanted = weights / weights.sum()
    elif isinstance(plan, EpochizedBlendPlan):
        lengths = np.array([plan.lengths(0, stream) for stream in config.streams], np.float64)  # [streams, datasets]
        wanted = lengths.sum(0) / max(1.0, lengths.sum())
    else:
        wanted = np.ones(1)
    streams = []
    for stream in config.streams:
        most = sum(plan.lengths(0, stream)) if isinstance(plan, EpochizedBlendPlan) else per_stream
        streams.append(plan.rows(0, min(per_stream, most), stream).sources)
    counts = np.array([_count_windows(draws, len(opened)) for draws in streams]).sum(0)  # [windows, datasets]
    draws, total = counts.sum(0), int(counts.sum())
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    rows = tuple(
        MixtureRow(
            reference.path,
            reference.split_part,
            sizes[number],
            reference.weight,
            reference.repetitions,
            float(wanted[number]),
            int(draws[number]),
            float(draws[number] / max(1, total)),
            tuple(shares[:, number].tolist()),
            float(draws[number] / sizes[number]) if sizes[number] else 0.0,
        )
        for number, reference in enumerate(blend.sources)
    )
    return DrawnMixture(blend.mode, total, rows)


def _as_it_is(sample: Any, **stores: Any) -> Any:
    return sample


def _count_windows(draws: Int32Array, num_datasets: int) -> Int64Array:
    """Returns int64[WINDOWS, num_datasets]: how often each dataset is drawn in consecutive parts of the draws."""
    return np.array([np.bincount(part, minlength=num_datasets) for part in np.array_split(draws, WINDOWS)])
