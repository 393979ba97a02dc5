"""The checkpoints of a run, one of them where it is interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer


class RunCheckpoint(ModelCheckpoint):
    """Lightning's ModelCheckpoint, which with `save_on_exception` also saves where a run is interrupted.

    Saving takes all ranks. With several of them it happens on Ctrl-C and SIGTERM, which reach all; where one rank alone
    fails, it would wait for the others in vain. A run that fails before its training began saves nothing: where it was
    to continue, only a part of the checkpoint is in place, and what it saved could replace the whole one.
    """

    _began = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes that there is something to save."""
        super().on_train_start(trainer, pl_module)
        self._began = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Saves, if training began and all ranks do."""
        shared = isinstance(exception, KeyboardInterrupt | SIGTERMException)
        if self._began and (trainer.world_size == 1 or shared):
            super().on_exception(trainer, pl_module, exception)
