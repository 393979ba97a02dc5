"""Torch's DataLoader over a dataset that a data module sets itself: a seeded order, shared out to ranks, resumable."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from energon_dali.errors import ConfigError, StateError
from energon_dali.plan.rng import mix
from energon_dali.task_encoder.stateless import RandomState
from energon_dali.tasks.loaders import FetchedBatch, FollowedSteps

if TYPE_CHECKING:
    from energon_dali.datasets.stream import State


class EpochPosition(NamedTuple):
    """Where training is in a dataset with epochs."""

    epoch: int
    """Epoch of the next batch."""
    batch: int
    """Batches of each rank that are done in it."""


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Which samples make which batch of which rank: a function of seed and epoch alone.

    Raises:
        ConfigError: The dataset is empty, or a rank would have no batch.
    """

    num_samples: int
    """Samples of the dataset."""
    batch_size: int
    """Samples of a batch."""
    rank: int
    """Data-parallel rank of this process."""
    world_size: int
    """Number of data-parallel ranks."""
    seed: int
    """Seed of the order."""
    shuffle: bool
    """Whether epochs have different orders; otherwise samples come in the order of the dataset."""

    def __post_init__(self) -> None:
        if self.num_samples < 1 or self.batch_size < 1:
            raise ConfigError(
                f"A dataset with {self.num_samples} samples and batch_size={self.batch_size} gives no batch: both must "
                "be at least 1."
            )
        if self.num_batches < 1:
            raise ConfigError(
                f"A dataset with {self.num_samples} samples in batches of {self.batch_size} is too small for "
                f"{self.world_size} ranks: some would have no batch. Give a smaller batch_size, or train on fewer "
                "ranks."
            )

    @property
    def num_batches(self) -> int:
        """Batches of this rank in an epoch. In training all ranks have the same number."""
        batches = -(-self.num_samples // self.batch_size)
        return (batches if self.shuffle else batches + self.world_size - 1 - self.rank) // self.world_size

    def indices(self, epoch: int, first_batch: int) -> Iterator[int]:
        """Yields the samples of this rank in an epoch, from its batch `first_batch` on."""
        order: Sequence[int] = range(self.num_samples)
        if self.shuffle:
            generator = torch.Generator().manual_seed(mix(self.seed, epoch))
            order = torch.randperm(self.num_samples, generator=generator).tolist()
        for number in range(first_batch, self.num_batches):
            start = (number * self.world_size + self.rank) * self.batch_size
            yield from order[start : start + self.batch_size]


class PlanSampler(DistributedSampler[Any]):
    """Yields the samples of an EpochPlan. Lightning replaces samplers of other classes where it has several ranks."""

    def __init__(self, dataset: Dataset[Any], plan: EpochPlan) -> None:
        super().__init__(dataset, plan.world_size, plan.rank, shuffle=plan.shuffle, seed=plan.seed)
        self.plan = plan
        self.start = EpochPosition(0, 0)

    def __iter__(self) -> Iterator[int]:
        first = self.start.epoch * self.plan.num_samples
        return (first + index for index in self.plan.indices(*self.start))

    def __len__(self) -> int:
        plan = self.plan
        last = (plan.num_batches - 1) * plan.world_size + plan.rank
        return (plan.num_batches - 1) * plan.batch_size + min(
            plan.batch_size, plan.num_samples - last * plan.batch_size
        )

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: the loader counts the epochs, also where a run resumes."""


class SeededSamples(Dataset[Any]):
    """A dataset whose samples draw random numbers by seed, epoch and index: on any number of workers, and resumed.

    The global CPU generators of Python, numpy and torch are seeded for each sample, and in the training process put
    back afterwards. Indices are `epoch * len(dataset) + index`.
    """

    def __init__(self, dataset: Any, plan: EpochPlan) -> None:
        self.dataset = dataset
        self.plan = plan

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        if get_worker_info() is not None:
            return self._sample(number)
        before = RandomState()
        try:
            return self._sample(number)
        finally:
            before.restore()

    def _sample(self, number: int) -> Any:
        seed = mix(self.plan.seed, number) % (1 << 32)
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        return self.dataset[number % self.plan.num_samples]


class MapLoader(FollowedSteps, DataLoader[Any]):
    """A torch DataLoader over a map-style dataset, whose position is part of checkpoints.

    Each iteration is an epoch, or the rest of one where a run resumes. Unless `follow` was called, an iteration that
    was left early begins again.

    Args:
        dataset: Has `__len__` and `__getitem__`.
        plan: Which samples come when.
        limit: Batches of each rank after which the trainer ends an epoch; None is all.
        **options: As for torch's DataLoader.
    """

    def __init__(self, dataset: Dataset[Any], plan: EpochPlan, *, limit: int | None = None, **options: Any) -> None:
        FollowedSteps.__init__(self)
        self._plan_sampler = PlanSampler(dataset, plan)
        samples = SeededSamples(dataset, plan)
        DataLoader.__init__(self, samples, batch_size=plan.batch_size, sampler=self._plan_sampler, **options)
        self._plan = plan
        self._epoch_batches = min(plan.num_batches, limit or plan.num_batches)
        self._delivered = EpochPosition(0, 0)

    def __len__(self) -> int:
        return self._plan.num_batches

    def __iter__(self) -> Any:
        if self._position is not None:
            self._untaken()
            self._delivered = self._fetched[-1].position if self._fetched else self._position
        start = self._plan_sampler.start = self._delivered
        for number, batch in enumerate(super().__iter__(), start.batch + 1):
            done = number >= self._epoch_batches
            after = EpochPosition(start.epoch + 1, 0) if done else EpochPosition(start.epoch, number)
            if self._position is not None:
                self._delivered = after
                self._fetched.append(FetchedBatch(batch, after))
            elif done:
                self._delivered = after
            yield batch

    def state_dict(self) -> State:
        """Returns nothing: the data module saves the position. Lightning checks that this method exists."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Does nothing: the data module restores the position."""

    def delivered_position(self) -> EpochPosition:
        """Returns the position after the last batch that was handed out."""
        return self._delivered

    def save_position(self) -> State:
        """Returns the position after the last batch that was trained on, as plain values that hold for all ranks."""
        epoch, batch = self._position or self._delivered
        plan = self._plan
        return {
            "num_samples": plan.num_samples,
            "batch_size": plan.batch_size,
            "seed": plan.seed,
            "world_size": plan.world_size,
            "epoch": epoch,
            "batches": batch * plan.world_size,
        }

    def restore_position(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration begin at a position that `save_position` returned, on any number of ranks.

        Raises:
            StateError: It is the position in another dataset or another order, or falls within a step of these ranks.
        """
        for name in ("num_samples", "batch_size", "seed"):
            if state.get(name) != getattr(self._plan, name):
                raise StateError(
                    f"The checkpoint's training data has {name}={state.get(name)}, and dataset_train has "
                    f"{name}={getattr(self._plan, name)}: it cannot be continued. Give the same data, batch size and "
                    "seed."
                )
        batch, rest = divmod(int(state["batches"]), self._plan.world_size)
        if rest:
            raise StateError(
                f"The checkpoint is {state['batches']} batches into its epoch, which {self._plan.world_size} ranks "
                "cannot divide. Continue on a number of ranks that divides it."
            )
        epoch = int(state["epoch"])
        # Batches that the ranks cannot share equally are left out at the end, so the epoch may be over.
        self._delivered = EpochPosition(epoch, batch) if batch < self._plan.num_batches else EpochPosition(epoch + 1, 0)
