"""The specification of `patchify` in plain PyTorch, which also runs on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..normalization import normalize_levels
from .patches import Grid

if TYPE_CHECKING:
    import torch


def patchify_reference(
    clips: Sequence[torch.Tensor],
    patch_size: int,
    frames_per_patch: int,
    coefficients: torch.Tensor | None,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Writes patches and positions of each clip, with zeros outside the edge and the last frame repeated at the end.

    Args:
        clips: uint8[F, H, W, C].
        patch_size: Pixels P along each side of a patch.
        frames_per_patch: Frames T of a patch.
        coefficients: float32[2, C] on the device of the clips, or None for bytes.
        tokens: dtype[S, C * T * P * P], contiguous.
        positions: int32[S, 3], contiguous.
    """
    import torch

    start = 0
    for clip in clips:
        grid = Grid.of(clip, patch_size, frames_per_patch)
        frames, height, width, channels = clip.shape
        if not grid.tokens:
            continue
        shown = torch.arange(grid.times * frames_per_patch, device=clip.device).clamp_(max=frames - 1)
        values = clip if coefficients is None else normalize_levels(clip, coefficients, tokens.dtype)
        whole = tokens.new_zeros((len(shown), grid.rows * patch_size, grid.columns * patch_size, channels))
        whole[:, :height, :width] = values[shown]
        cut = whole.view(
            grid.times, frames_per_patch, grid.rows, patch_size, grid.columns, patch_size, channels
        )  # [times, T, rows, P, columns, P, C]
        end = start + grid.tokens
        tokens[start:end] = cut.permute(0, 2, 4, 6, 1, 3, 5).reshape(grid.tokens, -1)
        axes = [torch.arange(length, dtype=torch.int32, device=clip.device) for length in grid]
        positions[start:end] = torch.cartesian_prod(*axes)
        start = end
