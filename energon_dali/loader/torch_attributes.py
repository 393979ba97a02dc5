"""The attributes of a torch `DataLoader`, for programs that read them from a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")


class TorchAttributes:
    """Gives a loader the attributes of a torch `DataLoader`, with the values that describe it; all are read-only.

    The dataset makes the batches and their order, so there is no sampler, no batch size and nothing to collate.
    """

    worker_config: WorkerConfig
    _options: LoaderOptions

    batch_size: None = None
    """The dataset yields batches; their size is an option of `get_train_dataset`."""
    sampler: None = None
    """The plan of the dataset decides the order."""
    batch_sampler: None = None
    """Likewise."""
    drop_last = False
    """The dataset decides it (`batch_drop_last`)."""
    timeout = 0.0
    """A watchdog reports waits instead (`watchdog_timeout_seconds`)."""
    worker_init_fn: None = None
    """Workers seed the random generators themselves."""
    multiprocessing_context: None = None
    """`start_method` chooses how workers start."""
    generator: None = None
    """Seeds follow from `WorkerConfig.seed_offset`."""
    pin_memory_device = ""
    """Deprecated in torch."""
    in_order = True
    """Batches have a fixed order, whichever worker makes them first."""

    @property
    def num_workers(self) -> int:
        """Worker processes of this rank."""
        return self.worker_config.num_workers

    @property
    def prefetch_factor(self) -> int:
        """Blocks per stream that workers make ahead."""
        return self._options.prefetch_factor

    @property
    def pin_memory(self) -> bool:
        """Whether CPU batches are put into page-locked memory."""
        return self._options.pin_memory is True

    @property
    def persistent_workers(self) -> bool:
        """Whether workers outlive an epoch: True if there are any."""
        return self.worker_config.num_workers > 0

    @staticmethod
    def collate_fn(batch: T) -> T:
        """Returns a batch as it is: the dataset has made it."""
        return batch
