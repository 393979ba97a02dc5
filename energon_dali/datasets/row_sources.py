"""The sources that the rows of a plan name: their order, and what reads and loads their samples."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.restore_key import try_restore
from energon_dali.errors import DatasetError, StateError
from energon_dali.plan.rng import Int64Array, mix
from energon_dali.plan.source import SourcePlan
from energon_dali.samples.base import Key
from energon_dali.shards import RawSample, ShardReader
from energon_dali.shards.raw_sample import IndexedSample
from energon_dali.shards.read_ahead import PlannedReads


class RawReader(Protocol):
    """Reads raw samples by shard and index."""

    def read(self, shard_indices: Sequence[int], sample_indices: Sequence[int]) -> list[RawSample | DatasetError]:
        """Returns one raw sample, or the error that prevented it, per pair of indices."""

    @property
    def shard_starts(self) -> Int64Array:
        """int64[number of shards]: the number in the dataset of sample 0 of each shard."""

    def index_of(self, shard_index: int, sample_index: int) -> int:
        """Returns the number of a sample in the whole dataset."""

    def locate(self, index: int) -> tuple[int, int]:
        """Returns (shard index, sample index) of a sample's number in the whole dataset."""

    def name(self, shard_index: int, sample_index: int) -> tuple[str, str]:
        """Returns (name of the shard, key of the sample); "" for what is not known."""

    def indexed(self, shard_index: int, sample_index: int) -> IndexedSample:
        """Returns what the index has on a sample; reads no shard."""

    def planned_reads(self, window: int, lanes: int) -> Reads | None:
        """Returns an object that reads ahead in a planned order; None where reading waits for nothing.

        Args:
            window: Window of the order's shuffle, in samples.
            lanes: Number of its interleave lanes.
        """

    def expect_order(self, window: int, slice_length: float) -> None:
        """Takes the window of the order's shuffle, and the mean length of its slices, in samples."""

    def note_speed(self, seconds: float, num_samples: int, size: int) -> None:
        """Records how long a read of some samples, of a size in bytes, took."""

    def close(self) -> None:
        """Closes all open files."""


class Reads(Protocol):
    """Reads samples in a planned order; see PlannedReads."""

    def __len__(self) -> int:
        """Returns the number of rows that are planned and not taken."""

    def rows_wanted(self) -> int:
        """Returns how many more rows to plan now."""

    def plan(self, shards: Sequence[int], samples: Sequence[int]) -> None:
        """Adds the next rows."""

    def issue(self, count: int | None = None) -> None:
        """Requests the next rows; None requests as many as the limits allow."""

    def is_next_read(self) -> bool:
        """Returns whether the bytes of the next sample are there, so that taking it neither waits nor fails."""

    def take(self) -> RawSample | DatasetError:
        """Returns the next sample, or the error that prevented reading it."""

    def clear(self) -> None:
        """Forgets all rows."""

    def close(self) -> None:
        """Forgets all rows, and stops reading."""


@dataclass(frozen=True, eq=False)
class Source:
    """One dataset, as the rows of a plan name it."""

    plan: SourcePlan
    """The order of its samples."""
    reader: RawReader
    """Reads raw samples; picklable."""
    load: SampleLoader
    """Makes a sample of a raw sample."""
    name: str
    """Its path, for messages."""
    config: Mapping[str, Any]
    """What identifies it in a state."""

    @property
    def num_samples(self) -> int:
        """Number of its samples in the split part."""
        return self.plan.num_samples

    def read(
        self, shards: Sequence[int], samples: Sequence[int], seeds: Sequence[int]
    ) -> list[RawSample | DatasetError]:
        """Returns what `RawReader.read` returns; of large parts what the seeds of the samples choose."""
        if isinstance(self.reader, ShardReader) and self.reader.chooser is not None:
            return self.reader.read(shards, samples, seeds)
        return self.reader.read(shards, samples)

    def plan_reads(self, reads: Reads, shards: Sequence[int], samples: Sequence[int], seeds: Sequence[int]) -> None:
        """Adds the next rows to what reads this source ahead; of large parts what the seeds of the samples choose."""
        if isinstance(self.reader, ShardReader) and self.reader.chooser is not None:
            assert isinstance(reads, PlannedReads)
            reads.plan(shards, samples, seeds)
        else:
            reads.plan(shards, samples)

    def number_of(self, index: int) -> int:
        """Returns the number in the dataset of a sample of the split part.

        Args:
            index: 0 <= index < num_samples.
        """
        ranges = self.plan.base
        ends = np.cumsum(ranges.lengths)
        at = int(np.searchsorted(ends, index, side="right"))
        shard, inside = int(ranges.shard[at]), int(ranges.stop[at]) - int(ends[at]) + index
        return int(self.reader.shard_starts[shard]) + inside

    def at_position(self, number: int) -> Source:
        """Returns a copy for one position in a mixture, where the same data has other random draws."""
        source_number = mix(self.plan.source, number)
        load = copy.copy(self.load)
        load.source_number = source_number
        return replace(self, plan=self.plan.for_source(source_number), load=load)

    def restore(self, keys: Sequence[Key]) -> list[Any]:
        """Returns the samples of keys (name, number in the dataset, pass), read again; errors in place of lost ones.

        Raises:
            StateError: A key is not of this dataset.
        """
        try:
            locations = [self.reader.locate(key[1]) for key in keys]
        except DatasetError as error:
            raise StateError(str(error)) from error
        seeds = self.load.seeds(np.array([key[2] for key in keys]), np.array([key[1] for key in keys]))
        raws = self.read([shard for shard, _ in locations], [inside for _, inside in locations], seeds)
        return [
            try_restore(partial(self._load, raw, seed), key) for raw, seed, key in zip(raws, seeds, keys, strict=True)
        ]

    def _load(self, raw: RawSample | DatasetError, seed: int, key: Key) -> Any:
        if isinstance(raw, DatasetError):
            raise raw
        return self.load(raw, seed, key)


def short_names(paths: Sequence[str]) -> list[str]:
    """Returns the last parts of paths, as many as tell them apart; equal paths get a number: "train#2"."""
    twice = Counter(paths)
    parts = {path: path.rstrip("/").split("/") for path in twice}
    names: dict[str, str] = {}
    length = 1
    while len(names) < len(parts):
        tails = {path: "/".join(parts[path][-length:]) for path in parts if path not in names}
        shared = Counter(tails.values())
        names.update({path: tail for path, tail in tails.items() if shared[tail] == 1 or length >= len(parts[path])})
        length += 1
    seen: Counter[str] = Counter()
    result = []
    for path in paths:
        seen[names[path]] += 1
        result.append(names[path] if twice[path] == 1 else f"{names[path]}#{seen[names[path]]}")
    return result
