"""Reads the samples of one dataset in the planned order, and makes Sample objects of them."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.hooks import FailurePolicy
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.planned import MOST_PLANNED_SAMPLES, Planned, too_many_samples
from energon_dali.datasets.restore_key import Key, expect_name, try_restore
from energon_dali.datasets.row_plan import PlannedRows, Reader, RowPlan
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.datasets.trace import TracedMetrics
from energon_dali.errors import DatasetError, DatasetFormatError, EmptyDatasetError, StateError
from energon_dali.plan import OrderSpec, RepeatedOrder, mix
from energon_dali.shards import RawSample
from energon_dali.shards.documents.state_entries import count_of
from energon_dali.shards.reader import ShardReader
from energon_dali.shards.storage.store import StreamFollower, current_scope
from energon_dali.worker_config import WorkerConfig

if TYPE_CHECKING:
    from energon_dali.decode.interface import Placement

NAME = "Webdataset"


class SourceDataset(SavableDataset[Any]):
    """Reads the samples of one dataset in the order of a plan.

    Args:
        order: Which sample comes when.
        reader: Reads raw samples; picklable.
        load: Makes a sample of a raw sample.
        repeat: Continue with the next epoch indefinitely; False ends every epoch with StopIteration.
        read_size: Samples per request to the reader.
        failure_tolerance: Consecutive samples that cannot be read or loaded after which the run ends.
        name: Path of the dataset, for messages.
        worker_config: The job.
    """

    def __init__(
        self,
        order: OrderSpec | RepeatedOrder,
        reader: Reader,
        load: SampleLoader,
        *,
        repeat: bool,
        read_size: int,
        failure_tolerance: int,
        name: str,
        source_config: Mapping[str, Any],
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(worker_config=worker_config)
        self.order = order
        self.reader = reader
        self.load = load
        self.repeat = repeat
        self.read_size = read_size
        self.failure_tolerance = failure_tolerance
        self.name = name
        self.source_config = source_config

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return ()

    def import_libraries(self, placement: Placement) -> None:
        self.load.import_libraries(placement)

    def unknown_to_plan(self) -> None:
        """Returns None: the order is integers."""

    def describe(self) -> str:
        return f"SourceDataset({self.name}, repeat={self.repeat})"

    def config(self) -> dict[str, Any]:
        own = {**super().config(), "repeat": self.repeat, **self.source_config}
        return own if self.with_old_ranges() is self else {**own, "shares": "even"}

    def at_position(self, number: int) -> SourceDataset:
        twin = copy.copy(self)
        source_number = mix(self.order.source, number)
        twin.order = self.order.for_source(source_number)
        twin.load = copy.copy(self.load)
        twin.load.source_number = source_number
        return twin

    def len_stream(self, stream: int) -> int:
        """Returns the number of samples of a stream in an epoch.

        If the data repeats, it is that of one pass over the data, and at least 1 if there is any data: a stream without
        samples in the first epoch has some in a later one.
        """
        order = self.order.stream(stream)
        if not self.repeat:
            return order.num_samples(0)
        return max(order.samples_per_pass(), min(1, self.order.base.num_samples))

    def with_old_ranges(self) -> SourceDataset:
        order = self.order
        spec = order.spec if isinstance(order, RepeatedOrder) else order
        if not spec.even_ranges:
            return self
        spec = replace(spec, old_ranges=True)
        twin = copy.copy(self)
        twin.order = replace(order, spec=spec) if isinstance(order, RepeatedOrder) else spec
        return twin

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _SourceIterator(self, context)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the sample of the key ("Webdataset", number in the dataset, epoch), read again.

        Raises:
            StateError: The key is not of this dataset.
            DatasetError: The sample cannot be read.
        """
        restore_key = expect_name(restore_key, NAME, 2)
        index, epoch = restore_key[1:3]
        try:
            shard, inside = self.reader.locate(index)
        except DatasetError as error:
            raise StateError(str(error)) from error
        (raw,) = self.reader.read([shard], [inside])
        (seed,) = self.load.seeds(np.array([epoch]), np.array([index]))
        return self._load(raw, seed, restore_key)

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        try:
            locations = [self.reader.locate(expect_name(key, NAME, 2)[1]) for key in keys]
        except DatasetError:  # one of them is of other data
            return super().restore_samples(keys)
        raws = self.reader.read([shard for shard, _ in locations], [inside for _, inside in locations])
        seeds = self.load.seeds(np.array([key[2] for key in keys]), np.array([key[1] for key in keys]))
        return [
            try_restore(partial(self._load, raw, seed), key) for raw, seed, key in zip(raws, seeds, keys, strict=True)
        ]

    def _load(self, raw: RawSample | DatasetError, seed: int, key: Key) -> Any:
        if isinstance(raw, DatasetError):
            raise raw
        return self.load(raw, seed, key)


