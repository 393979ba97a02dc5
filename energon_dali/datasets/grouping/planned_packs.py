"""Packs that were planned before anything was read: each is made of those of its samples that arrive."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np

from energon_dali.calls import check_function
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import GroupingDataset, GroupingIterator
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy, check_result
from energon_dali.datasets.restore_key import UNIT_NAME, UNIT_NUMBERS, expect_name, step_of_key
from energon_dali.datasets.source import SourceDataset, source_of
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.plan.packed_batches import PackedBatchPlan
from energon_dali.plan.rng import Int64Array
from energon_dali.samples.base import Key, set_restore_key


class PlannedPackDataset(GroupingDataset):
    """Yields `packer(list of samples)` for each pack of the rank's micro-batches.

    A pack shrinks by the samples that are missing; without any it is missing itself. So is one whose packer fails.

    Args:
        dataset: Encoded samples of a `SourceDataset` whose plan is a PackedBatchPlan.
        packer: Makes one element of the samples of a pack.
        real_length: Returns the length of an encoded sample; None checks nothing. A sample that is longer than its
            measure is dropped with the reason.
        cut: Returns a sample of at most a length, for those that are longer; None drops them.
        packer_stateless: Whether its result depends on its argument (and its seeds) alone.
        packer_config: Plain values that describe it, for `config()`.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.

    Raises:
        ConfigError: There are no planned packs below, or the packer is a generator function.
    """

    hook_name = "pack_selected_samples"
    holds_elements = False

    def __init__(
        self,
        dataset: SavableDataset[Any],
        packer: Callable[[list[Any]], Any],
        *,
        real_length: Callable[[Any], int] | None,
        cut: Callable[[Any, int], Any] | None,
        packer_stateless: bool = False,
        packer_config: dict[str, Any] | None = None,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
    ) -> None:
        super().__init__(dataset, packer, hook_stateless=packer_stateless, failure_tolerance=failure_tolerance)
        check_function("packer", packer, "from the samples of a pack to one", may_yield=False)
        if not isinstance(dataset.global_batches, PackedBatchPlan):
            raise ConfigError("PlannedPackDataset was given a dataset without planned packs below.")
        self.real_length = real_length
        self.cut = cut
        self.packer_config = packer_config

    @property
    def plan(self) -> PackedBatchPlan:
        """The plan of the packs."""
        plan = self.global_batches
        assert isinstance(plan, PackedBatchPlan), "the constructor checks it"
        return plan

    @property
    def source(self) -> SourceDataset:
        """The dataset that reads the samples."""
        return source_of(self.dataset)

    @property
    def options(self) -> dict[str, Any]:
        return {"packer": self.packer_config}

    def describe(self) -> str:
        rule = self.plan.rule
        return f"PlannedPackDataset(max_length={rule.max_length}, window={rule.window})"

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _PlannedPackIterator(self, context)

    def key_of(self, number: int, place: int, key: Key) -> Key:
        """Returns the restore key of a pack of one sample.

        Args:
            number: Number of its micro-batch in the epoch of its stream.
            place: Its place in that.
            key: The key of the sample, whose number hooks draw by.
        """
        return (UNIT_NAME, key[1], number, place, step_of_key(key), type(self).__name__, key[1], key)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the pack of a key, made again.

        Raises:
            StateError: The key is not of this dataset.
            DatasetError: A sample is longer than its measure.
        """
        key = expect_name(restore_key, UNIT_NAME, UNIT_NUMBERS)
        return set_restore_key(super().restore_sample(key[1 + UNIT_NUMBERS :]), key)

    def restore_part(self, key: Key) -> Any:
        """Returns a sample of a pack, made again.

        Raises:
            StateError: The key is not of the dataset below.
            DatasetError: It is longer than its measure.
        """
        return self.fitted(self.dataset.restore_sample(key), self._room_of(key))

    def is_planned(self, key: Key) -> bool:
        """Returns whether the plan packs the sample of a key: it was measured, and fits."""
        return bool(self.plan.rule.lengths(self._measured_of(key))[0] >= 0)

    def _room_of(self, key: Key) -> int:
        """Returns the length that a sample may have, from its key."""
        longest = self.plan.rule.longest
        length = int(self._measured_of(key)[0])
        return min(length, longest) if length >= 0 else longest

    def _measured_of(self, key: Key) -> Int64Array:
        """Returns int64[1]: the measured length of a sample, from its key."""
        rule, measured = self.plan.rule, self.plan.measured
        assert measured is not None
        source, number = self.source.place_of_key(key[key.index(UNIT_NAME) :])
        return measured.values[source].take(rule.length, np.array([number]))

    def fitted(self, sample: Any, room: int) -> Any:
        """Returns a sample that is at most as long as it should be, cut if need be.

        Args:
            sample: An encoded sample.
            room: The length that it may have.

        Raises:
            DatasetError: It is longer.
        """
        if self.real_length is None:
            return sample
        length = self.real_length(sample)
        if length <= room:
            return sample
        rule = self.plan.rule
        if self.cut is None:
            raise DatasetError(
                f"This sample has {length} {rule.length}, and {room} were measured, on which its pack was planned. A "
                "hook that draws at random has to measure the most that it may draw: measure the dataset again, or "
                "override cut_sample."
            )
        sample = check_result("cut_sample", self.cut(sample, room))
        length = self.real_length(sample)
        if length > room:
            raise DatasetError(
                f"cut_sample(sample, {room}) returned a sample with {length} {rule.length}. Return at most {room}."
            )
        return sample


