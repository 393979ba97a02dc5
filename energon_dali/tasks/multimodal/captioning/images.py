"""Images with the captions that were written for them, as one image and as text for loggers."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_dali.shards.storage.atomic_file import atomic_file
from energon_dali.tasks.multimodal.captioning.samples import CaptioningBatch

if TYPE_CHECKING:
    import torch

COLUMNS = 4
TILE_PX, TEXT_PX = 200, 84

log = logging.getLogger(__name__)


def images_of(batch: CaptioningBatch, count: int, patch_size: int) -> list[torch.Tensor]:
    """Returns the first images of a batch, put together from their patches: uint8[H, W, 3] on the CPU.

    Args:
        batch: The batch.
        count: Images at most.
        patch_size: Pixels along each side of a patch; sides are multiples of it.
    """
    import torch

    images, start = [], 0
    for rows, columns in batch.grids[:count]:
        patches = batch.patches[start : start + rows * columns].float().cpu()
        start += rows * columns
        cut = patches.view(rows, columns, 3, patch_size, patch_size).permute(0, 3, 1, 4, 2)
        levels = (cut.reshape(rows * patch_size, columns * patch_size, 3) + 1) * 127.5
        images.append(levels.round().clamp(0, 255).to(torch.uint8))
    return images


def write_captions(images: Sequence[torch.Tensor], written: Sequence[str], true: Sequence[str], path: Path) -> None:
    """Writes a PNG with each image, below it the caption that was written (black) and its own (grey).

    Args:
        images: uint8[H, W, 3] each, on the CPU.
        written: Captions of the model.
        true: Captions of the dataset, at least as many.
        path: File; its folder is made.
    """
    from PIL import Image, ImageDraw, ImageFont

    lines = -(-len(images) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * TILE_PX, lines * (TILE_PX + TEXT_PX)), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(10)
    for number, (image, text, own) in enumerate(zip(images, written, true, strict=False)):
        left, top = number % COLUMNS * TILE_PX, number // COLUMNS * (TILE_PX + TEXT_PX)
        photo = Image.fromarray(image.numpy())
        scale = (TILE_PX - 8) / max(photo.size)
        size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
        place = (left + (TILE_PX - size[0]) // 2, top + TILE_PX - 4 - size[1])
        sheet.paste(photo.resize(size, Image.Resampling.BICUBIC), place)
        for row, (words, colour) in enumerate(((text, "black"), (own, "grey"))):
            shown = "\n".join(textwrap.wrap(" ".join(words.split()), 38)[:3])
            draw.multiline_text((left + 4, top + TILE_PX + row * 40), shown, fill=colour, font=font, spacing=1)
    with atomic_file(path) as unfinished:
        sheet.save(unfinished, "PNG")


def show_captions(loggers: Iterable[Any], written: Sequence[str], true: Sequence[str], path: Path, step: int) -> None:
    """Gives captions and the image to loggers that take them (as those of W&B and TensorBoard do), and to Python's log.

    Args:
        loggers: Lightning loggers.
        written: Captions of the model.
        true: Captions of the dataset, at least as many.
        path: The image.
        step: Optimizer steps so far.
    """
    pairs = list(zip(written, true, strict=False))
    log.info("Captions after %d steps, written and true:\n%s", step, "\n".join(f"{w!r} | {t!r}" for w, t in pairs))
    for logger in loggers:
        if hasattr(logger, "log_text"):
            logger.log_text("captions", columns=["written", "true"], data=[list(pair) for pair in pairs], step=step)
        elif hasattr(logger.experiment, "add_text"):
            text = "\n".join(f"- {ours} — *{own}*" for ours, own in pairs)
            logger.experiment.add_text("captions", text, step)
        if hasattr(logger, "log_image"):
            logger.log_image("captions", images=[str(path)], step=step)
