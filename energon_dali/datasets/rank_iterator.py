"""Iterates the streams of one rank, round robin, in the order of the job.

This is part of the datasets, since `iter(dataset)` runs it: a loader adds worker processes, prefetching and a cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from energon_dali.datasets.debug_log import DebugLog, keys_of, mode_of
from energon_dali.datasets.metrics import Metrics, describe_dropped
from energon_dali.datasets.step_entries import (
    DEVIATIONS,
    ENDS_EPOCH,
    LEFT_OUT,
    SKIPPED,
    Deviation,
    SkippedSteps,
    as_entry,
    cursor_entry,
    cursor_of,
    find_deviations,
    skipped_by_state,
)
from energon_dali.datasets.stream import BlockSource, State, StreamContext, StreamIterator, in_turn
from energon_dali.datasets.torch_workers import share_of
from energon_dali.errors import ConfigError, FatalSampleError, LayoutError, StateError
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor
from energon_dali.samples.base import Key
from energon_dali.shards.documents.state_entries import (
    check_plain,
    count_of,
    entry_of,
    flag_of,
    plain,
    restore_stream,
)
from energon_dali.shards.storage.store import ReadScope, forget_scope, read_scope
from energon_dali.task_encoder.context import context_depth, leave_contexts, running_stream

if TYPE_CHECKING:
    # For its type alone: a dataset iterates itself with a RankIterator.
    from energon_dali.datasets.base import SavableDataset

T = TypeVar("T")
logger = logging.getLogger("energon_dali.loader")


def refuse_stages(dataset: SavableDataset[Any]) -> None:
    """Refuses datasets around global batches that decide at run time which elements they yield.

    Args:
        dataset: The outermost dataset of a tree with global batches.

    Raises:
        ConfigError: There is one: ranks would deliver different numbers of micro-batches. Or what ends epochs is inside
            another dataset, where it would count the batches of streams, and states would not hold its position.
    """
    outermost = dataset
    while dataset.global_batches is not None and not dataset.counts_batches:
        limit = dataset.rank_limit
        if limit is not None and dataset is not outermost:
            kind = type(dataset).__name__
            raise ConfigError(
                f"{dataset.describe()} is inside {outermost.describe()}, and with global batches the outermost dataset "
                "has to end the epochs of a rank. Leave virtual_epoch_length or limit out below, and put "
                f"{kind}(dataset, {limit.length}) around all."
            )
        if not dataset.keeps_steps:
            raise ConfigError(
                f"{dataset.describe()} was put around a dataset with global batches, and may drop, repeat or group its "
                "batches, so that steps would no longer be fixed. Leave it out, or use a hook of the task encoder."
            )
        (dataset,) = dataset.children


@dataclass(frozen=True, slots=True)
class RankLimit:
    """After how many elements an epoch of a rank ends, and how the next begins."""

    length: int
    """Elements per epoch and rank."""
    restart: bool
    """True: the next epoch begins at the very beginning; False: it continues where this one ended."""


class RankIterator(Iterator[T], Generic[T]):
    """Iterates the streams of one rank, ordered by (index of the element in its stream, number of the stream).

    Streams that have ended are skipped. The order does not depend on which rank or worker runs a stream, so every
    layout yields the same global order.

    Args:
        dataset: The outermost dataset.
        blocks: Delivers blocks of worker processes; None runs everything in this process.
        metrics: Takes counts and times.
        retries: How reading in this process is retried after errors; None uses the default policy.
        worker: Iterates the streams of this worker alone; None takes all streams of the rank.
    """

    def __init__(
        self,
        dataset: SavableDataset[T],
        blocks: BlockSource | None = None,
        metrics: Metrics | None = None,
        retries: ReadScope | None = None,
        worker: int | None = None,
    ) -> None:
        config = dataset.worker_config
        self.worker = worker
        self._limit = dataset.rank_limit
        if self._limit is not None and worker is not None:
            self._limit = replace(self._limit, length=share_of(self._limit.length, worker, config))
        # The limit counts the elements of all streams together, so it is applied here.
        self._dataset: SavableDataset[T] = dataset if self._limit is None else dataset.children[0]
        self._batches = dataset.global_batches
        self._epoch = 0
        """Epochs of the data that have ended; counted with global batches."""
        self._deviations: tuple[Deviation, ...] = ()
        """Where the last micro-batch of global batches differs from its units."""
        self._reached = 0 if self._batches is None else self._batches.start.unit
        """The unit after the last step of which a micro-batch was taken."""
        self._ends_epoch = False
        """Whether a state was restored after the last micro-batch of a pass over the data: the epoch ends at once."""
        if self._batches is not None:
            refuse_stages(dataset)
        if self._batches is not None and worker is not None:
            raise ConfigError(
                "Global batches run in get_savable_loader(dataset), and a torch DataLoader was given the dataset. Use "
                "that loader, or leave global_batch_size out."
            )
        self._blocks = blocks
        self.metrics = metrics or Metrics()
        self._clock = self.metrics.clock("rank")
        self._retries = retries or ReadScope(count=self.metrics.count)
        self._streams = config.streams if worker is None else config.layout.worker_streams(config.rank, worker)
        self._log = DebugLog(config) if config.should_log(1) else None
        self._mode = mode_of(dataset.config()) if self._log is not None else None
        self._iterators: dict[int, StreamIterator[T]] = {}
        self._counts = dict.fromkeys(self._streams, 0)
        self._ended: set[int] = set()
        self._given = 0
        self._skipped: list[SkippedSteps] = []
        """Ranges of steps to leave out that are not over yet, in order."""
        self._begun = False
        self._warm = False
        self._restored: set[int] = set()
        self._dropped_before = self.metrics.dropped()

    def _iterator(self, stream: int) -> StreamIterator[T]:
        iterator = self._iterators.get(stream)
        if iterator is None:
            iterator = self._dataset.open(StreamContext(stream, self.metrics, self._blocks))
            self._iterators[stream] = iterator
        return iterator

    def __iter__(self) -> RankIterator[T]:
        return self

    def __next__(self) -> T:
        self._begun = True
        while True:
            if self._skipped:
                self._skip()
            stream, element = self._take()
            if not self._skipped or not self._is_skipped(self._step - 1):
                break
        if self._log is not None:
            self._log.element(stream, self._counts[stream] - 1, keys_of(element), mode=self._mode)
        return element

    @property
    def _step(self) -> int:
        """Number of the next step: how many elements the rank has passed since the data began."""
        return sum(self._counts.values())

    def _is_skipped(self, step: int) -> bool:
        found = any(step in one.steps(self._dataset.worker_config) for one in self._skipped)
        if found:
            self.metrics.count("steps.skipped")
        return found

    def _skip(self) -> None:
        """Moves past the steps that are to be left out where integers tell how; forgets ranges that are over."""
        config = self._dataset.worker_config
        while True:
            step = self._step
            self._skipped = [one for one in self._skipped if one.steps(config).stop > step]
            now = next((one for one in self._skipped if one.by == "plan" and step in one.steps(config)), None)
            if now is None:
                return
            count = now.steps(config).stop - step
            if self._limit is not None:
                count = min(count, self._limit.length - self._given)
            with read_scope(self._retries):
                moved = in_turn(self._streams, self._counts, self._ended, count, self._skip_of_stream)
            if not moved:
                return  # the epoch is over
            self._given += moved
            self.metrics.count("steps.skipped", moved)
            logger.info("Steps %d to %d are left out, as skip_steps asked.", step, step + moved - 1)

    def _skip_of_stream(self, stream: int, count: int) -> int:
        self._restored.add(stream)  # it is not started at its beginning
        with running_stream(self._dataset.worker_config, stream):
            return self._iterator(stream).skip(count)

    def _take(self) -> tuple[int, T]:
        """Returns (stream, element) of the next step; StopIteration if the epoch is over."""
        if not self._warm:
            self._start_streams()
        if self._ends_epoch:
            self._ends_epoch = False
            self._end_epoch()
        if self._limit is not None and self._given >= self._limit.length:
            self._end_epoch()
        while True:
            running = [stream for stream in self._streams if stream not in self._ended]
            if not running:
                if not any(self._counts.values()):
                    self._check_empty_epoch()
                if self._limit is None or self._given or not any(self._counts.values()):
                    self._end_epoch()
                # The data ended exactly with the last virtual epoch. It starts again, so that no epoch is empty.
                self._rewind()
                continue
            stream = min(running, key=lambda s: (self._counts[s], s))
            outer = self._clock.begin()
            depth = context_depth()
            try:
                config = self._dataset.worker_config
                with read_scope(self._retries), running_stream(config, stream):
                    element = next(self._iterator(stream))
            except StopIteration:
                self._ended.add(stream)
                continue
            except BaseException:
                leave_contexts(depth)
                raise
            finally:
                self._clock.end(outer)
            self._counts[stream] += 1
            self._given += 1
            if self._batches is not None:
                self._note_units(self._batches, stream, self._iterator(stream).last_key(element))
            return stream, element

    def _note_units(self, batches: GlobalBatchPlan, stream: int, key: Key) -> None:
        """Notes which units a micro-batch should hold and does not."""
        number = self._counts[stream] - 1
        step, _ = batches.place_of(stream, self._epoch, number)
        self._reached = step.first_unit + step.size
        self._pass_left_out(batches)
        self._deviations = find_deviations(batches, stream, self._epoch, number, key)

    def _pass_left_out(self, batches: GlobalBatchPlan) -> None:
        """Counts steps that are left out as taken, so that epochs end where they would have ended."""
        steps = batches.left_out_after(self._epoch, sum(self._counts.values()))
        self._given += steps * batches.micro_batches_per_step

    def _start_streams(self) -> None:
        """Starts all workers at once, instead of each when the first element of its stream is wanted."""
        self._warm = True
        if self._blocks is not None:
            cursor = None if self._batches is None else {"cursor": cursor_entry(self._batches.start)}
            self._blocks.start_all((stream for stream in self._streams if stream not in self._restored), cursor)

    def _check_empty_epoch(self) -> None:
        """Ends the run after an epoch without elements if a sample failed.

        Raises:
            FatalSampleError: Samples were dropped, and at least one of them failed.
        """
        dropped = self.metrics.dropped() - self._dropped_before
        if not dropped:
            return
        rank = self._dataset.worker_config.rank
        what = f"No sample of this epoch arrived on rank {rank}: {describe_dropped(dropped)}."
        if not any(name.startswith("failed.") for name in dropped):
            logger.warning("%s Check the condition on which they are skipped.", what)
            return
        last = self.metrics.last_failure()
        example = f" The last was {last.shard}/{last.key}: {last.reason}." if last else ""
        raise FatalSampleError(
            f"{what}{example} An empty epoch would look like a finished one, so the run ends here: correct the hook or "
            "the data. The log shows the first traceback of each kind."
        )

    def _end_epoch(self) -> None:
        is_limited = self._batches is not None and self._limit is not None and not self._limit.restart
        # Steps that are left out may belong to later epochs as well.
        self._given = max(0, self._given - self._limit.length) if is_limited and self._limit is not None else 0
        self._dropped_before = self.metrics.dropped()
        if len(self._ended) == len(self._streams):
            self._rewind()
        if self._limit is not None and self._limit.restart:
            self.close()
            self._rewind()
            self._epoch = 0
            self._warm = False
            self._restored.clear()
            if self._batches is not None:  # the tree begins where a state was restored
                start = self._batches.start
                self._continue_from(Cursor(weights=start.weights, weights_over=start.weights_over))
        raise StopIteration

    def _rewind(self) -> None:
        """Notes that all streams begin another pass over the data."""
        self._ended.clear()
        self._counts = dict.fromkeys(self._streams, 0)
        self._epoch += 1
        self._skipped = []  # the steps of the next pass over the data have the same numbers

    def state_dict(self) -> State:
        """Returns the position after the last element, as plain values that survive JSON."""
        state: State = plain(self.snapshot())
        return state

    def snapshot(self) -> State:
        """Returns the same at low cost; `stream.plain` turns it into plain values."""
        if self._batches is not None:
            cursor = self._batches.cursor(self._epoch, sum(self._counts.values()))
            found = self._deviations
            if not cursor.micro_batch and cursor.unit > self._reached:
                found = (*found, Deviation(self._reached, LEFT_OUT, cursor.unit - self._reached))
            deviations = {DEVIATIONS: [list(one) for one in found]} if found else {}
            ends = {ENDS_EPOCH: True} if self._ends_epoch or self._has_ended(self._batches) else {}
            return {"given": self._given, "cursor": cursor_entry(cursor), "streams": {}, **deviations, **ends}
        return {
            "given": self._given,
            **(as_entry(self._skipped) if self._skipped else {}),
            "streams": {
                str(stream): {
                    "count": self._counts[stream],
                    "ended": stream in self._ended,
                    "state": self._iterator(stream).state_dict(),
                }
                for stream in self._streams
            },
        }

    def _has_ended(self, batches: GlobalBatchPlan) -> bool:
        """Returns whether the last element was that of a pass over the data, and the epoch still has to end there."""
        taken = sum(self._counts.values())
        if batches.is_endless or not taken or (self._limit is not None and not 0 < self._given < self._limit.length):
            return False
        return taken == batches.micro_batches_of_epoch(self._epoch)

    def load_state_dict(self, state: State) -> None:
        """Continues at a state that holds (at least) the streams of this rank.

        Raises:
            StateError: The state is not one of ours, or iteration has begun.
            LayoutError: The state lacks a stream of this rank.
        """
        if self._begun:
            raise StateError(
                "A state can only be restored before the first element is taken, and this iteration has begun. Make a "
                "new loader (or dataset) and restore into that."
            )
        if self._batches is not None:
            self._continue_at(state)
            return
        streams = state.get("streams")
        if not isinstance(streams, dict):
            raise StateError(
                f"This is not a state of a dataset iteration: it has the keys {sorted(state)}, not 'streams'. Give "
                "what state_dict() returned."
            )
        missing = [stream for stream in self._streams if str(stream) not in streams]
        if missing:
            raise LayoutError(
                f"The state holds the streams {sorted(map(int, streams))}, but this rank runs {self._streams}; "
                f"{missing} are missing. Restore a per-rank state into the same layout, or save a global state, which "
                "fits every layout."
            )
        check_plain(state)
        self._skipped = skipped_by_state(state) if SKIPPED in state else []
        self._given = count_of(state, "given") if "given" in state else 0
        if self._limit is not None and self._given > self._limit.length:
            # The epochs became shorter, or there are fewer ranks: the remainder is the position in the current epoch.
            self._given %= max(1, self._limit.length)
        for stream in self._streams:
            saved = streams[str(stream)]
            self._counts[stream] = count_of(saved, "count")
            if flag_of(saved, "ended"):
                self._ended.add(stream)
            if entry_of(saved, "state") is not None:
                iterator = self._iterator(stream)
                with read_scope(self._retries):
                    restore_stream(iterator, saved["state"], stream)
                self._restored.add(stream)

    def _continue_at(self, state: State) -> None:
        """Continues global batches at a state.

        Raises:
            StateError: The state has no cursor, or streams have begun elsewhere.
        """
        self._given = count_of(state, "given") if "given" in state else 0
        self._ends_epoch = ENDS_EPOCH in state
        self._continue_from(cursor_of(state))
        assert self._batches is not None
        self._pass_left_out(self._batches)

    def _continue_from(self, start: Cursor) -> None:
        """Lets the tree of global batches begin at a cursor; no stream may have begun."""
        assert self._batches is not None
        if start != self._batches.start:
            self._dataset = self._dataset.continued(start, self._dataset.worker_config)
            self._batches = self._dataset.global_batches
        self._deviations, self._reached = (), start.unit

    def interrupt(self) -> None:
        """Makes a thread that waits to retry a read give up with a StorageError."""
        self._retries.cancel()

    def close(self) -> None:
        """Closes the iterators of all streams."""
        for iterator in self._iterators.values():
            iterator.close()
        self._iterators.clear()
        forget_scope(self._retries)
