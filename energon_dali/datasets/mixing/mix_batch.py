"""Mixes several datasets within each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE
from energon_dali.datasets.mixing.blend import BlendDataset
from energon_dali.task_encoder import failure_tolerance, is_stateless, stateless
from energon_dali.worker_config import WorkerConfig


@stateless
def keep_apart(batches: list[Any]) -> list[Any]:
    """Returns the list itself, so that a mixed batch is a list of batches."""
    return batches


class MixBatchDataset(BatchDataset):
    """Yields `batch_mix_fn(list of batch_size elements)`; each element is drawn by weight from several datasets.

    The datasets usually yield batches of one sample (batch_size=1), so that `batch_size` of them make one batch.

    Args:
        *dataset_weights: Pairs (dataset, weight), as for BlendDataset.
        batch_size: Elements per mixed batch, at least 1.
        batch_mix_fn: Makes one batch of a list of elements: `homogeneous_concat_mix` if all datasets yield one type, or
            your own function for several types. May raise SkipSample, or be a generator function. The default returns
            the list. Mark it @stateless to restore single batches.
        worker_config: Default: that of the datasets.

    Raises:
        ConfigError: batch_size is less than 1, or the pairs cannot be blended.
    """

    @explain_call
    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset[Any], float],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = keep_apart,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        blend = BlendDataset(*dataset_weights, worker_config=worker_config)
        super().__init__(
            blend,
            batch_size,
            batch_mix_fn,
            batcher_stateless=is_stateless(batch_mix_fn),
            batcher_config={"mix": getattr(batch_mix_fn, "__qualname__", type(batch_mix_fn).__qualname__)},
            failure_tolerance=failure_tolerance(batch_mix_fn, DEFAULT_FAILURE_TOLERANCE),
        )
