"""Random jobs with global batches in real processes, restarted on other numbers of ranks: their steps are those of one.

    python -m tests.loader.random_jobs FOLDER SEED ...

FOLDER has what `write_damaged` writes. A job has one to four ranks, each a process with workers of its own, in a gloo
group. It stops after any micro-batch, and goes on with other ranks, workers, micro-batches and steps of another size.
In some jobs, steps are made of planned packs, and in some they are balanced.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

import energon_dali as ed
from energon_dali.plan.global_step import Uneven, step_size
from tests.loader.dataset_folder import prepare, write_shards

DATASETS = {"a": (190, 3), "b": (70, 2), "c": (41, 1)}
"""By name: the number of samples, and of shards."""
DAMAGED = ("a017", "a101", "b033", "c002")
"""More than 1 % of the samples."""
PHASES = 4
PACK_LENGTH = 100
BALANCES = (
    ed.Balance(ed.ColumnCost("tokens")),
    ed.Balance(ed.ColumnCost("tokens"), per="micro_batch", order="pipeline"),
)

Steps = dict[int, list[str]]
"""By step, the sorted texts of its samples."""


def write_damaged(root: Path) -> Path:
    """Writes datasets of texts, of which some are no UTF-8."""
    for name, (count, shards) in DATASETS.items():
        keys = [f"{name}{number:03d}" for number in range(count)]
        samples = {key: {"txt": b"\xff\xfe" if key in DAMAGED else key.encode()} for key in keys}
        prepare(write_shards(root / name, samples, shards), {"text": "txt"}, "TextSample")
    return root


class Lengths:
    """Measured lengths of a dataset: 1 to 60 tokens by the number of the sample, and some that fit no pack.

    Args:
        name: Name of the dataset.
    """

    names = ("text_tokens", "vision_tokens")

    def __init__(self, name: str) -> None:
        self.identity = name
        self.num_samples = DATASETS[name][0]

    def take(self, name: str, numbers: Any) -> Any:
        mixed = (numbers * 2654435761 + len(self.identity) * 97 + ord(self.identity)) % 1009
        return np.where(mixed % 50 == 7, PACK_LENGTH + 1, 1 + mixed % 60) if name == "tokens" else mixed % 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lengths) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def measure_in_memory() -> None:
    """Lets all datasets of this process have measures."""
    from energon_dali.assembly import measured_plan

    def open_measures(source: Any, *_: Any, **__: Any) -> Lengths:
        return Lengths(Path(source.name).name)

    measured_plan.open_measures = open_measures


class Encoder(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Draws a random number for each sample."""

    @ed.stateless(restore_seeds=True, failure_tolerance=0)
    def encode_sample(self, sample: Any) -> Any:
        sample.text = f"{sample.text} {random.random():.6f} {self.current_batch_index}"
        return sample

    @ed.stateless(restore_seeds=True, failure_tolerance=0)
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        samples[0].text = f"{' | '.join(sample.text for sample in samples)} {random.random():.6f}"
        return samples[0]


