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
    fails, it would wait for the others in vain.
    """

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Saves, if all ranks do."""
        if trainer.world_size == 1 or isinstance(exception, KeyboardInterrupt | SIGTERMException):
            super().on_exception(trainer, pl_module, exception)
