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
    """Returns the list itself: a mixed batch that is a list of batches."""
    return batches


class MixBatchDataset(BatchDataset):
    """Gives `batch_mix_fn(list of batch_size elements)`, each drawn by weight from one of several datasets.

    The datasets usually give batches of one sample (batch_size=1), so that `batch_size` of them make one batch.

    Args:
        *dataset_weights: Pairs (dataset, weight), as for BlendDataset.
        batch_size: Elements per mixed batch, at least 1.
        batch_mix_fn: Makes one batch of a list of elements: `homogeneous_concat_mix` where all datasets give one type,
            a function of your own for several types. May raise SkipSample, or be a generator function. The default
            gives the list. Mark it @stateless to restore single batches.
        worker_config: Left out, that of the datasets.

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