class _PlannedPackIterator(GroupingIterator):
    def __init__(self, dataset: PlannedPackDataset, context: StreamContext) -> None:
        super().__init__(dataset, "pack_selected_samples", context)
        self._dataset = dataset
        self._plan = dataset.plan
        self._stream = context.stream
        self._policy = FailurePolicy("pack_selected_samples", dataset.failure_tolerance, context, dataset.worker_config)
        self._epoch = 0
        self._number = -1
        """The micro-batch of which samples were taken last."""
        self._bounds: list[int] = []
        """Where the packs of that begin, as places of its samples."""
        self._rooms: list[int] = []
        """The lengths that its samples may have."""
        self._waiting: tuple[Any, Key] | None = None
        """A sample of a later pack, which was taken to see that this one is complete."""
        self._place = 0
        """Place in its micro-batch of the pack that was collected last."""
        self._has_ended = False
        """Whether the samples of the epoch have ended."""
        self._key: Key = ()

    def _next_sample(self) -> tuple[Any, Key]:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            sample = next(self._inner)
            waiting = sample, self._inner.last_key(sample)
        return waiting

    def _collect(self) -> tuple[list[Any], list[Key]]:
        try:
            if self._has_ended:
                raise StopIteration
            sample, key = self._next_sample()
        except StopIteration:
            self._epoch, self._number, self._has_ended = self._epoch + 1, -1, False
            raise
        _, number, place = _place_of(key)
        if number != self._number:
            self._begin(number)
        pack = bisect_right(self._bounds, place) - 1
        stop = self._bounds[pack + 1]
        self._place = pack
        samples: list[Any] = []
        keys: list[Key] = []
        while True:
            try:
                samples.append(self._dataset.fitted(sample, self._rooms[place]))
                keys.append(key)
                self._policy.on_success()
            except ConfigError:
                raise
            except Exception as error:
                self._policy.on_failure(error, sample)
            if place + 1 == stop:  # without a look at the next one, which may have to wait
                break
            try:
                sample, key = self._next_sample()
            except StopIteration:
                self._has_ended = True
                break
            _, other, place = _place_of(key)
            if other != number or place >= stop:
                self._waiting = sample, key
                break
        return samples, keys

    def _begin(self, number: int) -> None:
        items = self._plan.micro_batch(self._stream, self._epoch, number).items
        assert items.bounds is not None
        assert items.lengths is not None
        self._number, self._bounds = number, items.bounds.tolist()
        self._rooms = np.minimum(items.lengths, self._plan.rule.longest).tolist()

    def __next__(self) -> Any:
        element = super().__next__()
        own = self._runner.key
        self._key = (UNIT_NAME, own[1], self._number, self._place, step_of_key(own), *own)
        return set_restore_key(element, self._key)

    def last_key(self, element: Any) -> Key:
        return self._key

    def state_dict(self) -> State:
        return {}  # the position is that of the whole job: GlobalBatchPlan.cursor

    def load_state_dict(self, state: State) -> None:
        """Does nothing: a job continues with a plan that starts there."""


def _place_of(key: Key) -> tuple[int, int, int]:
    """Returns (unit, micro-batch of the stream's epoch, place in it) of a sample."""
    at = key.index(UNIT_NAME)
    return key[at + 1], key[at + 2], key[at + 3]
