"""A loader as an IterableDataset, for programs that insist on a torch DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import IterableDataset

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.loader.basic_loader import BasicDataLoader, LoaderIterator
from energon_dali.loader.savable_loader import SavableDataLoader

if TYPE_CHECKING:
    from energon_dali.datasets.stream import State

T = TypeVar("T")


@explain_call
class LoaderIterableDataset(IterableDataset[T]):
    """Gives the batches of a loader to a torch `DataLoader`, or to torchdata's `StatefulDataLoader`.

    Use it as `DataLoader(LoaderIterableDataset(loader), batch_size=None)`: the loader has its own batches and worker
    processes. In worker processes of the DataLoader the batches would be repeated, which is an error.

    Args:
        loader: What get_savable_loader or get_loader returns.

    Raises:
        ConfigError: It is not a loader.
    """

    def __init__(self, loader: BasicDataLoader[T]) -> None:
        if not isinstance(loader, BasicDataLoader):
            raise ConfigError(
                f"LoaderIterableDataset was given a {type(loader).__name__}. Give what get_savable_loader or "
                "get_loader returns."
            )
        self.loader = loader

    def __iter__(self) -> LoaderIterator[T]:
        """Continues the epoch of the loader, or starts the next one; the iterator of a savable loader has its state."""
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> State:
        """Returns the state of this rank after the last delivered batch.

        Raises:
            ConfigError: The loader cannot save its state.
        """
        return self._savable().save_state_rank()

    def load_state_dict(self, state: State) -> None:
        """Continues at a state; call it before the first batch is taken.

        Raises:
            ConfigError: The loader cannot save its state.
            StateError: Iteration has begun, or the state is of another dataset.
            LayoutError: The state does not fit this layout of ranks and workers.
        """
        self._savable().restore_state_rank(state)

    def _savable(self) -> SavableDataLoader[Any]:
        if not isinstance(self.loader, SavableDataLoader):
            raise ConfigError("A loader of get_loader has no state: use get_savable_loader.")
        return self.loader
