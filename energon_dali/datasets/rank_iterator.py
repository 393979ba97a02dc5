"""The elements of one rank in the order of the job: its streams, round robin."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from energon_dali.cache import pool_context
from energon_dali.datasets.debug_log import DebugLog, keys_of
from energon_dali.datasets.metrics import Metrics, describe_dropped
from energon_dali.datasets.stream import BlockSource, State, StreamContext, StreamIterator, plain, restore_stream
from energon_dali.errors import FatalSampleError, LayoutError, StateError
from energon_dali.shards.documents.state_entries import check_plain, count_of, entry_of, flag_of
from energon_dali.shards.storage.retry import RetryScope, forget_scope, retry_scope

if TYPE_CHECKING:
    from energon_dali.cache import CachePool

    # For its type alone: a dataset iterates itself with a RankIterator.
    from energon_dali.datasets.base import SavableDataset

T = TypeVar("T")
logger = logging.getLogger("energon_dali.loader")


@dataclass(frozen=True, slots=True)
class RankLimit:
    """After how many elements an epoch of a rank ends, and how the next begins."""

    length: int
    """Elements per epoch and rank."""
    restart: bool
    """True: the next epoch begins at the very beginning; False: it continues where this one ended."""


class RankIterator(Iterator[T], Generic[T]):
    """Iterates the streams of one rank: the k-th element of stream s comes at place (k, s); streams at their end are
    left out.

    Since the place of an element does not depend on which rank or worker runs its stream, every layout gives the same
    global order.

    Args:
        dataset: The outermost dataset.
        blocks: Delivers blocks of worker processes; None runs everything in this process.
        metrics: Takes counts and times.
        cache_pool: What hooks in this process see as `TaskEncoder.cache`; None fetches nothing ahead.
        retries: How reading in this process is repeated after errors; None follows the default policy.
    """

    def __init__(
        self,
        dataset: SavableDataset[T],
        blocks: BlockSource | None = None,
        metrics: Metrics | None = None,
        cache_pool: CachePool | None = None,
        retries: RetryScope | None = None,
    ) -> None:
        self._limit = dataset.rank_limit()
        # A limit of the rank is counted here, over all streams together.
        self._dataset: SavableDataset[T] = dataset if self._limit is None else dataset.children[0]
        self._even_shares = self._dataset.with_old_shares() is not self._dataset
        self._blocks = blocks
        self._cache_pool = cache_pool
        self.metrics = metrics or Metrics()
        self._retries = retries or RetryScope(count=self.metrics.count)
        self._streams = dataset.worker_config.streams
        self._log = DebugLog(dataset.worker_config) if dataset.worker_config.should_log(1) else None
        self._iterators: dict[int, StreamIterator[T]] = {}
        self._counts = dict.fromkeys(self._streams, 0)
        self._ended: set[int] = set()
        self._given = 0
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
        if not self._warm:
            self._start_streams()
        if self._limit is not None and self._given >= self._limit.length:
            self._end_epoch()
        while True:
            running = [stream for stream in self._streams if stream not in self._ended]
            if not running:
                if not any(self._counts.values()):
                    self._check_empty_epoch()
                if self._limit is None or self._given or not any(self._counts.values()):
                    self._end_epoch()
                # The data ended just where the last virtual epoch did: it begins again, and no epoch is empty.
                self._ended.clear()
                self._counts = dict.fromkeys(self._streams, 0)
                continue
            stream = min(running, key=lambda s: (self._counts[s], s))
            start = time.perf_counter()
            try:
                with pool_context(self._cache_pool), retry_scope(self._retries):
                    element = next(self._iterator(stream))
            except StopIteration:
                self._ended.add(stream)
                continue
            finally:
                self.metrics.add_time("rank", time.perf_counter() - start)
            self._counts[stream] += 1
            self._given += 1
            if self._log is not None:
                self._log.element(stream, self._counts[stream] - 1, keys_of(element))
            return element

    def _start_streams(self) -> None:
        """Lets all workers begin at once, and not each when its stream's turn comes for the first time."""
        self._warm = True
        if self._blocks is not None:
            self._blocks.start_all(stream for stream in self._streams if stream not in self._restored)

    def _check_empty_epoch(self) -> None:
        """Judges an epoch that gave nothing.

        Raises:
            FatalSampleError: Samples were tried, and at least one failed.
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
        self._given = 0
        self._dropped_before = self.metrics.dropped()
        if len(self._ended) == len(self._streams):
            self._ended.clear()
            self._counts = dict.fromkeys(self._streams, 0)
        if self._limit is not None and self._limit.restart:
            self.close()
            self._ended.clear()
            self._counts = dict.fromkeys(self._streams, 0)
            self._warm = False
            self._restored.clear()
        raise StopIteration

    def state_dict(self) -> State:
        """Returns the position after the last returned element, as plain values that survive JSON."""
        state: State = plain(self.snapshot())
        return state

    def snapshot(self) -> State:
        """Returns the same, cheaply: `stream.plain` makes plain values of it when they are asked for."""
        return {
            "given": self._given,
            **({"shares": "even"} if self._even_shares else {}),
            "streams": {
                str(stream): {
                    "count": self._counts[stream],
                    "ended": stream in self._ended,
                    "state": self._iterator(stream).state_dict(),
                }
                for stream in self._streams
            },
        }

    def load_state_dict(self, state: State) -> None:
        """Continues at a state that holds (at least) the streams of this rank.

        Raises:
            StateError: The state is not one of ours, or iteration has begun.
            LayoutError: The state lacks a stream of this rank.
        """
        if self._begun:
            raise StateError(
                "A state can only be restored before the first element is taken, and this iteration has begun. Make a "
                "new loader "
                "(or dataset) and restore into that."
            )
        streams = state.get("streams")
        if not isinstance(streams, dict):
            raise StateError(
                f"This is no state of a dataset iteration: it has the keys {sorted(state)}, not 'streams'. Give what "
                f"state_dict() returned."
            )
        missing = [stream for stream in self._streams if str(stream) not in streams]
        if missing:
            raise LayoutError(
                f"The state holds the streams {sorted(map(int, streams))}, but this rank runs {self._streams}; "
                f"{missing} are missing. "
                "Restore a per-rank state into the same layout, or save a global state, which fits every layout."
            )
        check_plain(state)
        if self._even_shares and state.get("shares") != "even":  # of an earlier release
            self._dataset, self._even_shares = self._dataset.with_old_shares(), False
            self.close()

        self._given = count_of(state, "given") if "given" in state else 0
        if self._limit is not None and self._given > self._limit.length:
            # The epochs became shorter, or there are fewer ranks: the place in the running epoch is what is left.
            self._given %= self._limit.length
        for stream in self._streams:
            saved = streams[str(stream)]
            self._counts[stream] = count_of(saved, "count")
            if flag_of(saved, "ended"):
                self._ended.add(stream)
            if entry_of(saved, "state") is not None:
                iterator = self._iterator(stream)
                with retry_scope(self._retries):
                    restore_stream(iterator, in_todays_form(saved["state"], plain(iterator.state_dict())), stream)
                self._restored.add(stream)

    def interrupt(self) -> None:
        """Makes a thread that waits to read again, from a store that fails, give up with a StorageError."""
        self._retries.cancel()

    def close(self) -> None:
        """Closes the iterators of all streams."""
        for iterator in self._iterators.values():
            iterator.close()
        self._iterators.clear()
        forget_scope(self._retries)


def in_todays_form(state: Any, first: Any) -> Any:
    """Returns the state of an iterator in the form that it has today.

    Earlier releases wrote a level `{"inner": state}` for the stage where media are decoded, with None in it as long as
    nothing had come out. Where that level was depended on the decoder, so that a state fitted no other decoder. And
    they did not count what a pipeline gave.

    Args:
        state: What was saved, or a part of it; may be damaged.
        first: The state of the iterator before its first element, or the part of it at the same place: it shows which
            levels there are.
    """
    while (
        isinstance(state, dict)
        and state.keys() == {"inner"}
        and not (isinstance(first, dict) and first.keys() == {"inner"})
    ):
        state = state["inner"]
    if state is None:
        return first
    counts = isinstance(first, dict) and first.keys() == {"given", "inner"}
    if counts and isinstance(state, dict) and "given" not in state:
        state = {"given": state.get("index", 0), "inner": state}
    if isinstance(state, dict) and isinstance(first, dict):
        return {name: in_todays_form(value, first[name]) if name in first else value for name, value in state.items()}
    if isinstance(state, list) and isinstance(first, list) and len(state) == len(first):
        return [in_todays_form(part, of_first) for part, of_first in zip(state, first, strict=True)]
    return state
