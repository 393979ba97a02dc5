"""Repeats a dataset several times per epoch, or indefinitely."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.stream import Move, PassingWrapperIterator, State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.shards.documents.state_entries import count_of, state_of
from energon_dali.worker_config import WorkerConfig


class RepeatDataset(PassThroughDataset[Any]):
    """Yields `repeats` passes over a dataset per epoch, or passes without an end.

    A fraction is a part of one more pass. Its elements are counted per stream, so that all streams together yield
    exactly that part, as far as the lengths of the data below are known. The next epoch begins with the rest of that
    pass, so that every element comes equally often over the epochs.

    Args:
        dataset: The dataset below, whose epochs end.
        repeats: Passes per epoch, more than 0; None never ends.
        restart: Whether a further epoch follows; with False there are no elements after the first.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: repeats is not a finite number above 0.
    """

    holds_elements = False
    plan_obstacle = None

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        repeats: int | float | None = None,
        restart: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if repeats is not None and (
            isinstance(repeats, bool) or not isinstance(repeats, (int, float)) or not 0 < repeats < math.inf
        ):
            raise ConfigError(
                f"repeats={repeats!r} is invalid: give a number of passes above 0, such as 2 or 0.5, or None for "
                "passes without an end."
            )
        self.repeats = repeats
        self.restart = restart

    def describe(self) -> str:
        return f"RepeatDataset(repeats={self.repeats})"

    def config(self) -> dict[str, Any]:
        return {**super().config(), "repeats": self.repeats, "restart": self.restart}

    def len_stream(self, stream: int) -> int:
        if self.repeats is None:
            return self.dataset.len_stream(stream)
        whole, fraction = divmod(passes_until(self.repeats, 1), 1)
        return int(whole) * self.dataset.len_stream(stream) + self.part_of_pass(stream, fraction)

    def part_of_pass(self, stream: int, fraction: Fraction) -> int:
        """Returns how many elements of a fraction of a pass a stream yields; the sum over streams is rounded down."""
        if not fraction:
            return 0
        before = sum(self.dataset.len_stream(other) for other in range(stream))
        return int((before + self.dataset.len_stream(stream)) * fraction) - int(before * fraction)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _RepeatIterator(self, context)


def passes_until(repeats: int | float, epochs: int) -> Fraction:
    """Returns after how many passes an epoch ends, exactly: 0.1 is a tenth, not the nearest binary number.

    Args:
        repeats: Passes per epoch.
        epochs: Number of the epoch, counted from 1.
    """
    return Fraction(repr(repeats)) * epochs


class _RepeatIterator(PassingWrapperIterator):
    def __init__(self, dataset: RepeatDataset, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        self._dataset = dataset
        self._stream = context.stream
        self._epoch = 0
        self._passes = 0
        """Passes that have ended."""
        self._given = 0
        """Elements of the current pass so far."""
        self._end: tuple[int, int] | None = None
        """(passes, elements of the next pass) after which the epoch ends; None if it never ends."""
        self._find_end()

    def _find_end(self) -> None:
        if self._dataset.repeats is None:
            return
        if self._epoch and not self._dataset.restart:
            self._end = (0, 0)
            return
        whole, fraction = divmod(passes_until(self._dataset.repeats, self._epoch + 1), 1)
        self._end = (int(whole), self._dataset.part_of_pass(self._stream, fraction))

    def _pass(self, count: int, move: Move) -> int:
        moved = empty_passes = 0
        while moved < count:
            wanted = count - moved
            if self._end is not None:
                passes, part = self._end
                if (self._passes, self._given) >= (passes, part):
                    self._epoch += 1
                    self._find_end()
                    break
                if self._passes == passes:
                    wanted = min(wanted, part - self._given)
            taken = move(0, wanted)
            moved += taken
            self._given += taken
            if taken < wanted:
                empty_passes = 0 if self._given else empty_passes + 1
                self._passes, self._given = self._passes + 1, 0
                if self._end is None:
                    self._check(empty_passes)
        return moved

    def _check(self, empty_passes: int) -> None:
        # A small source gives its samples to other streams in each epoch: an empty stream may get some later.
        layout = self._dataset.worker_config.layout
        if empty_passes > layout.num_streams:
            raise DatasetError(
                f"{self._dataset.describe()} has nothing to repeat in stream {self._stream}: {empty_passes} passes "
                f"over the dataset below yielded no element.\n{self._dataset}\nEither the dataset is empty (or a hook "
                f"skips everything), or it has fewer samples than the job has streams ({layout.num_streams}): use "
                "fewer streams (WorkerConfig(num_streams=...)), or more data."
            )

    def state_dict(self) -> State:
        return {"epoch": self._epoch, "passes": self._passes, "given": self._given, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._epoch = count_of(state, "epoch")
        self._passes, self._given = count_of(state, "passes"), count_of(state, "given")
        self._find_end()
        self._inner.load_state_dict(state_of(state))
