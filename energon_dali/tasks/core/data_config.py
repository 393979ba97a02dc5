"""What is said of a task's data: paths, sizes and seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from energon_dali.build.datasets import AnyPath


@dataclass(kw_only=True)
class TransformerDataConfig:
    """What every task can say of its data; tasks derive from it and add theirs."""

    train: AnyPath | None = None
    """Prepared dataset or metadataset for training, as in `get_train_dataset`."""
    val: AnyPath | None = None
    """The same for validation; None does not validate."""
    test: AnyPath | None = None
    """The same for the test; None does not test."""
    train_split: str = "train"
    """Part of the split of `train`."""
    val_split: str = "val"
    """Part of the split of `val`."""
    test_split: str = "test"
    """Part of the split of `test`."""
    batch_size: int = 32
    """Samples per batch and rank."""
    val_batch_size: int | None = None
    """Samples per batch in validation and test; None is batch_size."""
    num_workers: int = 2
    """Reading processes per rank and loader; 0 reads in the rank's process."""
    num_streams: int | None = None
    """Logical streams of the job: ranks x workers must divide it. None is ranks x workers at the first start, and that
    of the checkpoint where a run is resumed."""
    shuffle_buffer_size: int | None = 10_000
    """Window of the sample shuffle per stream; costs no memory to speak of."""
    max_samples_per_sequence: int | None = 100
    """Longest run of training samples that is read in file order; None is a whole shard."""
    parallel_shard_iters: int | None = None
    """Places of a stream that are read in turn; None is 16 for training and 1 else."""
    packing_buffer_size: int | None = None
    """Samples from which the task encoder chooses packs; None does not pack."""
    virtual_epoch_length: int | None = None
    """Batches per epoch of training and rank; None is one pass over the data, 0 never ends."""
    limit_val_batches: int | None = None
    """Most batches per rank of a validation or test; None takes all."""
    seed: int = 0
    """Seed of the order of the data and of every random draw on it."""
    prefetch_factor: int = 2
    """Batches that wait for the trainer."""
    decode_process: bool | str = False
    """Decode and run hooks in a process of their own; "auto" where there is something to gain. See BasicDataLoader."""
    dataset_options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `get_train_dataset` and `get_val_dataset`, such as subset or trust_dataset_code."""
    loader_options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the loaders, such as watchdog_timeout_seconds."""
