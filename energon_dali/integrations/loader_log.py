"""Writes the statistics of loaders where a training writes its own: TensorBoard, Weights & Biases, or any function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.integrations import Loaders, LoaderScalars


@explain_call
class LoaderLog:
    """Writes what loaders do as scalars over the steps of a training.

    Call `step` after each step. It writes every `every_steps` steps: the share of the time that the trainer was
    blocked, batches per second, time per stage, bytes read, samples that were skipped or failed, and what else
    `stats()` counts. Rates are those of the time since the last time it wrote.

    Args:
        loaders: A loader, whose names begin with "loader/"; or a dict of loaders by name: "loader_NAME/".
        to: Where to write: a `SummaryWriter` of torch.utils.tensorboard, a run of Weights & Biases (`wandb.init()`),
            or a function of (numbers by name, step).
        every_steps: Steps between two writes, at least 1.

    Raises:
        ConfigError: An argument is something else.
    """

    def __init__(self, loaders: Loaders, *, to: Any, every_steps: int = 50) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps={every_steps} is invalid: it must be at least 1.")
        self._scalars = LoaderScalars(loaders)
        self._write = _writer(to)
        self._every_steps = every_steps

    def step(self, step: int) -> None:
        """Writes the statistics if it is time to.

        Args:
            step: Number of the training step.
        """
        if step % self._every_steps == 0:
            self.write(step)

    def write(self, step: int) -> None:
        """Writes the statistics now; nothing if no batch was asked for since the last time.

        Args:
            step: Number of the training step.
        """
        scalars = self._scalars.read()
        if scalars:
            self._write(scalars, step)


def _writer(to: Any) -> Callable[[dict[str, float], int], None]:
    """Returns a function that writes numbers.

    Raises:
        ConfigError: Nothing can be written there.
    """
    if hasattr(to, "add_scalar"):

        def write_scalars(scalars: dict[str, float], step: int) -> None:
            for name, value in scalars.items():
                to.add_scalar(name, value, step)

        return write_scalars
    if hasattr(to, "define_metric") and hasattr(to, "log"):
        # The training counts the steps of the run in its own way, which these rows must not change.
        to.define_metric("loader/step", hidden=True)
        to.define_metric("loader*", step_metric="loader/step")
        return lambda scalars, step: to.log({**scalars, "loader/step": step})
    if callable(to):
        return to  # type: ignore[no-any-return]
    raise ConfigError(
        f"to={to!r} cannot be written to. Give a SummaryWriter of torch.utils.tensorboard, a run that wandb.init() "
        "returned, or a function of (numbers by name, step)."
    )
