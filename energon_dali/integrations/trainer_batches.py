"""What `transformers.Trainer` iterates in place of a torch DataLoader, and how its results are gathered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import IterableDataset

from energon_dali.errors import ConfigError
from energon_dali.loader.get_loader import get_savable_loader
from energon_dali.loader.savable_loader import SavableDataLoader
from energon_dali.samples.transfer import attributes_of

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.loader.loader_options import LoaderArguments


_PLACE = ("step", "micro_batch", "is_last_of_step", "num_units")
"""Attributes that the loader adds to a batch with global batches."""


def as_inputs(batch: Any) -> dict[str, Any]:
    """Returns a batch as the arguments of a model, without what begins with two underscores or says its place.

    Raises:
        ConfigError: It is neither a mapping nor a dataclass.
    """
    if isinstance(batch, Mapping):
        items = batch.items()
    elif dataclasses.is_dataclass(batch):
        fields = {field.name for field in dataclasses.fields(batch)}
        items = {
            name: one for name, one in attributes_of(batch).items() if name in fields or name not in _PLACE
        }.items()
    else:
        raise ConfigError(
            f"A batch for transformers.Trainer is a {type(batch).__name__}. Return a dict from TaskEncoder.batch or "
            'encode_batch, with the arguments of the model as names, such as {"input_ids": ..., "labels": ...}.'
        )
    return {name: value for name, value in items if not name.startswith("__")}


class _NotForIteration(IterableDataset[Any]):
    """The dataset whose batches the Trainer believes it skips; iterating it is an error."""

    def __iter__(self) -> NoReturn:
        raise ConfigError(
            "Something iterated the dataset of the Trainer's data loader, which would lose its position. Iterate the "
            "data loader that trainer.get_train_dataloader() returns."
        )


def of_all_ranks(number: int, accelerator: Any, world_size: int) -> list[int]:
    """Returns a number of each rank. A collective call.

    Args:
        number: That of this rank.
        accelerator: The Trainer's.
        world_size: Number of ranks.
    """
    if world_size == 1:
        return [number]
    values: list[int] = accelerator.gather(torch.tensor([number], device=accelerator.device)).tolist()
    return values


class TrainingBatches:
    """The batches of a loader for the Trainer: each iteration is an epoch of the Trainer.

    Args:
        loader: The loader of this rank.
        length: Batches in an epoch, the same on all ranks; None if it is unknown.
    """

    # What accelerate.skip_first_batches asks of a DataLoader.
    dataset = _NotForIteration()
    batch_size: int | None = None
    drop_last = False
    num_workers = 0
    prefetch_factor: int | None = None

    def __init__(self, loader: SavableDataLoader[Any], length: int | None) -> None:
        self.loader = loader
        self._length = length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return islice(self.endless(), self._length)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("A rank has less than one batch per epoch: set max_steps.")
        return self._length

    def endless(self) -> Iterator[dict[str, Any]]:
        """Yields batches from where the loader is, from epoch to epoch; ends where two epochs in a row are empty."""
        empty = 0
        while empty < 2:
            empty += 1
            for batch in self.loader:
                empty = 0
                yield as_inputs(batch)


class EvaluationBatches:
    """The batches of one evaluation, as many on each rank: those without data repeat their last, which does not count.

    Args:
        dataset: What get_val_dataset returned.
        options: Of its loader.
        accelerator: The Trainer's.
        args: The Trainer's arguments.
    """

    def __init__(self, dataset: SavableDataset[Any], options: LoaderArguments, accelerator: Any, args: Any) -> None:
        self.dataset = dataset
        self.accelerator = accelerator
        self.world_size: int = args.world_size
        self.loss_repeats: int = args.eval_batch_size
        """How often the Trainer repeats the loss of a batch."""
        self.rows = 0
        """Samples of the batch that was yielded last; 0 if it is a repeated one."""
        self.num_samples = 0
        """Samples that all ranks have seen in this evaluation."""
        self._options = options
        self._loader: SavableDataLoader[Any] | None = None

    def __len__(self) -> int:
        return self.dataset.len_rank()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._loader is None:
            self._loader = get_savable_loader(self.dataset, **self._options)
        loader, self._loader = self._loader, None  # kept for the next evaluation only if this one comes to its end
        self.num_samples = 0
        last: dict[str, Any] | None = None
        for own in _and_then_none(iter(loader)):
            batch = None if own is None else as_inputs(own)
            rows = -1 if batch is None else count_rows(batch)
            of_ranks = self.all_ranks(rows)
            if max(of_ranks) < 0:
                break
            batch = last if batch is None else batch
            if min(of_ranks) < 0 and not self._each_has_one(last is not None or rows >= 0):
                loader.close()
                raise ConfigError(
                    "A rank has no sample to evaluate, and a model on several ranks needs a batch on each. Give at "
                    "least as many samples as ranks, or a smaller batch_size."
                )
            assert batch is not None
            last = batch
            self.rows = max(rows, 0)
            self.num_samples += sum(max(count, 0) for count in of_ranks)
            yield batch
        self._loader = loader

    def all_ranks(self, number: int) -> list[int]:
        """Returns a number of each rank. A collective call."""
        return of_all_ranks(number, self.accelerator, self.world_size)

    def _each_has_one(self, own: bool) -> bool:
        return min(self.all_ranks(int(own))) == 1

    def close(self) -> None:
        """Ends the workers of the loader."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None


def _and_then_none(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    while True:
        yield None


def count_rows(batch: Mapping[str, Any]) -> int:
    """Returns the number of samples in a batch, by its first tensor.

    Raises:
        ConfigError: It has no tensor.
    """
    for value in batch.values():
        if isinstance(value, torch.Tensor) and value.ndim:
            return len(value)
        if isinstance(value, (Mapping, list, tuple)):
            inner = value if isinstance(value, Mapping) else dict(enumerate(value))
            try:
                return count_rows({str(name): one for name, one in inner.items()})
            except ConfigError:
                continue
    raise ConfigError(f"A batch to evaluate has no tensor: it has {sorted(batch)}. Return tensors from encode_batch.")


def gather_rows(values: Any, batches: EvaluationBatches) -> Any:
    """Returns tensors with the rows of all ranks, in their order, without those of repeated batches. Collective.

    Args:
        values: A tensor whose rows belong to the samples of the batch, or nested ones. The Trainer repeats the loss of
            a batch as often as its own batch size says; here it counts once for each sample.
        batches: Where the batch is from.
    """
    if isinstance(values, Mapping):
        return type(values)({name: gather_rows(value, batches) for name, value in values.items()})  # type: ignore[call-arg]
    if isinstance(values, (list, tuple)):
        return type(values)(gather_rows(value, batches) for value in values)
    if not isinstance(values, torch.Tensor):
        return values
    if (values.ndim == 1 and len(values) == batches.loss_repeats != batches.rows) or values.ndim == 0:
        values = values.reshape(-1)[:1].expand(batches.rows)
    own = values[: len(values) if batches.rows else 0].contiguous()
    if batches.world_size == 1:
        return own
    counts = batches.all_ranks(len(own))
    padded = torch.cat([own, own.new_zeros((max(counts) - len(own), *own.shape[1:]))])
    gathered = batches.accelerator.gather(padded)
    return torch.cat([part[:count] for part, count in zip(gathered.split(max(counts)), counts, strict=True)])
