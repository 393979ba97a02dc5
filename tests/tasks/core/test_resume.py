from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from tests.tasks.core.tiny_run import Run, Stop, numbers_dataset, train

STEPS = 17


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbers_dataset(tmp_path_factory.mktemp("numbers") / "data")


SCENARIOS: dict[str, dict[str, Any]] = {
    "epochs": {"max_steps": STEPS},
    "epochs_counted": {"max_epochs": 3},
    "endless": {"max_steps": STEPS, "data": {"virtual_epoch_length": 0}},
    "validation_within_epochs": {"max_epochs": 3, "val_check_interval": 4},
    "validation_while_accumulating": {"max_epochs": 3, "val_check_interval": 3, "accumulate_grad_batches": 2},
    "accumulated": {"max_steps": 9, "accumulate_grad_batches": 3, "data": {"virtual_epoch_length": 7}},
    "limited": {"max_epochs": 6, "limit_train_batches": 3},
    "reloaded": {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1},
    "reloaded_endless": {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1, "limit_train_batches": 5,
                         "data": {"virtual_epoch_length": 0}},
}  # fmt: skip


def assert_continues(whole: Run, resumed: Run, done: int) -> None:
    assert resumed.seen == whole.seen[done:]
    for name, value in whole.weights.items():
        assert torch.equal(resumed.weights[name], value), name


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_resumed_at_any_step_a_run_ends_with_the_same_weights(scenario: str, folder: Path, tmp_path: Path) -> None:
    options = SCENARIOS[scenario]
    every_step = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    whole = train(folder, callbacks=[every_step], **options)
    files = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    assert len(files) == whole.trainer.global_step
    for file in files[:-1]:
        resumed = train(folder, ckpt_path=file, **options)
        assert resumed.seen, file
        assert_continues(whole, resumed, len(whole.seen) - len(resumed.seen))
        # What was trained on before is what the checkpoint says.
        assert len(whole.seen) - len(resumed.seen) == batches_before(whole, file)


def batches_before(whole: Run, file: Path) -> int:
    checkpoint = torch.load(file, weights_only=True)
    streams = checkpoint["NumbersDataModule"]["loader"]["streams"]
    return sum(stream["count"] for stream in streams.values())


STOPS = {
    "in_a_step": Stop(5),
    "in_the_first_step": Stop(0),
    "at_the_first_batch_of_an_epoch": Stop(8),
    "behind_a_step": Stop(5, "on_train_batch_end"),
    "behind_the_last_step_of_an_epoch": Stop(7, "on_train_batch_end"),
    "in_a_validation": Stop(8, "validation_step"),
    "by_ctrl_c": Stop(6, how=KeyboardInterrupt),
    "by_sigterm": Stop(6, how=signal.SIGTERM),
    "by_sigterm_in_the_last_step_of_an_epoch": Stop(7, how=signal.SIGTERM),
}


@pytest.mark.parametrize(
    "options",
    [
        {"max_epochs": 2, "val_check_interval": 4},
        {"max_epochs": 2, "accumulate_grad_batches": 3},
        {"max_steps": 12, "data": {"virtual_epoch_length": 0}},
    ],
    ids=["validated", "accumulated", "endless"],
)
def test_a_run_that_failed_continues_from_what_it_saved_on_the_way_out(
    options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    whole = train(folder, **options)
    for name, stop in STOPS.items():
        broken = train(folder, callbacks=[_SavedOnException(tmp_path / f"{name}.ckpt")], stop=stop, **options)
        if stop.hook == "validation_step" and not whole.validated:
            continue
        assert len(broken.seen) < len(whole.seen), name
        resumed = train(folder, ckpt_path=tmp_path / f"{name}.ckpt", **options)
        done = len(whole.seen) - len(resumed.seen)
        assert done <= len(broken.seen), name
        assert broken.seen == whole.seen[: len(broken.seen)], name
        assert_continues(whole, resumed, done)


class _SavedOnException(Callback):
    """Does what Lightning's OnExceptionCheckpoint does, and keeps the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_exception(self, trainer: Any, *_: Any, **__: Any) -> None:
        trainer.save_checkpoint(self.path)
