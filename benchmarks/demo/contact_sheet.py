"""A picture of a batch: what comes out of the loader, tile by tile, with the captions below."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

COLUMNS, ROWS = 8, 4
TILE_PIXELS, CAPTION_PIXELS = 168, 44


def write_contact_sheet(images: torch.Tensor, captions: Sequence[str], path: Path) -> None:
    """Writes the first 32 pictures of a batch as PNG.

    Args:
        images: uint8[N, 3, H, W] on the CPU.
        captions: N captions; long ones are cut.
        path: File to write.
    """
    sheet = Image.new("RGB", (COLUMNS * TILE_PIXELS, ROWS * (TILE_PIXELS + CAPTION_PIXELS)), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(10)
    for number, (image, caption) in enumerate(zip(images[: COLUMNS * ROWS], captions, strict=False)):
        left = number % COLUMNS * TILE_PIXELS
        top = number // COLUMNS * (TILE_PIXELS + CAPTION_PIXELS)
        tile = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        sheet.paste(tile.resize((TILE_PIXELS - 4, TILE_PIXELS - 4), Image.Resampling.LANCZOS), (left + 2, top + 2))
        lines = textwrap.wrap(" ".join(caption.split()), 30)[:3]
        draw.multiline_text((left + 4, top + TILE_PIXELS), "\n".join(lines), fill="black", font=font, spacing=1)
    sheet.save(path)
