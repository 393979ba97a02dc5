"""Datasets in the worker processes of a torch `DataLoader`: each worker iterates its own streams of the rank."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from energon_dali.datasets.resharding import within
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

_PARENTS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")
"""Modules that start the worker processes."""


def torch_worker(config: WorkerConfig) -> int | None:
    """Returns the number of the torch worker process that this is, None outside of one.

    Args:
        config: Of the dataset that is iterated.

    Raises:
        ConfigError: The `DataLoader` has another number of workers than the configuration, so that samples would be
            lost or repeated.
    """
    info = get_worker_info()
    if info is None:
        return None
    if info.num_workers != config.layout.num_workers:
        raise ConfigError(
            f"A dataset is iterated in worker process {info.id} of {info.num_workers} of a torch DataLoader, and it "
            f"was opened with WorkerConfig(num_workers={config.num_workers}), which divides its samples among "
            f"{config.layout.num_workers}: some would be lost or repeated. Give both the same number."
        )
    return int(info.id)


def refuse_worker_process() -> None:
    """Checks that a loader is not iterated in a worker process of a torch `DataLoader`.

    Raises:
        ConfigError: It is. Each worker would yield all batches of the rank.
    """
    info = get_worker_info()
    if info is not None:
        raise ConfigError(
            f"A loader is iterated in worker process {info.id} of {info.num_workers} of a torch DataLoader. Each of "
            "them would yield all batches of this rank, and the loader in the trainer would not hold its position. "
            "Use DataLoader(..., num_workers=0): the loader has worker processes of its own, "
            f"WorkerConfig(num_workers={info.num_workers}). Or give the dataset, not a loader, to the DataLoader."
        )


def refuse_restarts(owner: object) -> None:
    """Checks that the workers of a torch `DataLoader` live longer than a virtual epoch.

    Args:
        owner: The dataset with virtual epochs.

    Raises:
        ConfigError: They are started again for each epoch, at the beginning of the data.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_worker_loop" and frame.f_locals.get("persistent_workers") is False:
            raise ConfigError(
                f"{type(owner).__name__} with virtual epochs is iterated by a torch DataLoader that starts new "
                "workers for each epoch: each epoch would have the samples of the first one. Use DataLoader(..., "
                "persistent_workers=True), or leave virtual_epoch_length out."
            )
        frame = frame.f_back


def is_sent_to_torch_workers() -> bool:
    """Returns whether a torch `DataLoader` is starting worker processes, among the callers."""
    return within(*_PARENTS)


def share_of(count: int, worker: int, config: WorkerConfig) -> int:
    """Returns how many of the first elements of a rank one of its workers yields, as in Energon.

    Args:
        count: Number of elements of the rank, such as the length of an epoch.
        worker: Number of the worker.
        config: Of the dataset.
    """
    each, rest = divmod(count, config.layout.num_workers)
    return each + (worker < rest)


def state_for_worker(state: Mapping[str, Any], worker: int, config: WorkerConfig) -> dict[str, Any]:
    """Returns the position of a rank as one of its workers takes it over.

    Args:
        state: State of the rank.
        worker: Number of the worker.
        config: Of the dataset.
    """
    return {**state, "given": share_of(state["given"], worker, config)}
