"""Bytes that a node reads from the store with a shard cache, by what the cache keeps when it is full.

The shard cache keeps what is there ("keep"); the other rules are what that is compared with.

    python -m benchmarks.remote.shard_cache_policies [--epochs 3] [--shards 100] [--samples 400] [--sample-bytes 100000]

A simulation in integers over the plans of jobs, so the result is the same on every machine. A block that is kept is
fetched whole; otherwise the bytes of the sample are. What is printed is bytes read from the store / bytes of the
samples, over all epochs: without a cache it is 1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_dali.plan.mixtures import BlendPlan
from energon_dali.plan.plan import Plan
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan

BLOCK_BYTES = 4 << 20
NEVER = int(np.iinfo(np.int64).max)

ORDERS: dict[str, dict[str, Any]] = {
    "file order": {"shuffle": False},
    "whole shards, window 1000": {"shuffle_buffer_size": 1000},
    "slices of 100, window 1000": {"max_samples_per_sequence": 100, "shuffle_buffer_size": 1000},
    "window over everything": {"shuffle_buffer_size": 1 << 20},
}
NODES = ((1, 1, 0.5), (1, 2, 0.5), (2, 1, 0.5), (2, 1, 0.25), (2, 8, 0.5), (4, 1, 0.5), (4, 1, 0.25), (8, 1, 0.125))
"""(nodes of the job, ranks per node, room of each node's cache as a share of the data)."""


@dataclass(frozen=True)
class Dataset:
    """Shards that are all alike."""

    shards: int
    samples: int
    """In each shard."""
    sample_bytes: int

    @property
    def slices(self) -> Slices:
        """All samples."""
        return Slices.whole_shards([self.samples] * self.shards)

    @property
    def block_sizes(self) -> Int64Array:
        """int64[blocks of a shard]: their sizes in bytes."""
        size = self.samples * self.sample_bytes
        return np.diff(np.append(np.arange(0, size, BLOCK_BYTES), size))


@dataclass(frozen=True)
class Reads:
    """What the ranks of a node read, in order: n uses of blocks by samples."""

    blocks: Int64Array
    """int64[n]: number of the block among those of all datasets."""
    sizes: Int64Array
    """int64[n]: bytes of the sample in the block."""
    rows: Int64Array
    """int64[n]: position in the plan."""
    block_sizes: Int64Array
    """int64[blocks]: in bytes."""


def reads_of(plan: Plan, streams: Sequence[int], stop: int, datasets: Sequence[Dataset]) -> Reads:
    """Returns what streams that take turns read, up to a position.

    Args:
        plan: The plan of the job.
        streams: Those of the node.
        stop: Position after the last.
        datasets: Its sources.
    """
    per_shard = np.array([len(one.block_sizes) for one in datasets])
    first_blocks = np.cumsum([0, *(one.shards * int(blocks) for one, blocks in zip(datasets, per_shard, strict=True))])
    columns = [plan.rows(0, stop, stream) for stream in streams]
    sources, shards, indices = (
        np.stack([getattr(rows, name) for rows in columns], axis=1).ravel().astype(np.int64)
        for name in ("sources", "shards", "indices")
    )
    sample_bytes = np.array([one.sample_bytes for one in datasets])[sources]
    begins = indices * sample_bytes
    low, high = begins // BLOCK_BYTES, (begins + sample_bytes - 1) // BLOCK_BYTES
    counts = high - low + 1
    owners = np.repeat(np.arange(len(sources)), counts)
    numbers = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts) + low[owners]
    ends = np.minimum(begins[owners] + sample_bytes[owners], (numbers + 1) * BLOCK_BYTES)
    return Reads(
        first_blocks[sources[owners]] + shards[owners] * per_shard[sources[owners]] + numbers,
        ends - np.maximum(begins[owners], numbers * BLOCK_BYTES),
        owners // len(streams),
        np.concatenate([np.tile(one.block_sizes, one.shards) for one in datasets]),
    )


class Keep:
    """Nothing is evicted."""

    def __init__(self, reads: Reads, rows_per_epoch: int) -> None:
        self._reads = reads
        self._rows_per_epoch = rows_per_epoch
        self._none = np.zeros(len(reads.block_sizes), np.int64)

    def note(self, use: int) -> None:
        """Notes that a block is used."""

    def later(self, use: int) -> tuple[Int64Array, int]:
        """Returns when blocks are needed: those that are needed later than a new one may be evicted for it.

        Args:
            use: The use for which the new block is fetched.

        Returns:
            (int64[blocks], of the new block): times, of which only the order matters.
        """
        return self._none, 0


class LeastRecentUse(Keep):
    """The block that was not used for longest is evicted."""

    def __init__(self, reads: Reads, rows_per_epoch: int) -> None:
        super().__init__(reads, rows_per_epoch)
        self._idle_since = self._none.copy()

    def note(self, use: int) -> None:
        self._idle_since[self._reads.blocks[use]] = -use

    def later(self, use: int) -> tuple[Int64Array, int]:
        return self._idle_since, -NEVER


class ByPlan(Keep):
    """The block whose next use is farthest away is evicted, as far as one to two epochs of the plan tell."""

    def __init__(self, reads: Reads, rows_per_epoch: int) -> None:
        super().__init__(reads, rows_per_epoch)
        self._following = following(reads.blocks, np.arange(len(reads.blocks)))
        self._next = np.full(len(reads.block_sizes), NEVER)
        self._planned_rows = self._planned_uses = 0

    def note(self, use: int) -> None:
        self._next[self._reads.blocks[use]] = self._following[use]

    def later(self, use: int) -> tuple[Int64Array, int]:
        now = int(self._reads.rows[use]) + 1
        if self._planned_rows < now + self._rows_per_epoch:
            self._planned_rows = now + 2 * self._rows_per_epoch
            self._planned_uses = int(np.searchsorted(self._reads.rows, self._planned_rows))
        known = np.where(self._next < self._planned_uses, self._next, NEVER)
        return known, int(known[self._reads.blocks[use]])


