"""The classes of Energon's states: what programs name in annotations and in lists of safe classes for torch.load.

States of this package are plain values. A state that Energon saved unpickles into these classes, and a loader of this
package refuses it with a StateError, because the two packages have different orders.

With them are the random generators of Energon: the global ones, and one for each worker.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from energon_dali.compat.samples import ExtendableDataclassMixin
from energon_dali.errors import StateError
from energon_dali.worker_config import WorkerConfig


class FlexState(dict[str, Any]):
    """A state as a dict."""


class Savable(ABC):
    """Something that has a state."""

    @abstractmethod
    def save_state(self) -> Any:
        """Returns the state, in plain values."""

    @abstractmethod
    def restore_state(self, state: Any) -> None:
        """Continues at a state; None is the initial one."""


@dataclass(slots=True, kw_only=True)
class State(ExtendableDataclassMixin):
    """Base class of the records."""


@dataclass(slots=True, kw_only=True)
class SavableDatasetState(State):
    """The state of a worker's dataset."""

    rng: Any
    """State of the global random generators."""
    dataset_state: FlexState | None
    """State of the dataset."""
    sample_index: int
    """Number of the next sample."""


@dataclass(slots=True, kw_only=True)
class SavableCheckpoint:
    """A state that a worker keeps for later."""

    state: SavableDatasetState | None
    """The state; None is the initial one."""
    checkpoint_time: float
    """When it was taken, in seconds."""
    sample_index: int
    """Number of the next sample."""


@dataclass(slots=True, kw_only=True)
class SavableDatasetCheckpoint(State):
    """The state of a worker."""

    state: SavableDatasetState | None
    """An earlier state; None is the initial one."""
    offset: int
    """Samples to skip after it."""


@dataclass(slots=True, kw_only=True)
class SavableDataLoaderState(State):
    """The state of a rank."""

    worker_states: list[SavableDatasetCheckpoint | FlexState]
    """State of each worker."""
    next_worker_id: int
    """Worker that delivers the next batch."""
    micro_batch_size: int | None = None
    """Samples per batch."""


@dataclass(slots=True)
class SliceState:
    """The position in a slice, one entry of a source's state."""

    index: int
    """Number of the slice."""
    current: int
    """Number of the next sample."""


# With weights_only=True, torch.load compares the full name of a class that is declared safe with the name in the file.
FlexState.__module__ = "megatron.energon.state"
SliceState.__module__ = "megatron.energon.flavors.webdataset.sample_loader"
for _class in (SavableDatasetState, SavableCheckpoint, SavableDatasetCheckpoint, SavableDataLoaderState):
    _class.__module__ = "megatron.energon.savable_loader"


T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class SystemRngState:
    """State of the global generators."""

    torch: torch.Tensor
    """Of torch on the CPU: uint8."""
    numpy: Any
    """Of numpy."""
    random: Any
    """Of the standard library."""


SystemRngState.__module__ = "megatron.energon.rng"  # as in energon_dali.compat.states


class SystemRng:
    """The global random generators of torch (CPU), numpy and the standard library."""

    @staticmethod
    def seed(seed: int) -> None:
        """Seeds all three.

        Args:
            seed: From 0 to 2**32 - 1.
        """
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also query CUDA
        np.random.seed(seed)
        random.seed(seed)

    @staticmethod
    def save_state() -> SystemRngState:
        """Returns the state of all three."""
        return SystemRngState(torch=torch.get_rng_state(), numpy=np.random.get_state(), random=random.getstate())

    @staticmethod
    def restore_state(state: SystemRngState) -> None:
        """Sets the state of all three."""
        torch.set_rng_state(state.torch)
        np.random.set_state(state.numpy)
        random.setstate(state.random)

    @staticmethod
    def get_seed_from_args(*args: Any) -> int:
        """Returns a seed from 0 to 2**32 - 1 that depends on the texts of the arguments; the same as Energon's."""
        text = "|".join(map(str, args))
        return int.from_bytes(hashlib.sha1(text.encode()).digest()[:4], "big")

    @staticmethod
    def seed_args(*args: Any) -> None:
        """Seeds all three from the texts of the arguments."""
        SystemRng.seed(SystemRng.get_seed_from_args(*args))


class WorkerRng(Savable):
    """A random generator of a dataset, seeded by the worker that runs it; its state is a text.

    Args:
        worker_config: The job.
    """

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config
        self._generator: torch.Generator | None = None

    @property
    def rng(self) -> torch.Generator:
        """The generator.

        Raises:
            ConfigError: It is used outside of the iteration of a dataset.
        """
        if self._generator is None:
            self._generator = torch.Generator()
            self._generator.manual_seed(self.worker_config.worker_seed())
        return self._generator

    def randbelow(self, n: int) -> int:
        """Returns a number from 0 to n - 1."""
        return int(torch.randint(0, n, (), generator=self.rng))

    def choice_idx(self, probs: torch.Tensor) -> int:
        """Returns an index that is drawn in proportion to weights.

        Args:
            probs: The weights, float[N], not all 0.
        """
        if len(probs) == 1:
            return 0
        sums = probs.double().cumsum(0)
        draw = torch.rand((), dtype=torch.float64, generator=self.rng) * sums[-1]
        return min(int(torch.searchsorted(sums, draw, right=True)), len(probs) - 1)

    def choice(self, items: Sequence[T], probs: torch.Tensor | None = None) -> T:
        """Returns an item, drawn in proportion to weights, or uniformly without them."""
        return items[self.randbelow(len(items)) if probs is None else self.choice_idx(probs)]

    def shuffle(self, items: list[T]) -> list[T]:
        """Returns the items in random order."""
        return [items[index] for index in torch.randperm(len(items), generator=self.rng).tolist()]

    def rand_pop(self, items: list[T]) -> T:
        """Removes an item, drawn uniformly, and returns it."""
        return items.pop(self.randbelow(len(items)))

    def save_state(self) -> str | None:
        """Returns the state in hexadecimal; None before the first draw."""
        return None if self._generator is None else bytes(self._generator.get_state().numpy()).hex()

    def restore_state(self, state: str | bytes | None) -> None:
        """Continues at a state; None is the initial one.

        Raises:
            StateError: The state is damaged.
        """
        self._generator = None
        if state is None:
            return
        try:
            content = bytes.fromhex(state) if isinstance(state, str) else bytes(state)
            generator = torch.Generator()
            generator.set_state(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        except (TypeError, ValueError, RuntimeError) as error:
            raise StateError(f"The state of a WorkerRng is damaged: {error}") from error
        self._generator = generator
