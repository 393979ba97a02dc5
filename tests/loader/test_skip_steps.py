"""`loader.skip_steps` leaves out a range of steps and nothing else, whatever is saved and restored around it."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    ConfigError,
    SavableDataLoader,
    SkipSample,
    StateError,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_dali.loader.loader_state import merge_states
from tests.loader.dataset_folder import prepare, write_shards
from tests.part import sampled

pytestmark = pytest.mark.usefixtures("warm_workers")

STREAMS = 8
COUNT = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("skipped")
    for name, count in (("a", 90), ("b", 31)):
        samples = {f"{name}{number:03d}": {"txt": f"{name} {number}".encode()} for number in range(count)}
        prepare(write_shards(root / name, samples), {"text": "txt"}, "TextSample")
    blend = {"blend": [{"path": "a", "weight": 2}, {"path": "b", "weight": 1}]}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": blend}}
    (root / "mix.yaml").write_text(json.dumps(document))
    return root


class Choosy(TaskEncoder[Any, Any, Any, Any]):
    """Skips every fifth sample."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__[1:]) % 5 == 0:
            raise SkipSample
        return sample


def loader(
    path: Path, rank: int = 0, ranks: int = 1, workers: int = 0, options: Any = None, **more: Any
) -> SavableDataLoader[Any]:
    job = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers, num_streams=STREAMS)
    dataset = get_train_dataset(
        str(path), worker_config=job, batch_size=3, shuffle_buffer_size=10, max_samples_per_sequence=7, **more
    )
    return get_savable_loader(dataset, **(options or {}))


def keys(batches: Any, count: int) -> list[list[str]]:
    return [batch.__key__ for batch in islice(batches, count)]


def saved(one: SavableDataLoader[Any]) -> Any:
    return json.loads(json.dumps(one.save_state_rank()))


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", ["a", "mix.yaml"])
@pytest.mark.parametrize("by", ["plan", "run"])
def test_nothing_but_the_range_is_left_out(data: Path, ranks: int, name: str, by: Any) -> None:
    for rank in range(ranks):
        whole = loader(data / name, rank, ranks)
        expected = keys(whole, COUNT)
        one = loader(data / name, rank, ranks)
        one.skip_steps(11, 24, by=by)
        assert keys(one, COUNT - 13) == expected[:11] + expected[24:]
        assert saved(one) == saved(whole)
        assert one.stats().counts["steps.skipped"] == 13


def test_skipped_steps_are_not_read(data: Path) -> None:
    one = loader(data / "mix.yaml")
    one.skip_steps(0, 100_000)
    assert one.stats().counts.get("samples.read", 0) == 0
    keys(one, 8)
    assert one.stats().counts["samples.read"] < 8 * STREAMS * 32


@pytest.mark.parametrize("by", ["plan", "run"])
def test_a_state_before_inside_or_after_the_range_goes_on_as_if_nothing_had_happened(data: Path, by: Any) -> None:
    whole = loader(data / "mix.yaml")
    expected, states = [], [saved(whole)]
    for batch in islice(whole, COUNT):
        expected.append(batch.__key__)
        states.append(saved(whole))
    wanted = expected[:11] + expected[24:]
    one = loader(data / "mix.yaml")
    one.skip_steps(11, 24, by=by)
    own_states, own = [saved(one)], []
    for batch in islice(one, len(wanted)):
        own.append(batch.__key__)
        own_states.append(saved(one))
    assert own == wanted
    assert own_states[12:] == states[25:]
    for delivered, state in enumerate(own_states):
        again = loader(data / "mix.yaml")
        again.restore_state_rank(state)
        following = wanted[delivered : delivered + 4]
        assert keys(again, len(following)) == following
        assert saved(again) == own_states[delivered + len(following)]
    for step in (0, 10, 11, 17, 23, 24, 30):  # states of a run that delivered all of it
        for order in ("restore first", "skip first"):
            again = loader(data / "mix.yaml")
            if order == "restore first":
                again.restore_state_rank(states[step])
            again.skip_steps(11, 24, by=by)
            if order == "skip first":
                again.restore_state_rank(states[step])
            rest = expected[step:11] + expected[max(step, 24) :] if step < 11 else expected[max(step, 24) :]
            assert keys(again, 3) == rest[:3], (step, order)


def test_a_range_may_be_given_between_two_batches_and_twice(data: Path) -> None:
    expected = keys(loader(data / "a"), COUNT)
    one = loader(data / "a")
    batches = iter(one)
    assert keys(batches, 5) == expected[:5]
    one.skip_steps(3, 9)  # two of them were delivered already
    assert keys(batches, 4) == expected[9:13]
    one.skip_steps(20, 22)
    one.skip_steps(14, 16)
    assert keys(batches, 8) == [*expected[13:14], *expected[16:20], *expected[22:25]]


