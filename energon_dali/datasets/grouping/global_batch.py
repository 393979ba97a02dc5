"""The micro-batches of a rank in global batches: each is made of fixed units, whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from energon_dali.datasets.base import SavableDataset, walk
from energon_dali.datasets.grouping.batch import BatchDataset, GroupingIterator
from energon_dali.datasets.grouping.planned_packs import PlannedPackDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy
from energon_dali.datasets.restore_key import UNIT_NAME
from energon_dali.datasets.source import SourceDataset, source_of
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.errors import ConfigError, FatalSampleError, SkipSample
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import SPARES, MicroBatch
from energon_dali.samples.base import Key

OnMissing = Literal["spare", "shrink"]
ON_MISSING = ("spare", "shrink")
_FILLERS = 64
"""Spares that are tried to fill a micro-batch of which nothing is left."""


class GlobalBatchDataset(BatchDataset):
    """Yields the micro-batches of the rank's streams: `batcher(list of samples or packs)` of fixed units.

    A unit, or a whole pack, that fails or is skipped moves no other unit. With on_missing="spare" another sample of the
    same source takes its place, which depends on the unit alone. If nothing is left of a micro-batch, a sample that is
    no unit of the step fills it, so that all ranks yield equally many; its `num_units` is 0.

    Args:
        dataset: Encoded samples of a `SourceDataset` whose plan is a GlobalBatchPlan.
        batcher: Makes a batch of a list.
        on_missing: What takes the place of a unit that fails: "spare", or nothing with "shrink".
        batcher_stateless: Whether its result depends on its argument (and its seeds) alone.
        batcher_config: Plain values that describe it, for `config()`.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.

    Raises:
        ConfigError: There are no global batches below, or on_missing is unknown.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        batcher: Callable[[list[Any]], Any],
        *,
        on_missing: OnMissing,
        batcher_stateless: bool = False,
        batcher_config: dict[str, Any] | None = None,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
    ) -> None:
        plan = dataset.global_batches
        if plan is None:
            raise ConfigError("GlobalBatchDataset was given a dataset without global batches below.")
        if on_missing not in ON_MISSING:
            raise ConfigError(f'on_missing={on_missing!r} is unknown: give "spare" or "shrink".')
        super().__init__(
            dataset,
            plan.micro_batch_size,
            batcher,
            batcher_stateless=batcher_stateless,
            batcher_config=batcher_config,
            drop_last=plan.drop_last,
            failure_tolerance=failure_tolerance,
        )
        self.on_missing = on_missing

    @property
    def plan(self) -> GlobalBatchPlan:
        """The plan of the steps."""
        plan = self.global_batches
        assert plan is not None, "the constructor checks it"
        return plan

    @property
    def source(self) -> SourceDataset:
        """The dataset that reads the units."""
        return source_of(self.dataset)

    @property
    def options(self) -> dict[str, Any]:
        return {"on_missing": self.on_missing, "batcher": self.batcher_config}

    def describe(self) -> str:
        return f"GlobalBatchDataset({str(self.plan).splitlines()[0]}, on_missing={self.on_missing!r})"

    def len_stream(self, stream: int) -> int:
        plan = self.plan
        if not plan.is_endless:
            return plan.micro_batches_of_stream(stream, 0)
        return plan.steps_per_pass() * plan.micro_batches_per_step // plan.workers

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _GlobalBatchIterator(self, context)


