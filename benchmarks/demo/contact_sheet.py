"""Draws a batch of the loader as tiles with captions or timestamps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

COLUMNS, ROWS = 8, 4
TILE_PIXELS, CAPTION_PIXELS = 168, 44
VIDEOS = 4
TITLE_PIXELS, TIME_PIXELS = 20, 16


def write_contact_sheet(images: torch.Tensor, captions: Sequence[str], path: Path) -> None:
    """Writes the first 32 images of a batch as PNG.

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


def write_clips_sheet(clips: torch.Tensor, seconds: torch.Tensor, captions: Sequence[str], path: Path) -> None:
    """Writes the clips of the first 4 videos of a batch as PNG: a line per clip, each frame with its timestamp.

    Args:
        clips: uint8[N, clips, frames, 3, H, W] on the CPU.
        seconds: float64[N, clips, frames], presentation times.
        captions: N captions.
        path: File to write.
    """
    videos, count, frames, _, height, width = clips[:VIDEOS].shape
    line = height + TIME_PIXELS
    sheet = Image.new("RGB", (frames * (width + 4), videos * (TITLE_PIXELS + count * line)), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(11)
    for video in range(videos):
        top = video * (TITLE_PIXELS + count * line)
        draw.text((4, top + 4), " ".join(captions[video].split())[:200], fill="black", font=font)
        for clip in range(count):
            for frame in range(frames):
                left, upper = frame * (width + 4) + 2, top + TITLE_PIXELS + clip * line
                sheet.paste(Image.fromarray(clips[video, clip, frame].permute(1, 2, 0).numpy()), (left, upper))
                shown = f"clip {clip}: {seconds[video, clip, frame]:.3f} s"
                draw.text((left + 2, upper + height + 1), shown, fill="black", font=font)
    sheet.save(path)
