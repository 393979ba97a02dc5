"""Reads the samples that a plan names, of one dataset or a mixture of several, and makes Sample objects of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.fetch import Fetch
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.mixing.share_feedback import FEEDBACK_DRAWS, ShareFeedback
from energon_dali.datasets.restore_key import UNIT_NAME, UNIT_NUMBERS, expect_name
from energon_dali.datasets.row_sources import RawReader, Source, short_names
from energon_dali.datasets.stream import (
    MOST_PLANNED_SAMPLES,
    Planned,
    State,
    StreamContext,
    StreamIterator,
    too_many_samples,
)
from energon_dali.errors import ConfigError, DatasetError, DatasetFormatError, StateError
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor, spare_number, spare_pass, spare_unit
from energon_dali.plan.mixtures import BlendPlan, EpochizedBlendPlan, weighted_draws
from energon_dali.plan.plan import MOST_ROWS, Plan, Rows
from energon_dali.plan.source import SourcePlan
from energon_dali.samples.base import Key, get_restore_key, set_restore_key
from energon_dali.shards import RawSample
from energon_dali.shards.documents.state_entries import count_of
from energon_dali.worker_config import WorkerConfig

NAME = "Webdataset"
MIXTURE_NAME = "BlendDataset"  # Energon's name
_PLACES_PLANNED = 1024
READ_SIZE = 32
"""Samples that are read together from a disk."""


def source_number(sample: Any) -> int:
    """Returns the number of the source that a sample, as it was loaded, comes from.

    Args:
        sample: From a `SourceDataset`; its restore key says it.
    """
    key = _without_unit(get_restore_key(sample))
    return key[1] if key and key[0] == MIXTURE_NAME else 0


def source_of(dataset: SavableDataset[Any]) -> SourceDataset:
    """Returns the dataset that reads the units of global batches, below all wrappers."""
    while not isinstance(dataset, SourceDataset):
        (dataset,) = dataset.children
    return dataset


def _without_unit(key: Key) -> Key:
    """Returns the key of a sample without its place in a global batch."""
    return key[1 + UNIT_NUMBERS :] if key and key[0] == UNIT_NAME else key


class SourceDataset(SavableDataset[Any]):
    """Reads the rows of a plan. A sample that cannot be read or loaded is counted, and the next row follows.

    The statistics of a mixture count its samples by source: `blend.samples.NAME`.

    Args:
        plan: Which row comes when.
        sources: What its rows name.
        names: Of the sources, for statistics and messages. Default: the last parts of their paths, as many as tell
            them apart.
        worker_config: The job.
        read_size: Samples that are read together from a disk.
        failure_tolerance: Consecutive samples of a source that cannot be read or loaded after which the run ends.

    Raises:
        ConfigError: The sources are not as many as the plan names, or the names are not all different.
    """

    plan_obstacle = None

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[Source],
        *,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig,
        read_size: int = READ_SIZE,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
    ) -> None:
        super().__init__(worker_config=worker_config)
        self.plan = plan
        self.sources = tuple(sources)
        self.read_size = read_size
        self.failure_tolerance = failure_tolerance
        self.names = tuple(short_names([source.name for source in sources]) if names is None else names)
        if len(self.sources) != plan.num_sources:
            raise ConfigError(f"The plan names {plan.num_sources} sources, and {len(self.sources)} were given.")
        if len(self.names) != len(self.sources) or len(set(self.names)) != len(self.names):
            raise ConfigError(f"Give one name per source, all different; names={list(self.names)}.")

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return ()

    @property
    def name(self) -> str:
        """The paths of its sources."""
        return ", ".join(source.name for source in self.sources)

    def describe(self) -> str:
        if len(self.sources) == 1:
            return f"SourceDataset({self.name}, repeat={self.plan.is_endless})"
        return f"SourceDataset({type(self.plan).__name__} of {len(self.sources)} datasets)"

    def __str__(self) -> str:
        if len(self.sources) == 1:
            return self.describe()
        return "\n".join([self.describe(), *(f"  {source.name}" for source in self.sources)])

    @property
    def global_batches(self) -> GlobalBatchPlan | None:
        return self.plan if isinstance(self.plan, GlobalBatchPlan) else None

    def continued(self, start: Cursor, config: WorkerConfig) -> SourceDataset:
        twin = copy.copy(self)
        twin.worker_config = config
        if isinstance(self.plan, GlobalBatchPlan):
            twin.plan = self.plan.continued(start, config.world_size, max(1, config.num_workers))
        return twin

    def config(self) -> dict[str, Any]:
        plan, repeat = self.plan, self.plan.is_endless
        of_job: dict[str, Any] = {}
        if isinstance(plan, GlobalBatchPlan):  # who computes a step, and how many units it has, may change
            of_job = {"global_batches": True, "drop_last": plan.drop_last, **plan.options}
            plan = plan.units
        if isinstance(plan, SourcePlan):
            return {**super().config(), "repeat": repeat, **self.sources[0].config, **of_job}
        inner = [{"type": "SourceDataset", **source.config} for source in self.sources]
        return {"type": type(plan).__name__, "repeat": repeat, "inner": inner, **of_job, **plan.options}

    def at_position(self, number: int) -> SourceDataset:
        twin = copy.copy(self)
        twin.plan = self.plan.at_position(number)
        twin.sources = tuple(source.at_position(number) for source in self.sources)
        return twin

    def len_stream(self, stream: int) -> int:
        """Returns the number of samples of a stream in an epoch.

        If the data repeats, it is that of one pass over the data, and at least 1 if there is any data: a stream without
        samples in the first epoch has some in a later one.
        """
        if not self.plan.is_endless:
            return self.plan.epoch_length(0, stream)
        if isinstance(self.plan, GlobalBatchPlan):
            length = self.plan.num_samples // self.plan.num_streams
        elif isinstance(self.plan, EpochizedBlendPlan):
            length = sum(self.plan.lengths(0, stream))
        else:
            length = sum(source.plan.samples_per_pass(stream) for source in self.sources)
        return max(length, min(1, self.plan.num_samples))

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _SourceIterator(self, context)

    def key_of(self, source: int, index: int, number: int) -> Key:
        """Returns the restore key of a sample.

        Args:
            source: Number of its source.
            index: Its number in the source.
            number: Of the pass over the data.
        """
        key = (NAME, index, number)
        return key if len(self.sources) == 1 else (MIXTURE_NAME, source, *key)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the sample of a key, read again.

        Raises:
            StateError: The key is not of this dataset.
            DatasetError: The sample cannot be read.
        """
        (made,) = self.restore_samples([restore_key])
        if isinstance(made, Exception):
            raise made
        return made

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        by_source: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            by_source.setdefault(self._source_of(key), []).append(place)
        made: list[Any] = [None] * len(keys)
        for number, places in by_source.items():
            own = [expect_name(tuple(keys[place])[-3:], NAME, 2) for place in places]
            for place, key, sample in zip(places, own, self.sources[number].restore(own), strict=True):
                made[place] = sample
                if not isinstance(sample, Exception):
                    unit = self._unit_of(keys[place])
                    set_restore_key(sample, (*unit, *self.key_of(number, *key[1:])))
        return made

    def spare_key(self, unit: int, source: int, attempt: int, number: int, place: int, step: int) -> Key:
        """Returns the restore key of the sample that takes the place of one that failed, in a global batch.

        Args:
            unit: The unit that failed.
            source: Number of its source, of which the spare is too.
            attempt: How many spares of it failed before.
            number: Number of its micro-batch in the epoch of its stream.
            place: Its place in that.
            step: Its step.
        """
        seed = self.worker_config.seed_offset
        index = spare_number(seed, unit, attempt, self.sources[source].num_samples)
        own = self.key_of(source, self.sources[source].number_of(index), spare_pass(unit, attempt))
        return (UNIT_NAME, spare_unit(unit, attempt), number, place, step, *own)

    def place_of_key(self, key: Key) -> tuple[int, int]:
        """Returns (number of the source, number in it) of the sample of a key.

        Args:
            key: A key of this dataset.

        Raises:
            StateError: It is not.
        """
        return self._source_of(key), key[-2]

    def _unit_of(self, key: Key) -> Key:
        """Returns the first part of a key, which says the place of the sample in a global batch; () without them."""
        return expect_name(key, UNIT_NAME, UNIT_NUMBERS)[: 1 + UNIT_NUMBERS] if self.global_batches else ()

    def _source_of(self, key: Key) -> int:
        key = key[len(self._unit_of(key)) :]
        if len(self.sources) == 1:
            expect_name(key, NAME, 2)
            return 0
        number: int = expect_name(key, MIXTURE_NAME)[1]
        if number >= len(self.sources):
            raise StateError(
                f"The restore key {key!r} names dataset {number}, and {len(self.sources)} are mixed here. Build it as "
                "it was built when the key was made."
            )
        return number


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """What makes samples of a source in one stream, and what counts its failures."""

    load: SampleLoader
    read: FailurePolicy
    loading: FailurePolicy


