"""What the steps of a task log is named after the stage that runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from energon_dali.tasks import TaskTransformer

BATCH = torch.ones(2, 3)


class Logging(TaskTransformer):
    """Records what is logged."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(3, 1), {"_target_": "torch.optim.SGD", "lr": 0.1})
        self.logged: dict[str, bool] = {}

    def log_dict(self, values: Any, *, on_epoch: bool = False, **options: Any) -> None:
        """Keeps the names, and whether they are means over the epoch."""
        self.logged.update(dict.fromkeys(values, on_epoch))

    def common_step(self, prefix: Any, batch: Any) -> Any:
        """Returns a loss and something to log."""
        return {"loss": self.model(batch).mean(), "log": {"accuracy": 0.5}}


class Borrowing(Logging):
    """Its validation is a training step, and its test a validation."""

    def training_step(self, batch: Any, batch_idx: int = 0) -> Any:
        """Returns a loss and something to log."""
        return {"loss": self.model(batch).mean(), "log": {"accuracy": 0.5}}

    def validation_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Any:
        """Returns what the training step returns."""
        return self.training_step(batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Any:
        """Returns what the validation step returns."""
        return self.validation_step(batch, batch_idx)


class OfTheBase(Logging):
    """Its test is the validation step of the base class."""

    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Any:
        """Returns what the validation step returns."""
        return self.validation_step(batch, batch_idx)


@pytest.mark.parametrize("stage", ["train", "val", "test"])
@pytest.mark.parametrize("kind", [Logging, Borrowing, OfTheBase])
def test_a_step_that_calls_another_logs_under_its_own_stage(kind: type[Logging], stage: str) -> None:
    task = kind()
    step = {"train": task.training_step, "val": task.validation_step, "test": task.test_step}[stage]
    step(BATCH, 0)
    losses = {} if kind is Borrowing else {f"{stage}_loss": stage != "train"}
    assert task.logged == {f"{stage}/accuracy": stage != "train", **losses}


def test_a_step_that_fails_leaves_no_stage_running() -> None:
    task = Borrowing()
    with pytest.raises(RuntimeError):
        task.test_step(torch.ones(2, 5))
    task.validation_step(BATCH)
    assert list(task.logged) == ["val/accuracy"]
