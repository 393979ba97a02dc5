"""What captions are on their way from the dataset to the model: encoded samples, rows of them, batches of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.samples.base import Batch, Sample, edataclass

if TYPE_CHECKING:
    import numpy as np
    import torch


@edataclass
class EncodedCaption(Sample):
    """An image and the tokens of its caption. Its place in a row is known before the image is decoded."""

    image: Any
    """uint8[H, W, 3] tensor; a MediaHandle until it is decoded."""
    caption: str
    """The text."""
    tokens: np.ndarray[Any, Any]
    """int64[n]: beginning, text, end."""
    grid: tuple[int, int]
    """(rows, columns) of patches."""

    @property
    def patches(self) -> int:
        """Number of patches."""
        return self.grid[0] * self.grid[1]

    @property
    def length(self) -> int:
        """Places in a row: the patches, and each token that another follows."""
        return self.patches + len(self.tokens) - 1


@edataclass
class CaptionRow(Sample):
    """Captions that share a row."""

    captions: list[EncodedCaption]
    """In their order in the row."""


@edataclass
class CaptioningBatch(Batch):
    """R rows of L places; a place holds a patch, or a token and the one to predict from it, or padding.

    `captions` and `grids` have one entry per sample, in the order of the rows; the patches come in that order too.
    """

    tokens: torch.Tensor
    """int64[R, L]: at the place of a patch and in padding the padding token."""
    targets: torch.Tensor
    """int64[R, L]: the token that follows, -100 where nothing is predicted: before the caption and in padding."""
    position_ids: torch.Tensor
    """int64[R, L]: 1, 2, ... from the beginning of each caption; 0 for patches and padding."""
    cu_seqlens: torch.Tensor
    """int32[m + 1]: where each sample, and the padding of each row, begins in the R * L places, and their end."""
    patches: torch.Tensor
    """float32[P, 3 * size * size]: levels from -1 to 1."""
    patch_positions: torch.Tensor
    """int32[P, 2]: row and column of each patch in its image."""
    patch_places: torch.Tensor
    """int64[P]: place of each patch among the R * L."""
    captions: list[str]
    """The texts."""
    grids: list[tuple[int, int]]
    """(rows, columns) of patches of each image."""
    num_targets: int
    """Tokens that are predicted, in all rows."""