class _SourceIterator(StreamIterator[Any]):
    """One stream. Its state is the next row of the plan."""

    def __init__(self, dataset: SourceDataset, context: StreamContext) -> None:
        self._dataset = dataset
        self._context = context
        self._plan = dataset.plan
        self._stream = context.stream
        self._metrics = metrics = context.metrics
        self._load_clock = metrics.clock("load")
        self._feedback = None if context.feedback is None else _FeedbackRows(dataset.plan, context)
        self._fetch = Fetch(dataset.sources, self._feedback or dataset.plan, context, dataset.read_size)
        self._stages: dict[int, _Stages] = {}
        self._is_only = len(dataset.sources) == 1
        batches = dataset.global_batches
        self._places = None if batches is None else _Places(batches, context.stream)
        self._counters = [f"blend.samples.{name}" for name in dataset.names] if len(dataset.names) > 1 else []
        self._go_to(0, 0)

    def _go_to(self, epoch: int, row: int) -> None:
        self._epoch = epoch
        self._row = row
        self._end = MOST_ROWS if self._plan.is_endless else self._plan.epoch_start(epoch + 1, self._stream)

    def __next__(self) -> Any:
        while True:
            if self._row >= self._end:
                self._go_to(self._epoch + 1, self._row)
                raise StopIteration
            stop = self._end if self._feedback is None else self._feedback.end_of_window(self._row)
            raw, (source, _, _, number, index, seed) = self._fetch.take(self._row, stop)
            self._row += 1
            if self._feedback is not None:
                self._feedback.drew(source)
            stages = self._stages.get(source) or self._stages_of(source)
            if isinstance(raw, DatasetError):
                if isinstance(raw, DatasetFormatError):
                    raise raw  # an invalid index: every sample of it would fail
                of = self._dataset.sources[source]
                failure = ReadFailure(of.reader, *of.reader.locate(index), of.name)
                stages.read.on_failure(raw, failure, epoch=number)
                continue
            if not stages.read.is_sound:
                stages.read.on_success()
            outer = self._load_clock.begin(raw)
            try:
                key = (NAME, raw.index, number) if self._is_only else self._dataset.key_of(source, raw.index, number)
                if self._places is not None:
                    key = self._places.at(self._row - 1, self._end) + key
                sample = stages.load(raw, seed, key)
            except Exception as error:
                name = self._dataset.sources[source].name
                stages.loading.on_failure(error, RawFailure(raw, name), epoch=number)
                continue
            finally:
                self._load_clock.end(outer)
            if not stages.loading.is_sound:
                stages.loading.on_success()
            if self._counters:
                self._metrics.count(self._counters[source])
            return sample

    def _stages_of(self, source: int) -> _Stages:
        load = self._dataset.sources[source].load.counting(self._metrics)
        tolerance, config = self._dataset.failure_tolerance, self._dataset.worker_config
        read, loading = (FailurePolicy(stage, tolerance, self._context, config) for stage in ("read", "load"))
        stages = self._stages[source] = _Stages(load, read, loading)
        return stages

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        if self._feedback is not None:  # the weights of a draw follow from what earlier samples measured
            return super().skip(count, planned)
        if planned is not None and self._plan.is_endless and count > MOST_PLANNED_SAMPLES:  # otherwise the epoch ends
            raise too_many_samples()
        start = self._row
        skipped = min(count, self._end - start)
        if skipped < count and self._plan.is_endless:
            raise StateError(f"Row {self._row + count} is too large: a stream has at most {MOST_ROWS} rows.")
        self._row += skipped
        if skipped < count:
            self._go_to(self._epoch + 1, self._row)
        if planned is not None:
            rows = self._plan.rows(start, start + skipped, self._stream)
            planned.append(Planned.of_rows(self._dataset.sources, rows))
        return skipped

    def state_dict(self) -> State:
        state = {"epoch": self._epoch, "row": self._row}
        return state if self._feedback is None else {**state, "drawn": self._feedback.drawn()}

    def load_state_dict(self, state: State) -> None:
        epoch, row = count_of(state, "epoch"), count_of(state, "row")
        if self._feedback is not None:
            self._feedback.load_drawn(state.get("drawn"))
        self._go_to(epoch, row)

    def close(self) -> None:
        self._fetch.close()


