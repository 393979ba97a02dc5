"""Batches of numbers and what makes them, in a module that reading processes load quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali import Batch, Sample, TaskEncoder, edataclass, stateless

if TYPE_CHECKING:
    import torch


@edataclass
class NumbersBatch(Batch):
    """Three numbers per sample."""

    numbers: torch.Tensor
    """float32 [N, 3]."""


class NumbersEncoder(TaskEncoder[Any, Any, Any, Any]):
    """Turns lists of numbers into tensors."""

    @stateless
    def batch(self, samples: list[Sample]) -> NumbersBatch:
        import torch

        return NumbersBatch.from_samples(samples, numbers=torch.tensor([s.text for s in samples]).float())
