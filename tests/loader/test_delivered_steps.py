"""The steps of a job, by its state or its debug logs, are those that its ranks received."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import energon_dali as ed
from energon_dali.diagnosis.dataset_of_state import open_dataset_of, open_streams_of
from energon_dali.diagnosis.debug_logs import find_logs
from energon_dali.diagnosis.delivered_steps import DeliveredSteps
from energon_dali.diagnosis.logged_steps import LoggedSteps
from energon_dali.diagnosis.planned_steps import PlannedSteps
from energon_dali.errors import ConfigError, SkipSample, StateError, StorageError
from energon_dali.loader.loader_state import merge_states, pack_config, unpack_config
from tests.loader.test_global_batches import write_blend
from tests.loader.test_seen_samples import Recorder

BAD = frozenset({"a003", "a017", "b011", "b012", "a044"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blend(tmp_path_factory.mktemp("texts"))


class Encoder(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None

    @ed.stateless(failure_tolerance=0)
    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ in BAD:
            raise SkipSample
        return sample


class Plain(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None


def loaders(path: Path, world_size: int, **options: Any) -> list[Any]:
    found = []
    for rank in range(world_size):
        config = ed.WorkerConfig(rank=rank, world_size=world_size, num_workers=0, **options.get("log", {}))
        rest = {name: value for name, value in options.items() if name not in ("log", "hooks")}
        dataset = ed.get_train_dataset(
            path,
            worker_config=config,
            batch_size=3,
            task_encoder=Encoder() if options.get("hooks", True) else Plain(),
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            **rest,
        )
        found.append(ed.get_savable_loader(dataset))
    return found


def steps_of(states: list[Any], path: Path) -> DeliveredSteps:
    states = [json.loads(json.dumps(state)) for state in states]
    return DeliveredSteps(open_dataset_of(merge_states(states), str(path)), states)


def key_of(sources: Any, sample: Any, number: int | None = None) -> str:
    reader = sources[sample.source].reader
    return str(reader.indexed(*reader.locate(sample.number if number is None else number)).key)


@pytest.mark.parametrize("on_missing", ["spare", "shrink"])
def test_a_state_says_which_micro_batch_of_which_rank_had_a_sample(folder: Path, on_missing: str) -> None:
    running = loaders(folder / "blend.yaml", 2, global_batch_size=24, on_missing=on_missing)
    received: dict[tuple[int, int, int], list[str]] = {}
    states = []
    for rank, loader in enumerate(running):
        for batch in islice(iter(loader), 18):
            received[batch.step, rank, batch.micro_batch] = list(batch.__key__)
        states.append(loader.save_state_rank())
        loader.close()
    steps = steps_of(states, folder / "blend.yaml")
    assert (steps.num_delivered, steps.world_size, steps.notes) == (4, 2, [])
    shown: dict[tuple[int, int, int], list[str]] = {}
    outcomes = set()
    for number in range(5):
        for batch in steps.step(number) or []:
            assert batch.rank is not None
            assert batch.micro_batch is not None
            found = [key_of(steps.sources, one) for one in batch.samples if one.outcome in ("delivered", "spare")]
            if found:
                shown[number, batch.rank, batch.micro_batch] = found
            outcomes |= {one.outcome for one in batch.samples}
            for one in batch.samples:
                if one.outcome == "spare":
                    assert key_of(steps.sources, one, one.failed) in BAD
                elif one.outcome == "failed":
                    assert key_of(steps.sources, one) in BAD
    assert shown == received
    assert outcomes == {"delivered", "planned", "spare" if on_missing == "spare" else "failed"}
    later = [batch.samples for batch in steps.step(1000) or []]
    assert sum(map(len, later)) == 24
    assert {one.outcome for samples in later for one in samples} == {"planned"}


def test_steps_of_several_sizes_are_those_that_a_recorder_noted(folder: Path) -> None:
    job = Recorder(folder / "blend.yaml", BAD, {}, (2, 3, 12))
    job.run(6)
    job.finish_step()
    job.open(1, 4, 20, [merge_states(job.states())])
    job.run(10)
    job.finish_step()
    job.skip(job.next_step + 1, job.next_step + 3)
    job.run(10)
    job.finish_step()
    steps = steps_of(job.states(), folder / "blend.yaml")
    job.close()
    assert any("number of ranks changed" in note for note in steps.notes)
    for number in range(steps.num_delivered):
        samples = [one for batch in steps.step(number) or [] for one in batch.samples]
        expected = [identity for identity, outcome in job.steps.get(number, []) if outcome != "failed"]
        found = [(one.source, one.number) for one in samples if one.outcome in ("delivered", "spare")]
        assert sorted(found) == sorted(expected), number
        if number not in job.steps:
            assert {one.outcome for one in samples} == {"left out"}


def test_without_the_balance_of_the_job_ranks_are_not_known(folder: Path) -> None:
    running = loaders(folder / "a", 1, global_batch_size=6)
    list(islice(iter(running[0]), 4))
    state = running[0].save_state_rank()
    running[0].close()
    exact = steps_of([state], folder / "a")
    steps = steps_of([{**state, "balance": "Balance(tokens)"}], folder / "a")
    assert "not which rank had them" in steps.notes[0]
    assert {batch.rank for batch in steps.step(1) or []} == {None}
    found = [one.number for batch in steps.step(1) or [] for one in batch.samples]
    assert sorted(found) == sorted(one.number for batch in exact.step(1) or [] for one in batch.samples)


def streams(path: Path, world_size: int) -> tuple[dict[tuple[int, int], list[str]], list[Any]]:
    """Returns (keys by step and rank, states) of a job of streams."""
    received, states = {}, []
    for rank, loader in enumerate(loaders(path, world_size, hooks=False)):
        for step, batch in enumerate(islice(iter(loader), 7)):
            received[step, rank] = list(batch.__key__)
        states.append(json.loads(json.dumps(loader.save_state_rank())))
        loader.close()
    return received, states


@pytest.mark.parametrize("name", ["a", "blend.yaml"])
def test_a_state_of_streams_says_what_was_planned(folder: Path, name: str) -> None:
    received, states = streams(folder / name, 2)
    whole = merge_states(states)
    steps = PlannedSteps(open_streams_of(whole, str(folder / name)), states)
    assert (steps.num_delivered, steps.world_size) == (7, 2)
    assert "as they were planned" in steps.notes[0]
    shown = {}
    for number in range(7):
        for batch in steps.step(number) or []:
            shown[number, batch.rank] = [key_of(steps.sources, one) for one in batch.samples]
            assert {one.outcome for one in batch.samples} == {"delivered"}
    assert shown == received
    assert {one.outcome for batch in steps.step(9) or [] for one in batch.samples} == {"planned"}


def test_states_that_do_not_say_what_steps_had_are_refused(folder: Path) -> None:
    _, states = streams(folder / "a", 1)
    with pytest.raises(StateError, match="without global batches"):
        steps_of(states, folder / "a")
    with pytest.raises(StateError, match="another dataset"):
        open_streams_of(states[0], str(folder / "b"))
    packed = {**unpack_config(states[0]), "type": "PackingDataset"}
    with pytest.raises(StateError, match=r"PackingDataset decided .*Give the debug logs"):
        open_streams_of({**states[0], "config": pack_config(packed)}, str(folder / "a"))


# --- debug logs ------------------------------------------------------------------------------------------------------


def test_logs_say_what_each_rank_received(folder: Path, tmp_path: Path) -> None:
    log = {"worker_log_level": 1, "worker_debug_path": str(tmp_path / "logs" / "{worker_id}.jsonl")}
    received = {}
    for rank, loader in enumerate(loaders(folder / "a", 2, log=log)):
        for step, batch in enumerate(islice(iter(loader), 5)):
            received[step, rank] = list(batch.__key__)
        loader.close()
    files = find_logs([tmp_path / "logs"])
    steps = LoggedSteps(files)
    assert (steps.num_steps, steps.world_size) == (5, 2)
    assert {(step, rank): found for step in range(5) for rank, found in steps.step(step) or []} == received
    assert steps.step(5) is None
    files[0].write_text("{")
    with pytest.raises(StorageError, match="changed"):
        steps.step(4)
    (tmp_path / "empty.jsonl").write_text("not json\n")
    with pytest.raises(ConfigError, match="holds no batches"):
        LoggedSteps([tmp_path / "empty.jsonl"])
