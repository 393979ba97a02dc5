"""A state says exactly which samples were seen: as many as a recorder counted, whatever happened on the way."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import energon_dali as ed
from energon_dali.datasets.step_entries import cursor_of
from energon_dali.diagnosis.seen_samples import SeenSamples, find_seen
from energon_dali.errors import SkipSample
from energon_dali.loader.loader_state import merge_states, split_state
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import SPARES, Step, attempts_of
from tests.loader.test_global_batches import scheduled, write_blend
from tests.part import sampled

Counts = dict[tuple[int, int], tuple[int, int, int]]
"""By (source, number of the sample): how often it was seen, was a spare, and failed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blend(tmp_path_factory.mktemp("texts"))


class Encoder(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Refuses some samples, and notes which, by unit."""

    decoder = None

    def __init__(self, bad: frozenset[str]) -> None:
        super().__init__()
        self.bad = bad
        self.failed: dict[int, tuple[int, int]] = {}

    @ed.stateless(failure_tolerance=0)
    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ in self.bad:
            unit, identity = facts_of(sample.__restore_key__)
            self.failed[unit] = identity
            raise SkipSample
        return sample


def facts_of(key: Any) -> tuple[int, tuple[int, int]]:
    """Returns (number of the unit or spare, (source, number of the sample)) of a sample's key."""
    source = key[-4] if "BlendDataset" in key else 0
    return key[key.index("Unit") + 1], (source, key[-2])


class Recorder:
    """A job of several ranks in this process, and what its steps delivered."""

    def __init__(self, path: Any, bad: frozenset[str], options: dict[str, Any], sizes: tuple[int, int, int]) -> None:
        self.path, self.bad, self.options = path, bad, options
        self.steps: dict[int, list[tuple[tuple[int, int], str]]] = {}
        self.loaders: list[Any] = []
        self.sizes = (0, 0, 0)
        self.open(*sizes)

    def open(self, world_size: int, batch_size: int, global_batch_size: int, states: Any = None) -> None:
        """Starts the job again, at the states of its ranks."""
        self.close()
        if states is not None and self.sizes != (world_size, batch_size, global_batch_size):
            self.steps.pop(states[0]["cursor"]["step"], None)  # it begins again
        self.sizes = (world_size, batch_size, global_batch_size)
        self.loaders = [self.loader(rank) for rank in range(world_size)]
        for rank, loader in enumerate(self.loaders):
            if states is not None:
                loader.restore_state_rank(states[rank])

    def loader(self, rank: int) -> Any:
        world_size, batch_size, global_batch_size = self.sizes
        dataset = ed.get_train_dataset(
            self.path,
            worker_config=ed.WorkerConfig(rank=rank, world_size=world_size, num_workers=0),
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=Encoder(self.bad),
            **self.options,
        )
        return ed.get_savable_loader(dataset)

    def run(self, micro_batches: int) -> None:
        for rank, loader in enumerate(self.loaders):
            encoder = encoder_of(loader)
            for _ in range(micro_batches):
                before = cursor_of(loader.save_state_rank())
                try:
                    batch = next(loader)
                except StopIteration:
                    batch = next(loader)
                found = self.steps.setdefault(batch.step, [])
                for key in batch.__restore_key__[2:]:
                    unit, identity = facts_of(key)
                    if attempts_of(unit) <= SPARES:
                        found.append((identity, "spare" if attempts_of(unit) else "planned"))
                batches = loader.dataset.global_batches.continued(before, self.sizes[0], 1)
                step = find_step(batches, batch.step)
                units = batches.micro_batch_of_step(step, rank, batch.micro_batch).units.tolist()
                found += [(encoder.failed[unit], "failed") for unit in units if unit in encoder.failed]

    def states(self) -> list[Any]:
        return [json.loads(json.dumps(loader.save_state_rank())) for loader in self.loaders]

    @property
    def next_step(self) -> int:
        cursor = self.loaders[0].save_state_rank()["cursor"]
        return int(cursor["step"] + (cursor["micro_batch"] > 0))

    def finish_step(self) -> None:
        while self.loaders[0].save_state_rank()["cursor"]["micro_batch"]:
            self.run(1)

    def skip(self, first: int, stop: int) -> None:
        if first <= self.loaders[0].save_state_rank()["cursor"]["step"] < stop:
            self.steps.pop(self.loaders[0].save_state_rank()["cursor"]["step"], None)
        for loader in self.loaders:
            loader.skip_steps(first, stop)

    def resize(self, world_size: int) -> None:
        """Changes the ranks of the running job, after the end of a step. New ones take the state of the first one."""
        old = self.loaders[:world_size]
        for loader in self.loaders[world_size:]:
            loader.close()
        for rank, loader in enumerate(old):
            loader.resize(rank, world_size)
        self.sizes = (world_size, *self.sizes[1:])
        new = [self.loader(rank) for rank in range(len(old), world_size)]
        for loader in new:
            loader.restore_state_rank(old[0].save_state_rank())
        self.loaders = [*old, *new]

    def counts(self) -> Counts:
        found: dict[str, Counter[tuple[int, int]]] = {kind: Counter() for kind in ("planned", "spare", "failed")}
        for step in self.steps.values():
            for identity, kind in step:
                found[kind][identity] += 1
        planned, spare, failed = found["planned"], found["spare"], found["failed"]
        return {one: (planned[one] + spare[one], spare[one], failed[one]) for one in {*planned, *spare, *failed}}

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def find_step(batches: GlobalBatchPlan, number: int) -> Step:
    """Returns a step of a job, in whatever epoch it is."""
    found = batches.find_step(number)
    epoch = 0
    while found is None:
        epoch += 1
        steps = [batches.step_at(epoch, one) for one in range(batches.steps_of_epoch(epoch))]
        found = next((step for step in steps if step.number == number), None)
    return found


def encoder_of(loader: Any) -> Encoder:
    """Returns the task encoder of a loader."""
    dataset = loader.dataset
    while True:
        owner = getattr(getattr(dataset, "map_fn", None), "__self__", None)
        if isinstance(owner, Encoder):
            return owner
        (dataset,) = dataset.children


def as_counts(seen: SeenSamples) -> Counts:
    return {(one.source, one.number): (one.seen, one.spare, one.failed) for one in seen}


def bad_samples(draw: random.Random, share: float) -> frozenset[str]:
    keys = [f"a{number:03d}" for number in range(60)] + [f"b{number:03d}" for number in range(25)]
    return frozenset(key for key in keys if draw.random() < share)


@pytest.mark.parametrize("seed", sampled(range(120), 60))
def test_seen_equals_what_a_recorder_counted(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    kind = ("weights", "schedule", "linear", "single", "epochs")[seed % 5]
    path: Any = {
        "weights": folder / "blend.yaml",
        "schedule": scheduled(folder, a={"step": {0: 1, 4: 3, 9: 1}}, b=1),
        "linear": scheduled(folder, a={"linear": {0: 1, 20: 0.2}}, b=1),
    }.get(kind, folder / "a")
    options: dict[str, Any] = {"on_missing": draw.choice(["spare", "spare", "shrink"]), "uneven": "round_down"}
    if kind == "epochs":
        options |= {"repeat": False, "batch_drop_last": draw.random() < 0.5}
    bad = bad_samples(draw, draw.choice([0.01, 0.1, 0.4]))

    def sizes() -> tuple[int, int, int]:
        world_size, batch_size = draw.randint(1, 4), draw.randint(1, 3)
        return world_size, batch_size, world_size * batch_size * draw.randint(1, 3) + draw.choice([0, 0, 1])

    job = Recorder(path, bad, options, sizes())
    try:
        for _ in range(12):
            job.run(draw.randint(1, 5))
            what = draw.choice(["nothing", "restore", "same", "skip", "weights", "grow"])
            first = job.next_step
            if what == "restore":
                states, new = job.states(), sizes()
                whole = merge_states(states)
                job.open(*new, draw.choice([[whole] * new[0], split_state(whole, new[0])]))
            elif what == "same":
                job.open(*job.sizes, job.states())
            elif what == "skip":
                begin = first + draw.randint(-1, 2)
                job.skip(max(0, begin), max(0, begin) + draw.randint(1, 3))
            elif what == "weights" and kind in ("weights", "schedule", "linear"):
                weights = [draw.random() + 0.1, draw.random() + 0.1]
                step = first + draw.randint(0, 3)
                for loader in job.loaders:
                    loader.set_weights(weights, from_step=step)
                    encoder_of(loader).failed.clear()  # what was read ahead is another sample now
            elif what == "grow":
                job.finish_step()
                least = job.sizes[1]
                job.resize(draw.randint(job.sizes[0], max(job.sizes[0], job.sizes[2] // least)))
            states = job.states()
            seen = find_seen(job.loaders[0].dataset, states)
            assert seen.incomplete == []
            assert as_counts(seen) == job.counts()
            assert [states[0][name] for name in ("cursor", "global_batch")] == [
                states[-1][name] for name in ("cursor", "global_batch")
            ]
    finally:
        job.close()


@pytest.mark.parametrize("step", [None, 2])
def test_what_came_before_a_start_at_consumed_samples_counts_as_planned(folder: Path, step: int | None) -> None:
    """Two numbers say which units came before; nobody noted which of them failed."""

    def loader_of() -> Any:
        dataset = ed.get_train_dataset(
            folder / "blend.yaml",
            worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=4,
            global_batch_size=8,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=Encoder(frozenset()),
        )
        return ed.get_savable_loader(dataset)

    with loader_of() as loader:
        loader.start_at(24, step=step)
        list(zip(range(4), loader, strict=False))
        state = loader.save_state_rank()
    with loader_of() as loader:
        list(zip(range(10), loader, strict=False))
        whole = loader.save_state_rank()
        found, expected = (list(find_seen(loader.dataset, [one])) for one in (state, whole))
        incomplete = find_seen(loader.dataset, [state]).incomplete
    assert found == expected
    assert len(incomplete) == 1
    assert "units 0 to 23" in incomplete[0]


MANY = 100
"""Sources of a large blend."""


def many_weights(draw: random.Random) -> list[float]:
    return [draw.choice([0.0, draw.random(), draw.random()]) for _ in range(MANY)]


def change_often(job: Recorder, draw: random.Random, calls: int) -> None:
    """Sets weights at this step or a later one, at once or moving, and runs a step."""
    for number in range(calls):
        first = job.next_step + draw.choice([0, 0, 1])
        weights = many_weights(draw)
        for loader in job.loaders:
            loader.set_weights(weights, from_step=first, until_step=first + 2 if number % 5 == 1 else None)
            encoder_of(loader).failed.clear()
        job.run(2)


@pytest.mark.sweep
def test_a_state_stays_small_however_often_weights_are_set(folder: Path) -> None:
    blend: Any = {
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": [{"weight": 1 + n % 3, "path": str(folder / "ab"[n % 2])} for n in range(MANY)]}},
    }
    jobs = [Recorder(blend, bad_samples(random.Random(1), 0.1), {}, (1, 32, 64)) for _ in range(2)]
    undisturbed, job = jobs
    draws = [random.Random(2), random.Random(2)]
    try:
        for number in range(5):
            for one, draw in zip(jobs, draws, strict=True):
                change_often(one, draw, 10)
            states = job.states()
            # The dataset's config and the log have bounds of their own.
            for state in states:
                rest = {name: value for name, value in state.items() if name not in ("config", "log", "failures")}
                assert len(json.dumps(rest)) <= 2048 + 24 * MANY * len(rest["cursor"]["weights"])
                assert len(rest["cursor"]["weights"]) <= 2
            assert [(state["cursor"], state["log"]) for state in states] == [
                (state["cursor"], state["log"]) for state in undisturbed.states()
            ]
            if number % 2 == 1:
                job.open(*job.sizes, states)
        assert job.steps == undisturbed.steps
        assert len(states[0]["log"]["weights"]) >= 40
        seen = find_seen(job.loaders[0].dataset, states)
        assert seen.incomplete == []
        assert as_counts(seen) == job.counts()
        job.open(2, 4, 48, [merge_states(states)] * 2)
        for world_size in (3, 4):
            change_often(job, draws[1], 2)
            job.finish_step()
            job.resize(world_size)
        seen = find_seen(job.loaders[0].dataset, job.states())
        assert as_counts(seen) == job.counts()
    finally:
        for one in jobs:
            one.close()


def test_weights_that_a_log_has_no_room_for_leave_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which samples came is known from the counts of the datasets; which of them failed is not."""
    monkeypatch.setattr("energon_dali.loader.delivery_log.MAX_HISTORY_BYTES", 200)
    for bad in (frozenset[str](), bad_samples(random.Random(3), 0.1)):
        job = Recorder(folder / "blend.yaml", bad, {}, (2, 3, 12))
        try:
            for number in range(12):
                for loader in job.loaders:
                    loader.set_weights([0.1 * number, 1.0], from_step=job.next_step)
                    encoder_of(loader).failed.clear()
                job.run(2)
            states = job.states()
            assert (states[0]["log"]["weights"], states[0]["log"]["history_lost"]) == ([], True)
            job.open(2, 2, 8, states)
            job.run(4)
            seen = find_seen(job.loaders[0].dataset, job.states())
            begin = states[0]["cursor"]["base"]["drawn_from"]
            assert begin > 100
            assert len(seen.incomplete) == 1
            assert f"failed or were left out in units 0 to {begin - 1}" in seen.incomplete[0]
            assert seen.num_seen == sum(kind != "failed" for step in job.steps.values() for _, kind in step)
            if not bad:
                assert as_counts(seen) == job.counts()
        finally:
            job.close()