@pytest.mark.parametrize(
    ("by", "decode_process"), sampled([("plan", False), ("run", False), ("plan", True), ("run", True)], 3)
)
def test_workers_leave_out_the_same(data: Path, by: Any, decode_process: bool) -> None:
    expected = keys(loader(data / "mix.yaml"), COUNT)
    with loader(data / "mix.yaml", workers=2, options={"decode_process": decode_process}) as one:
        one.skip_steps(0, 3, by=by)
        one.skip_steps(11, 24, by=by)
        assert keys(one, COUNT - 16) == expected[3:11] + expected[24:]
        assert saved(one)["streams"] == saved_after(data, COUNT)["streams"]


def saved_after(data: Path, count: int) -> Any:
    one = loader(data / "mix.yaml")
    keys(one, count)
    return saved(one)


def test_hooks_that_may_skip_are_run_by_default(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = loader(data / "a", task_encoder=Choosy())
    expected = keys(whole, COUNT)
    one = loader(data / "a", task_encoder=Choosy())
    with caplog.at_level(logging.INFO, "energon_dali.loader"):
        one.skip_steps(11, 24)
    assert "by run, because encode_sample may skip samples" in caplog.text
    assert keys(one, COUNT - 13) == expected[:11] + expected[24:]
    assert saved(one) == saved(whole)


def test_epochs_end_where_they_would_have_ended(data: Path) -> None:
    def epochs(one: Any) -> list[list[list[str]]]:
        return [[batch.__key__ for batch in one] for _ in range(5)]

    expected = epochs(loader(data / "a", virtual_epoch_length=6))
    one = loader(data / "a", virtual_epoch_length=6)
    one.skip_steps(4, 19)
    assert epochs(one) == [expected[0][:4], [], [], expected[3][1:], expected[4]]


def test_the_end_of_the_data_ends_the_range(data: Path) -> None:
    def val() -> Any:
        job = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=STREAMS)
        return get_savable_loader(get_val_dataset(str(data / "b"), worker_config=job, batch_size=3))

    expected = [batch.__key__ for batch in val()]
    one = val()
    one.skip_steps(2, 1000)
    assert [batch.__key__ for batch in one] == expected[:2]
    assert [batch.__key__ for batch in one] == expected


def test_a_state_restores_onto_another_number_of_ranks(data: Path) -> None:
    expected = [keys(loader(data / "a", rank, 4), 12) for rank in range(4)]
    states = []
    for rank in range(4):
        one = loader(data / "a", rank, 4)
        one.skip_steps(4, 8)
        keys(one, 2)
        states.append(saved(one))
    merged = merge_states(states)
    in_order = [batch for step in range(12) for batch in (expected[rank][step] for rank in range(4))]
    for rank in range(2):
        one = loader(data / "a", rank, 2)
        one.restore_state_rank(merged)
        mine = in_order[rank::2]
        assert keys(one, 12) == mine[4:8] + mine[16:24]


def test_a_batch_size_changes_only_after_the_range(data: Path) -> None:
    def sized(size: int) -> Any:
        job = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=STREAMS)
        return get_savable_loader(get_train_dataset(str(data / "a"), worker_config=job, batch_size=size))

    one = sized(4)
    one.skip_steps(8, 16)
    keys(one, 8)
    with pytest.raises(StateError, match="leaves out steps that are still to come"):
        sized(2).restore_state_rank(saved(one))
    keys(one, 8)
    other = sized(2)
    other.restore_state_rank(saved(one))
    following = [key for batch in keys(one, 8) for key in batch]
    assert sorted(key for batch in keys(other, 16) for key in batch) == sorted(following)


def test_mistakes_are_named(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    one: Any = loader(data / "a")
    for first, stop in ((5, 5), (-1, 3), (2.0, 3), (9, 3)):
        with pytest.raises(ConfigError, match="is not a range of steps"):
            one.skip_steps(first, stop)
    with pytest.raises(ConfigError, match="by='guess' is unknown"):
        one.skip_steps(1, 2, by="guess")
    keys(one, 5)
    one.skip_steps(1, 3)
    assert "leaves nothing out: step 5 comes next" in caplog.text
    state = saved(one)
    for damage in ([[3, 1, "plan"]], [["a", 2, "plan"]], [[1, 2, "x"]], 7):
        with pytest.raises(StateError, match="skipped is"):
            loader(data / "a").restore_state_rank({**state, "skipped": damage})


def test_only_the_state_that_is_restored_last_counts(data: Path) -> None:
    expected = keys(loader(data / "a"), 12)
    first = loader(data / "a")
    first.skip_steps(2, 4)
    one = loader(data / "a")
    one.skip_steps(6, 8)
    one.restore_state_rank(saved(first))
    one.restore_state_rank(saved(loader(data / "a")))
    assert keys(one, 8) == [*expected[:6], *expected[8:10]]
