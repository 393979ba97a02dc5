"""Captions on their way to the model: encoded samples, and the rows that their patches and tokens are laid into.

Two calls of kernels lay the tokens, one all images. Also says who sees whom in such rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

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


IGNORED = -100
"""Target of a place that predicts nothing: torch's cross entropy ignores it."""

Tokens = np.ndarray[Any, np.dtype[np.int64]]


def lay_rows(
    rows: Sequence[Sequence[EncodedCaption]], row_length: int, *, patch_size: int, padding: int
) -> CaptioningBatch:
    """Returns the batch of some rows.

    The patches are on the device of the images, the other tensors on the CPU.

    Args:
        rows: The samples of each row, decoded; together no longer than a row.
        row_length: Places of a row.
        patch_size: Pixels along each side of a patch.
        padding: Token of places without one.
    """
    import torch

    from energon_dali.kernels.pack_tokens import pack_tokens

    inputs, targets, prefixes = _sequences(rows, row_length, padding)
    packed = pack_tokens(inputs, row_length, padding=padding)
    lengths = [len(sequence) for sequence in inputs]
    before_text = torch.from_numpy(np.repeat(np.asarray(prefixes, np.int64), lengths)).view_as(packed.tokens)
    starts = [place.row * row_length + place.column for place in packed.places]
    samples = list(chain.from_iterable(rows))
    of_samples = [
        (start, prefix) for start, prefix, length in zip(starts, prefixes, lengths, strict=True) if prefix < length
    ]
    places = np.concatenate([np.arange(start, start + prefix) for start, prefix in of_samples])
    patches, patch_positions = _patches([sample.image for sample in samples], patch_size)
    return CaptioningBatch.from_samples(
        samples,
        tokens=packed.tokens,
        targets=pack_tokens(targets, row_length, padding=IGNORED).tokens,
        position_ids=(packed.position_ids - before_text + 1).clamp_(min=0),
        cu_seqlens=packed.cu_seqlens,
        patches=patches,
        patch_positions=patch_positions,
        patch_places=torch.from_numpy(places),
        captions=[sample.caption for sample in samples],
        grids=[sample.grid for sample in samples],
        num_targets=sum(len(sample.tokens) - 1 for sample in samples),
    )


def _sequences(
    rows: Sequence[Sequence[EncodedCaption]], row_length: int, padding: int
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int]]:
    """Returns (inputs, targets, places before the text) of each sequence.

    The end of a row that is not full is a sequence too, so that the next row begins where it should; it has no text.
    """
    import torch

    inputs: list[Tokens] = []
    targets: list[Tokens] = []
    prefixes: list[int] = []
    for row in rows:
        for sample in row:
            inputs.append(np.concatenate([np.full(sample.patches, padding, np.int64), sample.tokens[:-1]]))
            targets.append(np.concatenate([np.full(sample.patches, IGNORED, np.int64), sample.tokens[1:]]))
            prefixes.append(sample.patches)
        rest = row_length - sum(sample.length for sample in row)
        if rest > 0:
            inputs.append(np.full(rest, padding, np.int64))
            targets.append(np.full(rest, IGNORED, np.int64))
            prefixes.append(rest)
    return [torch.from_numpy(each) for each in inputs], [torch.from_numpy(each) for each in targets], prefixes


def _patches(images: list[torch.Tensor], patch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (float32[P, 3 * size * size], int32[P, 2]) of uint8[H, W, 3] images, all in one call."""
    from energon_dali.kernels.normalization import Normalization
    from energon_dali.kernels.patchify import patchify

    cut = patchify(images, patch_size, normalization=Normalization(mean=0.5, std=0.5))
    return cut.tokens, cut.positions[:, 1:].contiguous()


def packed_causal_mask(cu_seqlens: torch.Tensor, rows: int, row_length: int) -> torch.Tensor:
    """Returns bool[R, 1, L, L]: true where a place (third axis) sees another (fourth): of its own sample, not after it.

    It is the dense form of what attention kernels of variable length do with `cu_seqlens`. Does not synchronise the
    stream.

    Args:
        cu_seqlens: int32[m + 1]: where each sample begins in the R * L places, from 0 on, and their end.
        rows: R.
        row_length: L.
    """
    import torch

    lengths = cu_seqlens.diff().to(torch.int64)
    numbers = torch.arange(len(lengths), device=cu_seqlens.device)
    segments = torch.repeat_interleave(numbers, lengths, output_size=rows * row_length).view(rows, row_length)
    causal = torch.ones(row_length, row_length, dtype=torch.bool, device=cu_seqlens.device).tril_()
    return ((segments[:, :, None] == segments[:, None, :]) & causal)[:, None]
