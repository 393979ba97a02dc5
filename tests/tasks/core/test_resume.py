from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from tests.part import sampled
from tests.tasks.core.tiny_run import NumbersDataModule, Run, Stop, data_config, numbers_dataset, quiet_lightning, train

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
    "reloaded_endless": {
        "max_epochs": 3,
        "reload_dataloaders_every_n_epochs": 1,
        "limit_train_batches": 5,
        "data": {"virtual_epoch_length": 0},
    },
}


def assert_continues(whole: Run, resumed: Run, done: int) -> None:
    assert resumed.seen == whole.seen[done:]
    for name, value in whole.weights.items():
        assert torch.equal(resumed.weights[name], value), name


@pytest.mark.parametrize("scenario", sampled(SCENARIOS, 2))
def test_resumed_at_any_step_a_run_ends_with_the_same_weights(scenario: str, folder: Path, tmp_path: Path) -> None:
    options = SCENARIOS[scenario]
    every_step = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    whole = train(folder, callbacks=[every_step], **options)
    files = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    assert len(files) == whole.trainer.global_step
    # All of them where epochs are counted; elsewhere what lies around the ends of epochs, steps and validations.
    for file in files[:-1] if scenario == "epochs_counted" else files[2:-1:3]:
        resumed = train(folder, ckpt_path=file, **options)
        assert resumed.seen, file
        assert_continues(whole, resumed, len(whole.seen) - len(resumed.seen))
        # What was trained on before is what the checkpoint says.
        assert len(whole.seen) - len(resumed.seen) == batches_before(whole, file)


def batches_before(whole: Run, file: Path) -> int:
    checkpoint = torch.load(file, weights_only=True)
    streams = checkpoint["NumbersDataModule"]["loader"]["streams"]
    return sum(stream["count"] for stream in streams.values())


def test_a_finished_run_is_extended(folder: Path, tmp_path: Path) -> None:
    whole = train(folder, max_epochs=4)
    for name, options in {
        "steps": {"max_steps": 11},
        "epoch_end": {"max_steps": 16},
        "epochs": {"max_epochs": 2},
        "limited": {"max_epochs": 3, "limit_train_batches": 4},
    }.items():
        at_epoch_end = ModelCheckpoint(tmp_path / name, save_last=True, every_n_epochs=1, save_on_train_epoch_end=True)
        short = train(folder, callbacks=[at_epoch_end], **options)
        short.trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
        done = len(short.seen)
        assert short.seen == whole.seen[:done], name
        further = train(folder, ckpt_path=tmp_path / f"{name}.ckpt", max_steps=32)
        assert_continues(whole, further, done)
        last = train(folder, ckpt_path=tmp_path / name / "last.ckpt", max_steps=32)
        assert_continues(whole, last, done)


def test_the_same_trainer_goes_on_and_another_begins_anew(folder: Path) -> None:
    whole = train(folder, max_epochs=2)
    run = train(folder, max_epochs=1)
    module, data_module = run.trainer.lightning_module, run.trainer.datamodule
    run.trainer.fit_loop.max_epochs = 2
    with quiet_lightning():
        run.trainer.fit(module, datamodule=data_module)
    # The optimizer is a new one, as Lightning has it; the data goes on.
    assert [keys for keys, _ in module.seen] == [keys for keys, _ in whole.seen]
    again = train(folder, data_module=data_module, max_epochs=2)
    assert again.seen == whole.seen


def test_overfitting_trains_on_the_same_batches(folder: Path) -> None:
    run = train(folder, max_epochs=3, overfit_batches=2)
    assert [keys for keys, _ in run.seen] == [keys for keys, _ in run.seen[:2]] * 3
    assert len({keys for keys, _ in run.seen}) == 2


def test_a_checkpoint_without_the_data_is_no_secret(folder: Path, tmp_path: Path) -> None:
    run = train(folder, max_steps=3)
    run.trainer.save_checkpoint(tmp_path / "whole.ckpt")
    checkpoint = torch.load(tmp_path / "whole.ckpt", weights_only=True)
    del checkpoint["NumbersDataModule"]
    torch.save(checkpoint, tmp_path / "other.ckpt")
    with pytest.warns(UserWarning, match="training data begins at the beginning"):
        train(folder, ckpt_path=tmp_path / "other.ckpt", max_steps=5)


def test_a_position_within_a_step_of_more_ranks_is_no_secret(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for steps in (3, 4):
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setenv("RANK", "0")
        run = train(folder, max_steps=steps)
        state = run.trainer.datamodule.state_dict()
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        module = NumbersDataModule(data_config(folder))
        module.load_state_dict(json.loads(json.dumps(state)))
        if steps == 3:
            with pytest.warns(UserWarning, match=r"within a step of 2, of which they have done 1 to 2"):
                module.train_dataloader()
        else:
            module.train_dataloader()
        module.close()


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
