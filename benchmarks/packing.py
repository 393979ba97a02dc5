"""Packing texts: energon_dali and megatron-energon with the same packing function, and our own packer.

States are saved at a fixed interval of packs. Such a run ends by restoring one, and checks the pack that follows.
"""

from __future__ import annotations

from benchmarks.cpu import ENERGON, OURS
from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Plain, Workload

TEXTS = Recipe(name="texts", style="texts", samples=100_000, shards=10, seed=40)
SMALL, LARGE = 1000, 10_000


def _name(library: str, workers: int, save_every: int, packer: str = "", decoder: str = "") -> str:
    states = f", a state every {save_every} packs" if save_every > 1 else ", a state every pack" if save_every else ""
    return f"{library}{packer}{decoder}, {workers} workers{states}"


def _pair(buffer: int, workers: int, save_every: int) -> tuple[Candidate, Candidate]:
    """Returns energon_dali and megatron-energon with the same function."""
    options: dict[str, Plain] = {
        "packer": "greedy_knapsack",
        "buffer": buffer,
        "workers": workers,
        "save_every": save_every,
    }
    return (
        Candidate(
            name=_name("energon_dali", workers, save_every), program="packing", options={**options, "library": OURS}
        ),
        Candidate(
            name=_name("megatron-energon", workers, save_every),
            program="packing",
            options={**options, "library": ENERGON},
            environment="energon",
        ),
    )


def _planned(buffer: int, workers: int, save_every: int) -> Candidate:
    """Returns packs that are planned from measured lengths."""
    return Candidate(
        name=_name("energon_dali", workers, save_every, packer=" PlannedPacks"),
        program="packing",
        options={
            "library": OURS,
            "buffer": buffer,
            "workers": workers,
            "save_every": save_every,
            "packer": "planned",
        },
    )


def _own(buffer: int, workers: int, save_every: int) -> tuple[Candidate, ...]:
    """Returns SequencePacker, packs that are planned, and the same function packing in the rank's process."""
    options: dict[str, Plain] = {"library": OURS, "buffer": buffer, "workers": workers, "save_every": save_every}
    return (
        Candidate(
            name=_name("energon_dali", workers, save_every, packer=" SequencePacker"),
            program="packing",
            options={**options, "packer": "sequence"},
        ),
        _planned(buffer, workers, save_every),
        Candidate(
            name=_name("energon_dali", workers, save_every, decoder=" DALI"),
            program="packing",
            options={**options, "packer": "greedy_knapsack", "decoder": "dali"},
        ),
    )


def _throughput(buffer: int, rounds: int) -> Workload:
    pairs = [_pair(buffer, workers, save_every) for workers in (0, 2) for save_every in (0, 10)]
    own = _own(buffer, 2, 10)
    with_states = pairs[-1][1].name
    return Workload(
        name=f"packing-{buffer}",
        title=f"Packing texts, buffer of {buffer:,} samples",
        metric="packs_per_second",
        unit="packs/s",
        recipe=TEXTS,
        samples=rounds * buffer,
        repetitions=3,
        candidates=(*(one for pair in pairs for one in pair), *own),
        bars=(
            *(Bar(of=ours.name, to=energon.name, at_least=1.0) for ours, energon in pairs),
            *(Bar(of=one.name, to=with_states, at_least=1.0) for one in own),
            *(
                Bar(of=ours.name, to=energon.name, at_most=1.0, metric="cpu_milliseconds_per_pack")
                for ours, energon in pairs
            ),
            # The orders differ, and with them the last, partly filled pack of each buffer.
            *(Bar(of=ours.name, to=energon.name, at_least=0.998, metric="fill") for ours, energon in pairs),
        ),
    )


def _saving() -> Workload:
    pairs = [_pair(LARGE, 2, save_every) for save_every in (1, 10, 100)]
    planned = _planned(LARGE, 2, 10)
    return Workload(
        name="packing-saving",
        title=f"Saving a state, buffer of {LARGE:,} samples in each of 2 workers",
        metric="saving_milliseconds",
        unit="ms",
        better="lower",
        recipe=TEXTS,
        samples=1500,
        repetitions=3,
        candidates=(*(one for pair in pairs for one in pair), planned),
        bars=tuple(
            Bar(of=ours.name, to=energon.name, at_most=1.0, metric=metric)
            for metric in ("saving_milliseconds", "state_bytes", "restored_pack_seconds")
            for ours, energon in (*pairs, (planned, pairs[1][1]))
        ),
    )


WORKLOADS = (_throughput(SMALL, rounds=10), _throughput(LARGE, rounds=1), _saving())
