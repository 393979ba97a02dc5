"""Tasks on images, and the task encoder that they share: from images with classes to batches.

Imports no torch: reading workers load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from energon_dali.decode import Decoder
from energon_dali.samples import Batch, ImageClassificationSample, edataclass
from energon_dali.samples.batching import batch_stack
from energon_dali.task_encoder.encoder import TaskEncoder
from energon_dali.task_encoder.stateless import stateless

if TYPE_CHECKING:
    import torch


@edataclass
class PictureBatch(Batch):
    """Images and their classes."""

    image: torch.Tensor
    """uint8[B, 3, H, W]."""
    label: torch.Tensor
    """int64[B]."""


class PictureTaskEncoder(TaskEncoder[ImageClassificationSample, ImageClassificationSample, PictureBatch, PictureBatch]):
    """Stacks images; colours are looked up by the task, a whole batch at a time on the model's device.

    Args:
        decoder: Gives images uint8[3, H, W] of one size.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    @stateless
    def batch(self, samples: list[ImageClassificationSample]) -> PictureBatch:
        """Returns images uint8[B, 3, H, W] and their classes int64[B]."""
        return self._batch(samples, PictureBatch, {"image": batch_stack, "label": _stack_labels})


def _stack_labels(labels: list[int]) -> torch.Tensor:
    import torch  # known by then where images are tensors

    return torch.tensor(labels)
