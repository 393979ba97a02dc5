"""What `patchify` returns, and how many patches an image or a clip has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Grid(NamedTuple):
    """The number of patches of an image or a clip along each axis."""

    times: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """Total number of patches."""
        return self.times * self.rows * self.columns

    @classmethod
    def of(cls, view: torch.Tensor, patch_size: int, frames_per_patch: int) -> Grid:
        """Returns the grid of an image uint8[H, W, C] or a clip uint8[F, H, W, C]; partial patches count.

        Args:
            view: The image or clip; an image is a clip of one frame.
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
    """dtype[S, C * T * P * P]: patches of T frames and P x P pixels, in the order channel, frame, y, x. The weights of
    a convolution have the same order: `tokens @ conv.weight.flatten(1).T` is the output of Conv2d or Conv3d."""

    positions: torch.Tensor
    """int32[S, 3]: time, row and column of each patch in its image or clip, in patches."""

    cu_seqlens: torch.Tensor
    """int32[n + 1]: the start of each image and the end of the last one, for variable-length attention."""

    max_seqlen: int
    """Tokens of the longest image or clip."""

    grids: tuple[Grid, ...]
    """One per image, on the host."""

    def __repr__(self) -> str:
        shape, dtype, device = tuple(self.tokens.shape), self.tokens.dtype, self.tokens.device
        return f"Patches(tokens={shape} {dtype} on {device}, max_seqlen={self.max_seqlen}, grids={self.grids})"


def token_starts(grids: Sequence[Grid]) -> list[int]:
    """Returns n + 1 integers: the first token of each image, and the number of all tokens.

    Args:
        grids: One per image.
    """
    starts = [0]
    for grid in grids:
        starts.append(starts[-1] + grid.tokens)
    return starts