class ByEpoch(ByPlan):
    """A block that this node does not need in the next epoch is evicted for one that it does."""

    def __init__(self, reads: Reads, rows_per_epoch: int) -> None:
        super().__init__(reads, rows_per_epoch)
        self._epochs = reads.rows // rows_per_epoch
        self._following_epoch = following(reads.blocks, self._epochs)

    def later(self, use: int) -> tuple[Int64Array, int]:
        epoch = int(self._epochs[use])
        end = int(np.searchsorted(self._epochs, epoch + 2))
        needed = np.where(self._next < end, epoch + 1, NEVER)
        needed[self._next < int(np.searchsorted(self._epochs, epoch + 1))] = epoch
        return needed, epoch + 1 if self._following_epoch[use] == epoch + 1 else NEVER


POLICIES: dict[str, Callable[[Reads, int], Keep]] = {
    "keep": Keep,
    "by plan": ByPlan,
    "by epoch": ByEpoch,
    "LRU": LeastRecentUse,
}


def following(blocks: Int64Array, times: Int64Array) -> Int64Array:
    """Returns int64[n]: the time of the next use of each block that has a later time; NEVER if there is none.

    Args:
        blocks: int64[n]: the block of each use.
        times: int64[n], ascending: when the uses are.
    """
    found = np.full(len(blocks), NEVER)
    order = np.argsort(blocks, kind="stable")
    same_block = blocks[order[1:]] == blocks[order[:-1]]
    same_time = times[order[1:]] == times[order[:-1]]
    direct = np.flatnonzero(same_block & ~same_time)
    found[order[direct]] = times[order[direct + 1]]
    for place in np.flatnonzero(same_block & same_time)[::-1].tolist():  # further uses at the same time
        found[order[place]] = found[order[place + 1]]
    return found


def share_read(reads: Reads, stop: int, rows_per_epoch: int, room: int, policy: Callable[[Reads, int], Keep]) -> float:
    """Returns bytes read from the store / bytes of the samples, up to a position of the plan.

    Args:
        reads: What is read; what follows `stop` is for policies that look ahead.
        stop: The position.
        rows_per_epoch: Rows of an epoch.
        room: Bytes that the cache may have.
        policy: Makes what decides.
    """
    rule = policy(reads, rows_per_epoch)
    kept = np.zeros(len(reads.block_sizes), bool)
    end = int(np.searchsorted(reads.rows, stop))
    free, remote = room, 0
    blocks, sizes, block_sizes = reads.blocks[:end].tolist(), reads.sizes.tolist(), reads.block_sizes.tolist()
    for use, block in enumerate(blocks):
        rule.note(use)
        if kept[block]:
            continue
        if block_sizes[block] > free:
            times, own = rule.later(use)
            candidates = np.flatnonzero(kept & (times > own))
            victims = candidates[np.argsort(-times[candidates], kind="stable")]
            room_made = free + np.cumsum(reads.block_sizes[victims])
            enough = int(np.searchsorted(room_made, block_sizes[block])) + 1
            if enough > len(victims):
                remote += sizes[use]
                continue
            kept[victims[:enough]] = False
            free = int(room_made[enough - 1])
        kept[block] = True
        free -= block_sizes[block]
        remote += block_sizes[block]
    return remote / int(reads.sizes[:end].sum())


def compare(
    plan: Plan, streams: Sequence[int], datasets: Sequence[Dataset], room: float, epochs: int
) -> dict[str, float]:
    """Returns the share of the bytes that is read from the store, by policy.

    Args:
        plan: The plan of the job.
        streams: Those of the node.
        datasets: Its sources.
        room: Size of the node's cache, as a share of the data.
        epochs: How long the job is.
    """
    rows_per_epoch = sum(one.shards * one.samples for one in datasets) // plan.num_streams
    reads = reads_of(plan, streams, (epochs + 2) * rows_per_epoch, datasets)
    size = int(room * reads.block_sizes.sum())
    return {
        name: round(share_read(reads, epochs * rows_per_epoch, rows_per_epoch, size, policy), 3)
        for name, policy in POLICIES.items()
    }


def main() -> None:
    """Prints a line per case, and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--samples", type=int, default=400, help="in each shard")
    parser.add_argument("--sample-bytes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dataset = Dataset(options.shards, options.samples, options.sample_bytes)
    cases: list[dict[str, Any]] = []

    def run(name: str, plan: Plan, streams: Sequence[int], datasets: Sequence[Dataset], room: float) -> None:
        cases.append({"case": name, "room": room, **compare(plan, streams, datasets, room, options.epochs)})
        print(cases[-1], flush=True)

    for order, settings in ORDERS.items():
        for nodes, ranks, room in NODES:
            if settings.get("shuffle", True) or nodes == 1:
                plan = SourcePlan(dataset.slices, nodes * ranks, options.seed, repeat=True, **settings)
                run(f"{order}; {nodes} nodes, {ranks} ranks each", plan, range(ranks), [dataset], room)
    parts = [Dataset(share * options.shards // 10, options.samples, options.sample_bytes) for share in (2, 8)]
    for order, settings in ORDERS.items():
        if settings.get("shuffle", True):
            members = tuple(
                SourcePlan(part.slices, 1, options.seed, source=number, repeat=True, **settings)
                for number, part in enumerate(parts)
            )
            run(f"{order}; blend 60:40 of datasets 20:80", BlendPlan(members, (6, 4), options.seed), [0], parts, 0.5)
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
