"""`get_savable_loader` and `get_loader`: a loader that reads for this rank, or for others too, or follows another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Unpack

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.loader.basic_loader import BasicDataLoader
from energon_dali.loader.loader_options import LoaderArguments, show_loader_options
from energon_dali.loader.savable_loader import SavableDataLoader
from energon_dali.loader.sharing.follower import FollowerLoader
from energon_dali.loader.sharing.reader import ReaderLoader

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")


@explain_call
@show_loader_options
def get_savable_loader(
    dataset: SavableDataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    checkpoint_every_sec: float = 60,
    checkpoint_every_min_n_samples: int | None = None,
    n_checkpoints: int | None = None,
    gc_collect_every_n_steps: int = 10,
    gc_freeze_at_start: bool = True,
    **options: Unpack[LoaderArguments],
) -> SavableDataLoader[T]:
    """Returns a loader whose state can be saved; its arguments are those of `SavableDataLoader`.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """
    given = {name: value for name, value in locals().items() if name != "options"}
    kind = kind_of_loader(dataset) or SavableDataLoader
    return kind(**given, **options)


@explain_call
@show_loader_options
def get_loader(
    dataset: SavableDataset[T], *, worker_config: WorkerConfig | None = None, **options: Unpack[LoaderArguments]
) -> BasicDataLoader[T]:
    """Returns a loader without state saving; its arguments are those of `BasicDataLoader`.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """
    kind = kind_of_loader(dataset) or BasicDataLoader
    return kind(dataset, worker_config=worker_config, **options)


def kind_of_loader(dataset: object) -> type[SavableDataLoader[Any]] | None:
    """Returns the class of the loader of a dataset whose batches ranks share; None if this rank reads for itself."""
    group = dataset.worker_config.share_group if isinstance(dataset, SavableDataset) else None
    if group is None or not group.followers:
        return None
    return FollowerLoader if group.is_follower else ReaderLoader
