"""Two processes under torchrun: resumed on two, on one, from one, and after a rank was killed."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from energon_dali.errors import LayoutError
from tests.shared_result import shared_result
from tests.tasks.core.tiny_run import Run, numbers_dataset, train
from tests.tasks.distributed.ranks import DATA, KILLED_AT, STEPS, caption_gradients

pytestmark = pytest.mark.timeout(400)  # six interpreters with torch on what may be a busy machine
ROOT = Path(__file__).parents[3]


def torchrun(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, "-m", "tests.tasks.distributed.ranks", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHON_EXEC": python},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def on_one_rank(folder: Path, **options: Any) -> Run:
    """Trains on one rank what two would: two batches for each step."""
    data = {**DATA, "virtual_epoch_length": 2 * DATA["virtual_epoch_length"]}
    return train(folder / "data", max_steps=STEPS, accumulate_grad_batches=2, data=data, dropout=0.0, **options)


def train_everywhere(folder: Path, python: str) -> Run:
    """Trains on one rank and then on two, of which one is killed, and returns the run on one rank."""
    numbers_dataset(folder / "data", 60)
    callback = ModelCheckpoint(folder / "one", filename="{step}", every_n_train_steps=1, save_top_k=-1)
    one = on_one_rank(folder, callbacks=[callback])
    done = torchrun(folder, python)
    assert done.returncode != 0
    assert "SIGKILL" in done.stderr, done.stderr[-5000:]
    return replace(one, trainer=None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> tuple[Path, Run]:
    return shared_result(tmp_path_factory, "ranks", partial(train_everywhere, python=warm_python))


@pytest.fixture(scope="module")
def folder(trained: tuple[Path, Run]) -> Path:
    return trained[0]


@pytest.fixture(scope="module")
def one(trained: tuple[Path, Run]) -> Run:
    return trained[1]


def seen(folder: Path, name: str) -> tuple[list[Any], list[Any], list[dict[str, Any]]]:
    """Returns what both ranks saw, and their weights at the end."""
    zero, one = (json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1))
    return zero["seen"], one["seen"], [zero["weights"], one["weights"]]


def in_turn(zero: list[Any], one: list[Any]) -> list[list[str]]:
    """Returns the keys of all batches in the order of the job."""
    return [list(batch[0]) for pair in zip(zero, one, strict=True) for batch in pair]


def assert_same_end(one: Run, weights: dict[str, torch.Tensor]) -> None:
    """Gradients of two ranks are added in another order than those of two batches."""
    for name, value in one.weights.items():
        torch.testing.assert_close(weights[name], value)


def test_ranks_read_different_streams_and_resume_to_the_last_digit(folder: Path) -> None:
    zero, one, weights = seen(folder, "whole")
    assert len(zero) == len(one) == STEPS
    for mine, theirs in zip(zero, one, strict=True):
        assert not {*mine[0]} & {*theirs[0]}
    assert weights[0] == weights[1]
    assert seen(folder, "resumed") == (zero[5:], one[5:], weights)
    last, afterwards = (
        torch.load(folder / name, weights_only=True)["NumbersDataModule"]
        for name in (f"whole/step={STEPS}.ckpt", "afterwards.ckpt")
    )
    assert sorted(last["loader"]["streams"]) == ["0", "1", "2", "3"]
    assert last["loader"] == afterwards["loader"]
    assert list(last["random"]) == list(afterwards["random"]) == ["0", "1"]


def test_a_run_on_one_rank_continues_on_two_and_back(folder: Path, one: Run) -> None:
    keys = [list(batch[0]) for batch in one.seen]
    zero, other, weights = seen(folder, "from_one")
    assert in_turn(zero, other) == keys[2 * 3 :]
    assert_same_end(one, {name: torch.tensor(value) for name, value in weights[0].items()})

    whole = seen(folder, "whole")
    assert in_turn(*whole[:2]) == keys
    resumed = on_one_rank(folder, ckpt_path=folder / "whole" / "step=7.ckpt")
    assert [list(batch[0]) for batch in resumed.seen] == keys[2 * 7 :]


def test_a_job_whose_rank_was_killed_continues_from_its_last_checkpoint(folder: Path, one: Run) -> None:
    assert (folder / "killed" / f"step={KILLED_AT}.ckpt").exists()
    assert not (folder / "killed" / f"step={KILLED_AT + 1}.ckpt").exists()
    revived = on_one_rank(folder, ckpt_path=folder / "killed" / f"step={KILLED_AT}.ckpt")
    assert_same_end(one, revived.weights)
    assert [batch[0] for batch in revived.seen] == [batch[0] for batch in one.seen[2 * KILLED_AT :]]


@pytest.mark.filterwarnings("ignore:You are trying to .self.log:UserWarning")
def test_captions_of_all_ranks_weigh_by_their_tokens(folder: Path) -> None:
    together = caption_gradients(2)
    assert len(together) > 20
    for rank in (0, 1):
        found = torch.load(folder / f"captions-{rank}.pt")
        assert found.keys() == together.keys()
        for name, gradient in together.items():  # the share is a float32
            torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-9)


def test_a_layout_that_does_not_fit_is_refused_and_told_what_fits(folder: Path) -> None:
    with pytest.raises(LayoutError, match=r"4 streams cannot be divided .* num_workers may be 1, 2, 4"):
        train(
            folder / "data",
            ckpt_path=folder / "whole" / "step=5.ckpt",
            max_steps=STEPS,
            data={**DATA, "num_streams": None, "num_workers": 3},
        )