@dataclass(frozen=True)
class Layout:
    """Who computes the steps."""

    world_size: int
    num_workers: int
    batch_size: int
    global_batch_size: int
    uneven: Uneven

    @property
    def step_size(self) -> int:
        return step_size(self.global_batch_size, self.world_size, self.batch_size, self.uneven)

    @property
    def micro_batches(self) -> int:
        """Those of each rank in a step."""
        of_rank = -(-self.step_size // self.world_size)
        return -(-of_rank // self.batch_size)

    def deals_as(self, other: Layout) -> bool:
        """Returns whether a step that was begun with another layout goes on with this one."""
        return (self.world_size, self.batch_size, self.step_size) == (
            other.world_size,
            other.batch_size,
            other.step_size,
        )


@dataclass(frozen=True)
class Phase:
    """A run of a job, from a state to another."""

    layout: Layout
    done: int
    """Micro-batches of each rank."""
    weights: tuple[int, list[float]] | None
    """Weights that are set before it, (how many steps ahead, weights); None sets none."""
    skipped: tuple[int, int] | None
    """Steps that are left out, counted from its first one on; None leaves out none."""
    balance: Any = None
    """How the costs of ranks are made equal."""


@dataclass(frozen=True)
class Case:
    """A job."""

    data: Any
    on_missing: Any
    phases: list[Phase]
    packs: Any = None
    blend_by: Any = None

    def loader(self, layout: Layout, rank: int, balance: Any = None) -> Any:
        dataset = ed.get_train_dataset(
            self.data,
            worker_config=ed.WorkerConfig(rank=rank, world_size=layout.world_size, num_workers=layout.num_workers),
            batch_size=layout.batch_size,
            global_batch_size=layout.global_batch_size,
            uneven=layout.uneven,
            on_missing=self.on_missing,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=Encoder(),
            packs=self.packs,
            balance=balance,
            blend_by=self.blend_by,
        )
        return ed.get_savable_loader(dataset)


def random_case(folder: Path, seed: int) -> Case:
    """Returns a job: a blend or a single dataset, with what happens to it."""
    draw = random.Random(seed)
    names = draw.sample(sorted(DATASETS), draw.choice([1, 2, 3, 3]))
    data: Any = str(folder / names[0])
    if len(names) > 1:
        weights: list[Any] = [draw.choice([1, 0.4, {"step": {0: 1, 3: 0.2}}, {"linear": {0: 1, 9: 3}}]) for _ in names]
        blend = [{"weight": weight, "path": str(folder / name)} for weight, name in zip(weights, names, strict=True)]
        data = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
    phases: list[Phase] = []
    for _ in range(PHASES):
        layout = _random_layout(draw, phases[-1].layout if phases and draw.random() < 0.25 else None)
        done = draw.randint(1, 4 * layout.micro_batches)
        set_weights = draw.randint(1, 3), [draw.choice([0.0, 1.0, 2.0]) for _ in names[1:]] + [1.0]
        first = draw.randint(1, 3)
        skipped = first, first + draw.randint(1, 2)
        chance = draw.random()
        phases.append(
            Phase(
                layout,
                done,
                set_weights if chance < 0.25 and len(names) > 1 else None,
                skipped if chance > 0.75 else None,
                draw.choice([None, *BALANCES]),
            )
        )
    packs = draw.choice([None, *(ed.PlannedPacks(PACK_LENGTH, window=size, real_length=None) for size in (7, 40, 100))])
    blend_by = draw.choice([None, "tokens"]) if len(names) > 1 else None
    return Case(data, draw.choice(["spare", "spare", "shrink"]), phases, packs, blend_by)


def _random_layout(draw: random.Random, before: Layout | None) -> Layout:
    """Returns a layout; one that deals steps as another did, with other workers, if that is given."""
    workers = draw.choice([0, 0, 1, 2, 3, 4])
    if before is not None:
        return Layout(before.world_size, workers, before.batch_size, before.global_batch_size, before.uneven)
    world_size, batch_size = draw.randint(1, 4), draw.randint(1, 6)
    uneven: Uneven = draw.choice(["error", "round_down", "ragged"])
    size = world_size * batch_size * draw.randint(1, 4)
    return Layout(world_size, workers, batch_size, size if uneven == "error" else size + draw.randint(0, 5), uneven)


def run_phase(case: Case, phase: Phase, state: Any, scratch: Path) -> list[Any]:
    """Runs all ranks of a phase; returns what each reports: [micro-batches as (step, texts), state].

    Raises:
        RuntimeError: A rank failed; its traceback is on the standard error.
    """
    children = []
    for rank in range(phase.layout.world_size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                report = _run_rank(case, phase, rank, state, scratch)
                (scratch / f"rank-{rank}.json").write_text(json.dumps(report))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes} in {phase}")
    return [json.loads((scratch / f"rank-{rank}.json").read_text()) for rank in range(phase.layout.world_size)]


def _run_rank(case: Case, phase: Phase, rank: int, state: Any, scratch: Path) -> Any:
    world_size = phase.layout.world_size
    if world_size > 1:
        dist.init_process_group("gloo", init_method=f"file://{scratch}/meeting", rank=rank, world_size=world_size)
    with case.loader(phase.layout, rank, phase.balance) as loader:
        begin(loader, phase, state)
        batches = [
            (batch.step, batch.micro_batch, batch.is_last_of_step, batch.text if batch.num_units else [])
            for batch in islice(endless(loader), phase.done)
        ]
        report = batches, loader.save_state_rank()
    if world_size > 1:
        dist.destroy_process_group()
    return report


def begin(loader: Any, phase: Phase, state: Any) -> None:
    """Restores a state, and makes the changes with which a phase begins."""
    loader.restore_state_rank(state)
    cursor = loader.save_state_rank()["cursor"]
    if phase.weights is not None:
        loader.set_weights(phase.weights[1], from_step=cursor["step"] + phase.weights[0])
    if phase.skipped is not None:
        loader.skip_steps(*(cursor["step"] + number for number in phase.skipped))


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def run(case: Case, scratch: Path) -> tuple[Steps, list[int]]:
    """Returns the completed steps of a job, and the next step after each phase."""
    found: dict[int, list[str]] = defaultdict(list)
    state: Any = None
    ends = []
    for phase, after in zip_longest(case.phases, case.phases[1:]):
        reports = run_phase(case, phase, state, Path(tempfile.mkdtemp(dir=scratch)))
        places = [[batch[:3] for batch in batches] for batches, _ in reports]
        check(all(of_rank == places[0] for of_rank in places), "ranks deliver different places")
        state = random.Random(phase.done).choice(reports)[1]
        check(all(saved["cursor"] == state["cursor"] for _, saved in reports), "ranks save different cursors")
        for batches, _ in reports:
            for step, _, _, texts in batches:
                found[step] += texts
        ends.append(state["cursor"]["step"])
        goes_on = after is not None and after.layout.deals_as(phase.layout) and after.balance == phase.balance
        if state["cursor"]["micro_batch"] and not goes_on:
            found.pop(ends[-1])  # it begins again
    return {step: sorted(texts) for step, texts in sorted(found.items())}, ends


def run_alone(case: Case, ends: list[int]) -> Steps:
    """Returns the steps of the same job on one rank without workers, with the same changes before the same steps.

    Args:
        case: The job.
        ends: The next step after each phase.
    """
    found: Steps = {}
    state: Any = None
    for phase, end in zip(case.phases, ends, strict=True):
        size = phase.layout.step_size
        with case.loader(Layout(1, 0, size, size, "error"), 0) as loader:
            begin(loader, phase, state)
            while loader.save_state_rank()["cursor"]["step"] < end:
                batch = next(loader)
                check(batch.is_last_of_step, "a step of one rank has several micro-batches")
                found[batch.step] = sorted(batch.text) if batch.num_units else []
            state = loader.save_state_rank()
    return found


def check(is_right: bool, message: str) -> None:
    """Raises AssertionError with a message unless something is right."""
    if not is_right:
        raise AssertionError(message)


def main() -> None:
    """Runs the jobs of the command line; prints a line for each."""
    folder, *seeds = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    measure_in_memory()
    for seed in map(int, seeds):
        case = random_case(Path(folder), seed)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            found, ends = run(case, Path(scratch))
        expected = run_alone(case, ends)
        wrong = [step for step in sorted(found.keys() | expected.keys()) if found.get(step) != expected.get(step)]
        ranks = ", ".join(f"{phase.layout.world_size} x {phase.layout.num_workers}" for phase in case.phases)
        print(f"job {seed}: {len(found)} steps, ranks x workers {ranks}, {time.monotonic() - began:.1f} s", flush=True)
        check(not wrong, f"steps {wrong} differ in {case}")


if __name__ == "__main__":
    main()
