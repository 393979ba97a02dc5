"""A callback that draws images after each validation: into a PNG file, and into the logger if it takes images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from lightning.pytorch.callbacks import Callback
from PIL import Image, ImageDraw

from energon_dali.tasks.task import first_rank_can_run

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer
    from lightning.pytorch.loggers import Logger

_SIDE_PX = 96
"""Approximate height of an image in the grid."""
_GAP_PX = 4
_NAME_PX = 76
_PAPER = (255, 255, 255)
_INK = (32, 32, 32)


class DrawsImages(Protocol):
    """What the callback needs of a task."""

    num_samples: int
    """Images of each kind."""

    def tokens(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the sequences int64[H * W, B] of images uint8[B, 3, H, W]."""

    def images(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the images uint8[B, 3, H, W] of sequences int64[H * W, B]."""

    def complete(self, images: torch.Tensor) -> torch.Tensor:
        """Returns images uint8[B, 3, H, W] whose lower half was drawn."""

    def draw(self, count: int) -> torch.Tensor:
        """Returns new images uint8[count, 3, H, W]."""


class SamplesCallback(Callback):
    """Writes samples/step-NNNNNN.png in the trainer's folder: images of the validation in palette colours, the same
    with the lower half drawn by the model, and new ones.

    The first rank draws; random states of the run are not touched.
    """

    def __init__(self) -> None:
        self._images: list[torch.Tensor] = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the images of the last validation."""
        self._images = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps the first images of the validation."""
        missing = cast("DrawsImages", pl_module).num_samples - sum(map(len, self._images))
        if trainer.is_global_zero and missing > 0:
            self._images.append(batch.image[:missing].clone())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws and writes."""
        if not trainer.is_global_zero or trainer.sanity_checking or not self._images or not first_rank_can_run(trainer):
            return
        task = cast("DrawsImages", pl_module)
        given = torch.cat(self._images)
        self._images = []
        grid = image_grid(
            {
                "data": task.images(task.tokens(given)),
                "completed": task.complete(given),
                "new": task.draw(task.num_samples),
            }
        )
        folder = Path(trainer.default_root_dir) / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        grid.save(folder / f"step-{trainer.global_step:06d}.png")
        for logger in trainer.loggers:
            log_image(logger, "samples", grid, trainer.global_step)


def log_image(logger: Logger, name: str, image: Image.Image, step: int) -> None:
    """Gives an image to a logger that takes images (of W&B's or TensorBoard's kind); others get nothing.

    Args:
        logger: A logger of Lightning.
        name: Name of the image.
        image: RGB.
        step: Of the training.
    """
    if hasattr(logger, "log_image"):
        logger.log_image(name, [image], step=step)
        return
    add_image = getattr(getattr(logger, "experiment", None), "add_image", None)
    if add_image is not None:
        import numpy as np

        add_image(name, np.array(image), step, dataformats="HWC")


def image_grid(rows: Mapping[str, torch.Tensor]) -> Image.Image:
    """Returns the grid, RGB: one row per name, each image magnified by a whole factor, its pixels as squares.

    Args:
        rows: uint8[N, 3, H, W] each, on any device; H and W are those of the first row.
    """
    height, width = next(iter(rows.values())).shape[-2:]
    scale = max(1, _SIDE_PX // height)
    step_x, step_y = width * scale + _GAP_PX, height * scale + _GAP_PX
    columns = max(len(row) for row in rows.values())
    grid = Image.new("RGB", (_NAME_PX + columns * step_x, _GAP_PX + len(rows) * step_y), _PAPER)
    pen = ImageDraw.Draw(grid)
    for number, (name, images) in enumerate(rows.items()):
        top = _GAP_PX + number * step_y
        pen.text((_GAP_PX, top + height * scale // 2 - 6), name, fill=_INK)
        for column, pixels in enumerate(images.permute(0, 2, 3, 1).cpu().numpy()):
            image = Image.fromarray(pixels).resize((width * scale, height * scale), Image.Resampling.NEAREST)
            grid.paste(image, (_NAME_PX + column * step_x, top))
    return grid
