"""A callback that draws pictures after each validation: into a PNG file, and into the logger if it takes pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch.callbacks import Callback

from energon_dali.tasks.vision.igpt.pictures.picture_grid import picture_grid

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer
    from lightning.pytorch.loggers import Logger
    from PIL.Image import Image

    from energon_dali.tasks.vision.igpt.task import GenerativePixelsTransformer


class SamplesCallback(Callback):
    """Writes samples/step-NNNNNN.png in the trainer's folder: pictures of the validation in palette colours, the same
    with the lower half drawn by the model, and new ones.

    The first rank draws; random states of the run are not touched.
    """

    def __init__(self) -> None:
        self._pictures: list[torch.Tensor] = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the pictures of the last validation."""
        self._pictures = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps the first pictures of the validation."""
        missing = cast("GenerativePixelsTransformer", pl_module).num_samples - sum(map(len, self._pictures))
        if trainer.is_global_zero and missing > 0:
            self._pictures.append(batch.image[:missing].clone())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws and writes."""
        if not trainer.is_global_zero or trainer.sanity_checking or not self._pictures:
            return
        task = cast("GenerativePixelsTransformer", pl_module)
        given = torch.cat(self._pictures)
        self._pictures = []
        grid = picture_grid(
            {
                "data": task.pictures(task.tokens(given)),
                "completed": task.complete(given),
                "new": task.draw(task.num_samples),
            }
        )
        folder = Path(trainer.default_root_dir) / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        grid.save(folder / f"step-{trainer.global_step:06d}.png")
        for logger in trainer.loggers:
            log_picture(logger, "samples", grid, trainer.global_step)


def log_picture(logger: Logger, name: str, picture: Image, step: int) -> None:
    """Gives a picture to a logger that takes pictures (of W&B's or TensorBoard's kind); others get nothing.

    Args:
        logger: A logger of Lightning.
        name: Name of the picture.
        picture: RGB.
        step: Of the training.
    """
    if hasattr(logger, "log_image"):
        logger.log_image(name, [picture], step=step)
        return
    add_image = getattr(getattr(logger, "experiment", None), "add_image", None)
    if add_image is not None:
        import numpy as np

        add_image(name, np.array(picture), step, dataformats="HWC")