class _SourceIterator(StreamIterator[Any]):
    def __init__(self, dataset: SourceDataset, context: StreamContext) -> None:
        self._dataset = dataset
        self._order = dataset.order.stream(context.stream)
        self._reader = dataset.reader
        spec = dataset.order.spec if isinstance(dataset.order, RepeatedOrder) else dataset.order
        self._reader.expect_order(spec.window, spec.base.num_samples / max(1, len(spec.slices)))
        self._metrics = metrics = context.metrics
        self._load_clock, self._read_clock = metrics.clock("load"), metrics.clock("read")
        self._load = dataset.load.traced(metrics) if isinstance(metrics, TracedMetrics) else dataset.load
        self._read_policy = FailurePolicy("read", dataset.failure_tolerance, context, dataset.worker_config)
        self._load_policy = FailurePolicy("load", dataset.failure_tolerance, context, dataset.worker_config)
        self._epoch = 0
        self._position = 0
        self._read_size = dataset.read_size
        self._ahead: deque[tuple[RawSample | DatasetError, int, int, int]] = deque()
        """What was read: (sample or error, epoch, number in the dataset, seed)."""
        self._length_of = -1
        self._length = 0
        self._plan = RowPlan(self._order, dataset.reader, dataset.load, several_epochs=dataset.repeat)
        self._stream = context.stream
        self._follower: StreamFollower | None = None
        self._is_followed = False
        self._planned: PlannedRows | None = None
        self._is_told = False

    def __next__(self) -> Any:
        while True:
            if not self._ahead:
                self._read()
            raw, epoch, number, seed = self._ahead.popleft()
            self._position += 1
            if isinstance(raw, DatasetError):
                if isinstance(raw, DatasetFormatError):
                    raise raw  # an invalid index: every sample of it would fail
                failure = ReadFailure(self._reader, *self._reader.locate(number), self._dataset.name)
                self._read_policy.on_failure(raw, failure, epoch=epoch)
                continue
            self._read_policy.on_success()
            start = time.perf_counter()
            try:
                sample = self._load(raw, seed, (NAME, raw.index, epoch))
            except Exception as error:
                self._load_policy.on_failure(error, RawFailure(raw, self._dataset.name), epoch=epoch)
                continue
            finally:
                self._load_clock.add(time.perf_counter() - start)
            self._load_policy.on_success()
            if self._load.has_routes:
                for route, count in self._load.take_routes().items():
                    self._metrics.count(f"route.{route}", count)
            return sample

    def _read(self) -> None:
        """Reads the next samples; raises StopIteration at the end of an epoch that is not repeated."""
        self._enter_epoch()
        if self._reads_ahead():
            self._take()
        else:
            self._read_rows(self._position, self._read_size)

    def _enter_epoch(self) -> None:
        """Goes on to the next epoch that has samples where one is over; StopIteration if the data does not repeat."""
        empty_epochs = 0
        while self._position >= self._epoch_length():
            self._epoch += 1
            self._position = 0
            empty_epochs += 1
            if not self._dataset.repeat:
                raise StopIteration
            if empty_epochs > self._dataset.worker_config.layout.num_streams + 1:
                raise EmptyDatasetError(
                    f"{self._dataset.name} has no sample to repeat: its split is empty. Choose another split_part, or "
                    "look at split.yaml in its .nv-meta folder."
                )

    def skip(self, count: int) -> int:
        self._ahead.clear()
        whole, cycle = self._order.cycle() if self._dataset.repeat else (0, 0)
        rounds = max(0, count - 1) // whole if whole else 0  # a cycle has as many samples wherever it begins
        self._epoch += rounds * cycle
        return rounds * whole + sum(stop - start for _, start, stop in self._ranges(count - rounds * whole))

    def plan(self, count: int) -> Planned:
        self._ahead.clear()
        if self._dataset.repeat and count > MOST_PLANNED_SAMPLES:  # otherwise the epoch ends
            raise too_many_samples()
        pieces = [self._order.epoch(epoch).samples(start, stop) for epoch, start, stop in self._ranges(count)]
        return Planned.of_source(self._dataset, pieces)

    def _ranges(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Yields (epoch, start, stop) of the next `count` samples, and moves there; fewer if the epoch ends."""
        while count:
            try:
                self._enter_epoch()
            except StopIteration:
                return
            start = self._position
            self._position = min(self._epoch_length(), start + count)
            count -= self._position - start
            yield self._epoch, start, self._position

    def _epoch_length(self) -> int:
        """Returns the number of samples of the current epoch, without building the order of an empty one."""
        if self._length_of != self._epoch:
            self._length_of, self._length = self._epoch, self._order.num_samples(self._epoch)
        return self._length

    def read_ahead(self, count: int) -> None:
        self._read_size = 1  # the caller says how far to read: what follows is not wanted yet
        self._is_told = True
        missing = count - len(self._ahead)
        if missing <= 0:
            return
        position = self._position + len(self._ahead)
        if self._reads_ahead():
            assert self._planned is not None
            self._planned.read_ahead(self._epoch, position, missing)
        elif position < self._epoch_length():
            self._read_rows(position, missing)

    def _reads_ahead(self) -> bool:
        """Returns whether samples are requested before they are wanted; begins to where reading has become slow."""
        if self._planned is None:
            dataset = self._dataset
            spec = dataset.order.spec if isinstance(dataset.order, RepeatedOrder) else dataset.order
            reads = self._reader.planned_reads(spec.window, spec.lanes)
            if reads is None:
                return False
            num_streams = dataset.worker_config.layout.num_streams
            self._planned = PlannedRows(
                reads, self._plan, self._order, num_streams=num_streams, across_epochs=dataset.repeat
            )
        return True

    def _take(self) -> None:
        """Takes the next sample of those that were planned."""
        start = time.perf_counter()
        planned = self._planned
        assert planned is not None
        self._tell_shard_cache(min(self._position + planned.num_issued, self._epoch_length()))
        taken = planned.take(self._epoch, self._position, extend=not self._is_told)
        self._ahead.append(taken)
        self._note_read(start, [taken[0]])

    def _read_rows(self, position: int, count: int) -> None:
        """Reads at least one and at most `count` samples of the current epoch from `position` on."""
        start = time.perf_counter()
        shards, indices, epochs, numbers, seeds = self._plan.rows(self._epoch, position, count)
        self._tell_shard_cache(position + len(shards))
        raws = self._reader.read(shards, indices)
        self._ahead.extend(zip(raws, epochs, numbers, seeds, strict=True))
        size = self._note_read(start, raws)
        self._reader.note_speed(time.perf_counter() - start, len(raws), size)

    def _note_read(self, start: float, raws: Sequence[RawSample | DatasetError]) -> int:
        """Counts samples that were read, and returns their size in bytes."""
        size = 0
        for raw in raws:
            if not isinstance(raw, DatasetError):
                for content in raw.parts.values():
                    size += len(content)
        self._read_clock.add(time.perf_counter() - start)
        self._metrics.count_read(len(raws), size)
        return size

    def _tell_shard_cache(self, position: int) -> None:
        """Tells the cache of shards, if the loader has one, where the plan is that it may know.

        Args:
            position: In this epoch, of the first sample that has not been asked for.
        """
        if not self._is_followed:
            self._is_followed = True
            cache = current_scope().shard_cache
            if cache is not None and isinstance(self._reader, ShardReader):
                order = self._dataset.order
                self._follower = cache.follow(order, self._stream, self._reader, self._epoch, self._position)
        if self._follower is not None:
            self._follower.advance(self._epoch, position)

    def state_dict(self) -> State:
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: State) -> None:
        self._epoch, self._position = count_of(state, "epoch"), count_of(state, "position")

    def close(self) -> None:
        self._ahead.clear()
        if self._follower is not None:
            self._follower.close()
        self._follower, self._is_followed = None, False
        if self._planned is not None:
            self._planned.close()
            self._planned = None
        self._reader.close()


class ReadFailure:
    """A sample that could not be read, in the form that error handlers expect.

    Args:
        reader: Returns the names.
        shard: Number of the shard.
        inside: Number of the sample in the shard.
        dataset_path: For `__sources__`.
    """

    def __init__(self, reader: Reader, shard: int, inside: int, dataset_path: str) -> None:
        from energon_dali.samples import SourceInfo

        shard_name, self.__key__ = reader.name(shard, inside)
        index = reader.index_of(shard, inside)
        self.__sources__ = (SourceInfo(dataset_path=dataset_path, index=index, shard_name=shard_name, file_names=()),)

    def __repr__(self) -> str:
        source = self.__sources__[0]
        return f"sample {self.__key__!r}, number {source.index} of {source.dataset_path}, not read"


class RawFailure:
    """A raw sample that could not be loaded, in the form that error handlers expect."""

    def __init__(self, raw: RawSample, dataset_path: str) -> None:
        from energon_dali.samples import SourceInfo

        self.__key__ = raw.key
        self.__sources__ = (
            SourceInfo(
                dataset_path=dataset_path,
                index=raw.index,
                shard_name=raw.shard,
                file_names=tuple(f"{raw.key}.{part}" for part in raw.parts),
            ),
        )
        self.parts = {name: len(content) for name, content in raw.parts.items()}

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} ({size} bytes)" for name, size in self.parts.items())
        return f"raw sample {self.__key__!r}: {parts}"