class _GlobalBatchIterator(GroupingIterator):
    def __init__(self, dataset: GlobalBatchDataset, context: StreamContext) -> None:
        super().__init__(dataset, "batch", context)
        self._dataset = dataset
        self._plan = dataset.plan
        self._source = dataset.source
        self._hooks = [one for one in walk(dataset) if isinstance(one, MapDataset)][::-1]
        """Those between the source and the batches, whose outputs have keys of their own."""
        self._packs = next((one for one in walk(dataset) if isinstance(one, PlannedPackDataset)), None)
        self._stream = context.stream
        self._metrics = context.metrics
        self._policy = FailurePolicy("spare", 0, context, dataset.worker_config)
        self._epoch = 0
        self._micro_batch = 0
        """Number of the next micro-batch in the epoch of the stream."""
        self._waiting: tuple[Any, Key] | None = None
        """An element of a later micro-batch, which was taken to see that one is missing."""
        self._has_ended = False
        """Whether the elements of the epoch have ended."""

    def _collect(self) -> tuple[list[Any], list[Key]]:
        number = self._micro_batch
        if number == self._plan.micro_batches_of_stream(self._stream, self._epoch):
            self._end_epoch()
            raise StopIteration
        size = self._plan.size_of(self._stream, self._epoch, number)
        found = self._take(number, size)
        self._micro_batch += 1
        if len(found) < size or not size:
            found = self._with_spares(self._plan.micro_batch(self._stream, self._epoch, number), number, found)
            found = dict(sorted(found.items()))
        samples, keys = zip(*found.values(), strict=True)
        return list(samples), list(keys)

    def _take(self, number: int, size: int) -> dict[int, tuple[Any, Key]]:
        """Returns the elements of a micro-batch that arrive, by their places."""
        found: dict[int, tuple[Any, Key]] = {}
        inner, place = self._inner, -1
        while place + 1 < size:
            waiting = self._waiting
            if waiting is None:
                if self._has_ended:
                    break
                try:
                    element = next(inner)
                except StopIteration:
                    self._has_ended = True
                    break
                waiting = self._waiting = element, inner.last_key(element)
            key = waiting[1]
            at = key.index(UNIT_NAME)
            if key[at + 2] != number:
                break
            place = key[at + 3]
            found[place], self._waiting = waiting, None
        return found

    def _end_epoch(self) -> None:
        if not self._has_ended:
            try:
                next(self._inner)
            except StopIteration:
                pass
            else:
                raise AssertionError("an epoch has more units than micro-batches")
        self._epoch, self._micro_batch, self._has_ended = self._epoch + 1, 0, False

    def _with_spares(
        self, planned: MicroBatch, number: int, found: dict[int, tuple[Any, Key]]
    ) -> dict[int, tuple[Any, Key]]:
        """Returns the elements of a micro-batch with spares for those that are missing; at least one."""
        firsts = planned.items.firsts
        units, sources = planned.units[firsts].tolist(), planned.rows.sources[firsts].tolist()
        for place, (unit, source) in enumerate(zip(units, sources, strict=True)):
            if place in found:
                continue
            self._metrics.count("units.missing")
            if self._dataset.on_missing == "spare":
                spare = self._spare(planned, unit, source, range(SPARES), number, place)
                if spare is not None:
                    self._metrics.count("units.spare")
                    found[place] = spare
        if found:
            return found
        # Nothing is left, or there were no units: all ranks yield equally many micro-batches all the same.
        if not units:
            first = planned.step.first_unit
            units, sources = [first], self._plan.resolved_units.rows(first, first + 1).sources.tolist()
        filler = self._spare(planned, units[0], sources[0], range(SPARES, _FILLERS), number, 0)
        if filler is None:
            raise FatalSampleError(
                f"Micro-batch {planned.number} of step {planned.step.number} has no sample: all of its units failed, "
                f"and so did {_FILLERS - SPARES} other samples of {self._source.sources[sources[0]].name}. Correct the "
                "hook or the data; the log shows the first traceback of each kind."
            )
        self._metrics.count("units.filler")
        return {0: filler}

    def _spare(
        self, planned: MicroBatch, unit: int, source: int, attempts: range, number: int, place: int
    ) -> tuple[Any, Key] | None:
        """Returns a sample that takes the place of a unit, with its key; None if all that are tried fail."""
        for attempt in attempts:
            key = self._source.spare_key(unit, source, attempt, number, place, planned.step.number)
            for stage in self._hooks:
                key = (type(stage).__name__, key[1], *key)
            if self._packs is not None:
                if not self._packs.is_planned(key):
                    continue
                key = self._packs.key_of(number, place, key)
            try:
                return self._dataset.dataset.restore_sample(key), key
            except SkipSample:
                continue
            except Exception as error:
                self._policy.on_failure(error, None)
        return None

    def state_dict(self) -> State:
        return {}  # the position is that of the whole job: GlobalBatchPlan.cursor

    def load_state_dict(self, state: State) -> None:
        """Does nothing: a job continues with a plan that starts there."""