class _FeedbackRows:
    """Rows of a blend whose weights follow from what its samples measured, window by window.

    Args:
        plan: The blend.
        context: The stream, and what was measured in it.
    """

    def __init__(self, plan: Plan, context: StreamContext) -> None:
        assert isinstance(plan, BlendPlan), "MeasuredBlendDataset checks it"
        assert context.feedback is not None
        self._plan = plan
        self._stream = context.stream
        self._feedback: ShareFeedback = context.feedback
        self.num_streams = plan.num_streams
        self.num_samples = plan.num_samples
        self.order_window = plan.order_window
        self.drew: Callable[[int], None] = self._feedback.drew
        self.drawn = self._feedback.drawn
        self.load_drawn = self._feedback.load_drawn

    def end_of_window(self, row: int) -> int:
        """Returns the first row whose weights are not known yet when a row is taken."""
        return (row // FEEDBACK_DRAWS + 1) * FEEDBACK_DRAWS

    def rows(self, start: int, stop: int, stream: int) -> Rows:
        """Returns the rows from the next one on, which are in one window."""
        window = start // FEEDBACK_DRAWS
        weights = self._feedback.weights(window)
        draws = weighted_draws(weights, self._plan.seed, stream, start, stop - start)
        return self._plan.gather.rows(draws, self._feedback.drawn(), stream)


class _Places:
    """Which unit each row of a stream is, and its place in a micro-batch.

    Args:
        plan: The global batches.
        stream: The stream.
    """

    def __init__(self, plan: GlobalBatchPlan, stream: int) -> None:
        self._plan = plan
        self._stream = stream
        self._first, self._known = 0, list[Key]()

    def at(self, row: int, end: int) -> Key:
        """Returns (UNIT_NAME, unit, number of the micro-batch in the epoch of the stream, place in it, step).

        Args:
            row: Position in the stream.
            end: Where the epoch of the stream ends.
        """
        if not 0 <= row - self._first < len(self._known):
            self._first = row
            places = self._plan.places(row, min(end, row + _PLACES_PLANNED), self._stream)
            self._known = [(UNIT_NAME, *place) for place in places]
        return self._known[row - self._first]


class ReadFailure:
    """A sample that could not be read, in the form that error handlers expect.

    Args:
        reader: Returns the names.
        shard: Number of the shard.
        inside: Number of the sample in the shard.
        dataset_path: For `__sources__`.
    """

    def __init__(self, reader: RawReader, shard: int, inside: int, dataset_path: str) -> None:
        from energon_dali.samples.base import SourceInfo

        shard_name, self.__key__ = reader.name(shard, inside)
        index = reader.index_of(shard, inside)
        self.__sources__ = (SourceInfo(dataset_path=dataset_path, index=index, shard_name=shard_name, file_names=()),)

    def __repr__(self) -> str:
        source = self.__sources__[0]
        return f"sample {self.__key__!r}, number {source.index} of {source.dataset_path}, not read"


class RawFailure:
    """A raw sample that could not be loaded, in the form that error handlers expect."""

    def __init__(self, raw: RawSample, dataset_path: str) -> None:
        from energon_dali.samples.base import SourceInfo

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
