"""The loader of validation and test: every iteration begins at the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from energon_dali.loader.basic_loader import BasicDataLoader

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.loader.statistics import LoaderStatistics

T = TypeVar("T")


class EvalLoader(Generic[T]):
    """Gives the same batches in every iteration, also after one that was left in the middle.

    Workers are kept from one iteration to the next, except after one that was left in the middle.

    Args:
        dataset: What `get_val_dataset` returned.
        **options: As for BasicDataLoader.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(self, dataset: SavableDataset[T], **options: Any) -> None:
        self.dataset = dataset
        self._options = options
        self._loader: BasicDataLoader[T] = BasicDataLoader(dataset, **options)
        self._batches: Iterator[T] = iter(self._loader)
        self._given = 0

    def __iter__(self) -> Iterator[T]:
        return _Pass(self)

    def __len__(self) -> int:
        return self.dataset.len_rank()

    def begin(self) -> Iterator[T]:
        """Returns an iteration from the beginning."""
        if self._given:
            # Who knows the length does not ask for the end; then it comes now.
            at_end = self._given >= len(self) and next(self._batches, None) is None
            self._given = 0
            if not at_end:
                self.close()
        self._batches = iter(self._loader)
        return self._batches

    def count(self, *, ended: bool) -> None:
        """Notes that a batch was given, or that the end came."""
        self._given = 0 if ended else self._given + 1

    def stats(self) -> LoaderStatistics:
        """Returns what happened since the workers started; see BasicDataLoader.stats."""
        return self._loader.stats()

    def close(self) -> None:
        """Ends workers and threads; may be called again."""
        self._loader.close()
        self._loader, self._given = BasicDataLoader(self.dataset, **self._options), 0

    def __str__(self) -> str:
        return f"EvalLoader\n{self._loader}"


class _Pass(Iterator[T], Generic[T]):
    """One iteration; nothing happens before its first batch is asked for."""

    def __init__(self, loader: EvalLoader[T]) -> None:
        self._loader = loader
        self._batches: Iterator[T] | None = None

    def __next__(self) -> T:
        if self._batches is None:
            self._batches = self._loader.begin()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader.count(ended=True)
            raise
        self._loader.count(ended=False)
        return batch
