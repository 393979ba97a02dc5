"""What `patchify` returns, and how many patches an image or a clip gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Grid(NamedTuple):
    """How many patches an image or a clip has along each axis."""

    times: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """Patches in all."""
        return self.times * self.rows * self.columns

    @classmethod
    def of(cls, view: torch.Tensor, patch_size: int, frames_per_patch: int) -> Grid:
        """Returns the grid of an image uint8[H, W, C] or a clip uint8[F, H, W, C]; a patch begun is a patch.

        Args:
            view: An image is a clip of one frame.
            patch_size: Pixels along each side of a patch.
            frames_per_patch: Frames of a patch.
        """
        frames = view.shape[0] if view.ndim == 4 else 1
        height, width = view.shape[-3:-1]
        return cls(-(-frames // frames_per_patch), -(-height // patch_size), -(-width // patch_size))


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """The patches of several images or clips, one after the other: in time, then by row, then by column."""

    tokens: torch.Tensor
    """dtype[S, C * T * P * P]: a patch of T frames and P x P pixels, in the order channel, frame, y, x, which is that
    of the weights of a convolution: `tokens @ conv.weight.flatten(1).T` is what Conv2d or Conv3d gives."""

    positions: torch.Tensor
    """int32[S, 3]: time, row and column of each patch in its image or clip, in patches."""

    cu_seqlens: torch.Tensor
    """int32[n + 1]: where each image begins and the last one ends, as attention of variable length takes it."""

    max_seqlen: int
    """Tokens of the longest."""

    grids: tuple[Grid, ...]
    """One per image, on the host."""

    def __repr__(self) -> str:
        shape, dtype, device = tuple(self.tokens.shape), self.tokens.dtype, self.tokens.device
        return f"Patches(tokens={shape} {dtype} on {device}, max_seqlen={self.max_seqlen}, grids={self.grids})"


def token_starts(grids: Sequence[Grid]) -> list[int]:
    """Returns n + 1 numbers: the first token of each image, and the number of all.

    Args:
        grids: One per image.
    """
    starts = [0]
    for grid in grids:
        starts.append(starts[-1] + grid.tokens)
    return starts
