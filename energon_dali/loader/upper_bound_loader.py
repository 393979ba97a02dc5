"""Replays batches of a loader, to measure how fast a training would run if loading took no time."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Generic, NoReturn, TypeVar

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.basic_loader import BasicDataLoader
from energon_dali.loader.statistics import LoaderStatistics
from energon_dali.loader.watchdog import TrainerClock

T = TypeVar("T")


@explain_call
class UpperBoundLoader(Generic[T]):
    """Takes the first batches of a loader, closes it, and gives these batches again and again.

    Give it to a training in place of the loader, and compare the steps per second: the difference is the most that
    faster loading can bring. A training on it learns a few batches by heart, so it is only for measuring; it has no
    state.

    The batches are held in memory, and on the GPU if the loader delivers them there. They are not copied: each is given
    as a new dict, list or dataclass with the same tensors. A training that changes tensors in place changes them for
    all later steps.

    Args:
        loader: Where the batches come from. All of them are taken when the first is asked for.
        num_batches: How many to hold, at least 1; fewer if the loader's epoch ends before. With batches of different
            shapes take enough of them to be typical.
        length: Batches per epoch; None is the length of the dataset's virtual epochs, and endless if it has none. Give
            `len(loader)` for a training that counts on the ends of epochs.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(self, loader: BasicDataLoader[T], *, num_batches: int = 16, length: int | None = None) -> None:
        if not isinstance(loader, BasicDataLoader):
            raise ConfigError(
                f"loader={loader!r} is not a loader. Give what get_loader or get_savable_loader returned."
            )
        for name, value in (("num_batches", num_batches), ("length", length)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} is invalid: it must be at least 1.")
        self._loader = loader
        self._num_batches = num_batches
        limit = loader.dataset.rank_limit
        self._length = length if length is not None or limit is None else limit.length
        self._batches: list[T] = []
        self._clock = TrainerClock()
        self._given = 0

    def __iter__(self) -> Iterator[T]:
        self._fill()
        given = 0
        while self._length is None or given < self._length:
            started = self._clock.start()
            batch = _shallow_copy(self._batches[self._given % len(self._batches)])
            given, self._given = given + 1, self._given + 1
            self._clock.stop(started)
            yield batch

    def __len__(self) -> int:
        return len(self._loader) if self._length is None else self._length

    def _fill(self) -> None:
        """Takes the batches, if that has not been done.

        Raises:
            ConfigError: The loader has none.
        """
        if self._batches:
            return
        for batch in self._loader:
            self._batches.append(batch)
            if len(self._batches) == self._num_batches:
                break
        self._loader.close()
        if not self._batches:
            raise ConfigError(
                "The loader has no batch to replay: its epoch is empty. Give one that has at least one batch left."
            )

    def stats(self) -> LoaderStatistics:
        """Returns batches and times since the first replayed batch; `batches_per_second` is the upper bound."""
        return LoaderStatistics(**self._clock.times())

    def close(self) -> None:
        """Drops the batches, and closes the loader; a later iteration takes others."""
        self._batches = []
        self._loader.close()

    def __enter__(self) -> UpperBoundLoader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_state(self, *_: Any, **__: Any) -> NoReturn:
        raise StateError(
            "An UpperBoundLoader has no position to save or restore: it replays a few batches. Measure without "
            "checkpoints, and train with the loader itself."
        )

    state_dict = load_state_dict = _refuse_state
    save_state_rank = save_state_global = restore_state_rank = restore_state_global = _refuse_state


def _shallow_copy(batch: Any) -> Any:
    """Returns a batch in new containers, so that a training may remove and replace fields; tensors are shared."""
    if isinstance(batch, Mapping) or is_dataclass(batch) or isinstance(batch, list):
        return copy.copy(batch)
    return batch
