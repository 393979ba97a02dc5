"""A job continues by Megatron's numbers alone: samples consumed so far, and steps made."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import energon_dali as ed
from energon_dali.errors import ConfigError, StateError
from tests.loader.test_global_batches import Encoder, Job, Steps, scheduled, steps_of, take, write_blend


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blend(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Steps:
    """The steps of a job of one rank: 12 steps of 24 samples."""
    return Job(folder / "blend.yaml", 1, 24, 24).run(12)[0]


def started(job: Job, consumed_samples: int, step: int | None, micro_batches: int) -> Steps:
    """Returns the steps of a job that starts after samples."""
    found: dict[int, list[str]] = defaultdict(list)
    for rank in range(job.world_size):
        with job.loader(rank) as loader:
            loader.start_at(consumed_samples, step=step)
            assert loader.consumed_samples == consumed_samples
            for number, texts in steps_of(loader, micro_batches).items():
                found[number] += texts
    return {number: sorted(texts) for number, texts in found.items()}


def test_samples_are_counted_by_whole_steps(folder: Path) -> None:
    with Job(folder / "blend.yaml", 2, 24, 4).loader(1) as loader:
        counts = [loader.consumed_samples]
        for _ in take(loader, 7):
            counts.append(loader.consumed_samples)
        assert counts == [0, 0, 0, 24, 24, 24, 48, 48]
        loader.skip_steps(3, 5)
        for batch in take(loader, 2):
            assert batch.step == 2
        assert loader.consumed_samples == 5 * 24, "samples that are left out are consumed, as in Megatron"


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 24), (2, 6), (3, 8)])
def test_a_job_starts_after_samples(folder: Path, reference: Steps, world_size: int, batch_size: int) -> None:
    job = Job(folder / "blend.yaml", world_size, 24, batch_size)
    steps = started(job, 5 * 24, None, 2 * 24 // world_size // batch_size)
    assert steps == {number: reference[number] for number in (5, 6)}


def test_a_ramp_up_of_the_batch_size(folder: Path) -> None:
    """As Megatron's --rampup-batch-size: 12 samples per step, then 24 from sample 36 on, then 36 from sample 84 on."""
    whole, consumed, states = {}, 0, None
    for size, steps in ((12, 3), (24, 2), (36, 2)):
        found, states = Job(folder / "blend.yaml", 1, size, size).run(steps, states)
        whole |= found
        consumed += steps * size
        assert states[0]["cursor"]["unit"] == consumed
    assert list(whole) == list(range(7))
    for consumed, step, size in ((36, 3, 24), (60, 4, 24), (84, 5, 36), (120, 6, 36)):
        assert started(Job(folder / "blend.yaml", 2, size, 6), consumed, step, size // 12) == {step: whole[step]}
    with Job(folder / "blend.yaml", 1, 36, 36).loader(0) as loader:
        with pytest.raises(ConfigError, match=r"consumed_samples=84 is within a step.*so that 72 or 108 would be"):
            loader.start_at(84)
        loader.start_at(84, step=5)
        assert loader.save_state_rank()["cursor"]["step"] == 5
        assert steps_of(loader, 1) == {5: whole[5]}


def test_weights_that_change_need_steps_of_one_size(folder: Path) -> None:
    path: Any = scheduled(folder, a={"step": {0: 1, 4: 0}}, b={"step": {0: 0, 4: 1}})
    _, states = Job(path, 1, 12, 12).run(2)
    ramped, _ = Job(path, 1, 24, 24).run(5, states)
    assert started(Job(path, 2, 24, 12), 24, 2, 5) == ramped, "the weights change later"
    steady, _ = Job(path, 1, 12, 12).run(7)
    assert started(Job(path, 1, 12, 12), 6 * 12, 6, 1) == {6: steady[6]}
    with Job(path, 1, 24, 24).loader(0) as loader, pytest.raises(ConfigError, match="Restore a state"):
        loader.start_at(24 + 3 * 24, step=5)


def test_weights_and_skipped_steps_are_given_before(folder: Path, reference: Steps) -> None:
    job = Job(folder / "blend.yaml", 1, 24, 24)
    with job.loader(0) as loader:
        loader.set_weights([0.0, 1.0], from_step=6)
        expected = steps_of(loader, 9)
    with job.loader(0) as loader:
        loader.set_weights([0.0, 1.0], from_step=6)
        loader.skip_steps(5, 7)
        loader.start_at(4 * 24)
        assert steps_of(loader, 3) == {4: reference[4], 7: expected[7], 8: expected[8]}


def test_virtual_epochs_end_where_they_would_have_ended(folder: Path, reference: Steps) -> None:
    job = Job(folder / "blend.yaml", 2, 24, 4, options={"virtual_epoch_length": 3})
    with job.loader(0) as loader:
        loader.start_at(4 * 24)
        assert [[batch.step for batch in loader if batch.is_last_of_step] for _ in range(2)] == [[4, 5], [6, 7, 8]]


def test_epochs_with_a_smaller_last_step(folder: Path) -> None:
    """60 samples in steps of 24, 24 and 12."""
    job = Job(folder / "a", 1, 24, 24, options={"repeat": False, "uneven": "ragged"})
    with job.loader(0) as loader:
        whole = {batch.step: sorted(batch.text) for _ in range(2) for batch in loader}
    for consumed, step in ((48, 2), (60, 3), (84, 4), (108, 5)):
        with job.loader(0) as loader:
            loader.start_at(consumed)
            assert {batch.step: sorted(batch.text) for batch in loader} == {
                number: whole[number] for number in range(step, 3 if step < 3 else 6)
            }
    with job.loader(0) as loader, pytest.raises(ConfigError, match="so that 48 or 60 would be"):
        loader.start_at(50)
    dropping = Job(folder / "a", 1, 24, 24, options={"repeat": False, "batch_drop_last": True})
    for consumed in (48, 60):  # the last 12 samples of an epoch are left out
        with dropping.loader(0) as loader:
            loader.start_at(consumed)
            assert loader.consumed_samples == 60
            assert [batch.step for batch in loader] == [2, 3]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((-24, None), "consumed_samples=-24 is invalid: it must be a whole number"),
        ((24.0, None), "consumed_samples=24.0 is invalid: it must be a whole number"),
        ((24, -1), "step=-1 is invalid: it must be a whole number"),
        ((25, None), "consumed_samples=25 is within a step: steps have 24 samples, so that 24 or 48 would be the end"),
        ((7, 8), "consumed_samples=7 cannot be those of 8 steps"),
        ((0, 2), "consumed_samples=0 cannot be those of 2 steps"),
        ((12, 0), "consumed_samples=12 cannot be those of 0 steps"),
    ],
)
def test_numbers_that_cannot_be(folder: Path, numbers: Any, message: str) -> None:
    with Job(folder / "blend.yaml", 1, 24, 6).loader(0) as loader, pytest.raises(ConfigError, match=message):
        loader.start_at(numbers[0], step=numbers[1])


def test_loaders_that_cannot_start_so(folder: Path) -> None:
    with Job(folder / "blend.yaml", 1, 24, 6).loader(0) as loader:
        next(iter(loader))
        with pytest.raises(StateError, match="after the first batch was taken"):
            loader.start_at(24)
    streams = ed.get_savable_loader(ed.get_train_dataset(folder / "a", batch_size=4))
    with pytest.raises(ConfigError, match=r"start_at continues after samples of global batches.*global_batch_size"):
        streams.start_at(24)
    with pytest.raises(ConfigError, match="consumed_samples counts the samples of global batches"):
        _ = streams.consumed_samples
    limited = ed.get_val_dataset(
        folder / "a", split_part="train", limit=2, batch_size=4, global_batch_size=8, task_encoder=Encoder()
    )
    with ed.get_savable_loader(limited) as loader, pytest.raises(ConfigError, match="because of limit"):
        loader.start_at(8)
