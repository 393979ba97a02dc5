"""Callbacks for Lightning's Trainer. It needs lightning, of the extra `tasks`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from energon_dali.integrations import Loaders, LoaderScalars


class LoaderLogCallback(Callback):
    """Gives the statistics of loaders to the loggers of a Trainer, every `log_every_n_steps` steps of it.

    Args:
        loaders: A loader, whose names begin with "loader/"; or a dict of loaders by name: "loader_NAME/".

    Raises:
        ConfigError: `loaders` is something else.
    """

    def __init__(self, loaders: Loaders) -> None:
        super().__init__()
        self._scalars = LoaderScalars(loaders)
        self._last_step = 0

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Writes them, if it is time to: once per step, of which several batches may be a part."""
        step, every = trainer.global_step, trainer.log_every_n_steps
        if not trainer.loggers or not every or step % every or step == self._last_step:
            return
        self._last_step = step
        scalars = self._scalars.read()
        if scalars:
            for logger in trainer.loggers:
                logger.log_metrics(scalars, step=step)
