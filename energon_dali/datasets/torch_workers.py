"""Who uses a dataset or a loader: worker processes of a torch `DataLoader`, and libraries that would lose samples.

Each worker process of a torch `DataLoader` iterates its own streams of the rank. What else is refused is in
`integrations/callers.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from torch.utils.data import get_worker_info

from energon_dali.calls import callers
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

_PARENTS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")
"""Modules that start the worker processes."""
_LIBRARIES = ("accelerate", "lightning", "lightning_fabric", "torch.distributed.checkpoint", "transformers")
"""Libraries of which `integrations/callers.py` refuses some callers."""


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
    for frame in callers():
        if frame.f_code.co_name == "_worker_loop" and frame.f_locals.get("persistent_workers") is False:
            raise ConfigError(
                f"{type(owner).__name__} with virtual epochs is iterated by a torch DataLoader that starts new "
                "workers for each epoch: each epoch would have the samples of the first one. Use DataLoader(..., "
                "persistent_workers=True), or leave virtual_epoch_length out."
            )


def is_sent_to_torch_workers() -> bool:
    """Returns whether a torch `DataLoader` is starting worker processes, among the callers."""
    return any(frame.f_globals.get("__name__") in _PARENTS for frame in callers())


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


def refuse_caller(
    check: Literal["refuse_resharding", "refuse_single_writer", "refuse_trainer"], subject: object
) -> None:
    """Lets `integrations/callers.py` refuse the caller, if a library is loaded of which it refuses some.

    Args:
        check: Name of a function there.
        subject: What that takes.

    Raises:
        ConfigError: The caller would lose samples, or a position.
    """
    if not sys.modules.keys().isdisjoint(_LIBRARIES):
        getattr(import_module("energon_dali.integrations.callers"), check)(subject)


def refuse_resharding(config: WorkerConfig) -> None:
    """Checks that the caller neither divides the samples of a rank again nor repeats them.

    Args:
        config: Of the dataset that is iterated.

    Raises:
        ConfigError: A wrapper around the dataset would divide the samples of a rank among all ranks. Or its rank was
            taken from the environment before the processes of the job were started.
    """
    config.check_derived_rank()
    if config.world_size > 1:
        refuse_caller("refuse_resharding", config)


def refuse_indexing(owner: object) -> NoReturn:
    """Refuses access to an element by its index, as a torch DataLoader does it.

    Args:
        owner: The dataset or loader.

    Raises:
        ConfigError: Always.
    """
    refuse_caller("refuse_trainer", owner)
    is_dataset = hasattr(owner, "len_stream")
    # A dataset is named by what its user built: the outermost class is often one that nobody has seen.
    what = "A dataset" if is_dataset else f"A {type(owner).__name__}"
    instead = ", or a torch DataLoader(dataset, batch_size=None) with as many workers as its WorkerConfig"
    raise ConfigError(
        f"{what} yields its elements in the order of its plan; they have no index. Iterate get_loader(dataset) or "
        "get_savable_loader(dataset), which has its own worker processes (WorkerConfig(num_workers=...)), batches "
        f"(get_train_dataset(batch_size=...)) and prefetching{instead if is_dataset else ''}."
    )
