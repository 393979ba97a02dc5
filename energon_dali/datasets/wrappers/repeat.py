"""Gives the elements of a dataset several times per epoch, or for ever."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset, WrapperDataset
from energon_dali.datasets.restore_key import Key
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.shards.documents.state_entries import count_of, state_of
from energon_dali.worker_config import WorkerConfig


class RepeatDataset(WrapperDataset[Any]):
    """Gives `repeats` passes over a dataset per epoch, or passes without end.

    A fraction is a share of one more pass: its elements are counted per stream, over all streams together exactly (as
    far as the lengths of the data below are known). What the fraction leaves of its pass comes first in the next epoch,
    so that over the epochs every element comes equally often.

    Args:
        dataset: The dataset below, whose epochs end.
        repeats: Passes per epoch, more than 0; None never ends.
        restart: Whether a further epoch follows; False gives nothing after the first.
        worker_config: Left out, the inner dataset's.

    Raises:
        ConfigError: repeats is no finite number above 0.
    """

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
                f"repeats={repeats!r} cannot be: give a number of passes above 0, such as 2 or 0.5, or None for passes "
                "without end."
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
        return int(whole) * self.dataset.len_stream(stream) + self.share(stream, fraction)

    def share(self, stream: int, fraction: Fraction) -> int:
        """Returns how many elements a stream gives of a share of a pass: over all streams the share, rounded down."""
        if not fraction:
            return 0
        before = sum(self.dataset.len_stream(other) for other in range(stream))
        return int((before + self.dataset.len_stream(stream)) * fraction) - int(before * fraction)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _RepeatIterator(self, context)

    def restore_sample(self, restore_key: Key) -> Any:
        return self.dataset.restore_sample(restore_key)


def passes_until(repeats: int | float, epochs: int) -> Fraction:
    """Returns after how many passes an epoch ends, exactly: 0.1 is a tenth, not its nearest binary number.

    Args:
        repeats: Passes per epoch.
        epochs: Number of the epoch, counted from 1.
    """
    return Fraction(repr(repeats)) * epochs


class _RepeatIterator(StreamIterator[Any]):
    def __init__(self, dataset: RepeatDataset, context: StreamContext) -> None:
        self._dataset = dataset
        self._stream = context.stream
        self._inner = dataset.dataset.open(context)
        self._epoch = 0
        self._passes = 0
        """Passes that have ended."""
        self._given = 0
        """Elements of the running pass."""
        self._end: tuple[int, int] | None = None
        """Passes, and elements of the pass behind them, after which the epoch ends; None never."""
        self._find_end()

    def _find_end(self) -> None:
        if self._dataset.repeats is None:
            return
        if self._epoch and not self._dataset.restart:
            self._end = (0, 0)
            return
        whole, fraction = divmod(passes_until(self._dataset.repeats, self._epoch + 1), 1)
        self._end = (int(whole), self._dataset.share(self._stream, fraction))

    def __next__(self) -> Any:
        empty_passes = 0
        while True:
            if self._end is not None and (self._passes, self._given) >= self._end:
                self._epoch += 1
                self._find_end()
                raise StopIteration
            try:
                element = next(self._inner)
            except StopIteration:
                empty_passes = 0 if self._given else empty_passes + 1
                self._passes, self._given = self._passes + 1, 0
                if self._end is None:
                    self._check(empty_passes)
                continue
            self._given += 1
            return element

    def _check(self, empty_passes: int) -> None:
        # The shares of the streams may go round from epoch to epoch: a stream without a share now may get one later.
        layout = self._dataset.worker_config.layout
        if empty_passes > layout.num_streams:
            raise DatasetError(
                f"{self._dataset.describe()} has nothing to repeat in stream {self._stream}: {empty_passes} passes "
                f"over the dataset below gave no element.\n{self._dataset}\nEither the dataset is empty (or a hook "
                f"skips everything), or it has fewer samples than the job has streams ({layout.num_streams}): use "
                "fewer streams (WorkerConfig(num_streams=...)), or more data."
            )

    def last_key(self, element: Any) -> Key:
        return self._inner.last_key(element)

    def state_dict(self) -> State:
        return {"epoch": self._epoch, "passes": self._passes, "given": self._given, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._epoch = count_of(state, "epoch")
        self._passes, self._given = count_of(state, "passes"), count_of(state, "given")
        self._find_end()
        self._inner.load_state_dict(state_of(state))

    def close(self) -> None:
        self._inner.close()
