"""The classes of Energon's states: what programs name in annotations and in lists of safe classes for torch.load.

States of this package are plain values. A state that Energon saved unpickles into these classes, and a loader of this
package refuses it with a StateError, because the two packages have different orders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from energon_dali.compat.samples import ExtendableDataclassMixin


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
