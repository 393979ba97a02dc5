"""A node of `torchdata.nodes` that yields the batches of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torchdata.nodes import BaseNode
from typing_extensions import Unpack

from energon_dali.calls import explain_call
from energon_dali.loader.get_loader import get_savable_loader
from energon_dali.loader.loader_options import LoaderArguments, show_loader_options
from energon_dali.loader.savable_loader import SavableDataLoader, SavableLoaderIterator

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State

T = TypeVar("T")


class LoaderNode(BaseNode):  # type: ignore[misc]  # torchdata has no types
    """Yields the batches of a dataset as the root or a source of a graph of torchdata nodes.

    A reset without a state starts the next epoch if one is over, and otherwise continues, as `iter(loader)` does. A
    reset with a state continues there, also if batches were taken before. Other keyword arguments are those of
    `get_savable_loader`.

    Args:
        dataset: What get_train_dataset or get_val_dataset returns.

    Raises:
        ConfigError: An argument is invalid.
    """

    @explain_call
    @show_loader_options
    def __init__(self, dataset: SavableDataset[Any], **options: Unpack[LoaderArguments]) -> None:
        super().__init__()
        self._dataset = dataset
        self._options = options
        self.loader: SavableDataLoader[Any] = get_savable_loader(dataset, **options)
        """The loader of this rank."""
        self._batches: SavableLoaderIterator[Any] = iter(self.loader)
        self._begun = False

    def reset(self, initial_state: State | None = None) -> None:
        """Starts an epoch, or continues at a state.

        Args:
            initial_state: What `state_dict()` of a node of this rank returned; None has no state.

        Raises:
            StateError: The state is of another dataset.
            LayoutError: The state does not fit this layout of ranks and workers.
        """
        super().reset(initial_state)
        if initial_state is not None:
            if self._begun:
                self.loader.close()
                self.loader = get_savable_loader(self._dataset, **self._options)
            self.loader.restore_state_rank(initial_state)
            self._begun = True
        self._batches = iter(self.loader)

    def next(self) -> Any:
        """Returns the next batch.

        Raises:
            StopIteration: The epoch is over.
        """
        self._begun = True
        return next(self._batches)

    def get_state(self) -> State:
        """Returns the state of this rank after the last batch."""
        return self.loader.save_state_rank()
