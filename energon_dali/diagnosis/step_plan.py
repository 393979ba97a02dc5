"""Which samples the steps of a job hold, computed from the plan: no sample is read."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from energon_dali.cache.store_index import StoreIndex
from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset, plan_obstacles, walk
from energon_dali.datasets.grouping.batch import GroupingDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.source import source_of
from energon_dali.datasets.step_entries import cursor_of
from energon_dali.datasets.stream import (
    MOST_PLANNED_SAMPLES,
    Planned,
    State,
    StreamContext,
    StreamIterator,
    in_turn,
    joined,
    planned_steps,
    too_many_samples,
)
from energon_dali.decode import MediaHandle
from energon_dali.decode.audio_front_ends.audio_handle import AudioSpec
from energon_dali.decode.spec import ImageSpec
from energon_dali.errors import ConfigError, DecodeError, EnergonDaliError, StateError
from energon_dali.loader.loader_state import LoaderIdentity
from energon_dali.plan.packed_batches import PackedBatchPlan
from energon_dali.samples.media_metadata import AVMetadata, ImageMetadata, MediaMetadata
from energon_dali.shards import ShardReader
from energon_dali.shards.documents.state_entries import MAX_COUNT, restore_stream
from energon_dali.worker_config import WorkerConfig

Unit = Literal["batch", "sample"]
CountTokens = Callable[["PlannedSample"], int]

Progress = Callable[[int, int], object]

_MOST_BATCHES = 1_000_000
_MOST_STREAMS = 100_000
_SHOWN_BATCHES = 12
"""Batches that a card shows, and the samples of each."""
_PASSED_AT_ONCE = 1 << 24
"""Elements that a stream moves past before progress is reported: a blend draws for three seconds."""
_DETAILED_AT_ONCE = 65_536
"""Samples that are looked up in the index together, shard by shard."""


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """A sample that a step will hold, with what the index has on it."""

    dataset: str
    """Path of the dataset."""
    shard: str
    """Path of the shard within the dataset."""
    key: str
    """Its key; "" if only the shard holds it."""
    index: int
    """Its number in the dataset."""
    epoch: int
    """Number of the pass over the data."""
    part_bytes: dict[str, int]
    """Size of each part that is read, in bytes; empty if only the shard holds it."""
    media: dict[str, MediaMetadata]
    """Width, height, duration and the like by part, where `energon-dali prepare-media` stored them."""
    num_tokens: int | None = None
    """Its length in tokens: what `count_tokens` returned, or the vision tokens of its images if the decoder has a front
    end and their sizes were stored; None if neither."""

    @property
    def size_bytes(self) -> int:
        """Size of all parts that are read."""
        return sum(self.part_bytes.values())

    @property
    def identity(self) -> tuple[str, int]:
        """(dataset, number in it), which is different for every sample."""
        return self.dataset, self.index


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch of the plan; with unit="sample", a single sample."""

    step: int
    """Number of the step: how many batches the rank has before it, from 0."""
    rank: int
    """The rank that it is delivered to."""
    stream: int
    """The stream that it belongs to; with global batches, the rank."""
    samples: tuple[PlannedSample, ...]
    """Its samples, in order."""


@dataclass(eq=False)
class StepPlan:
    """The batches of a range of steps; iterate it to get them as PlannedBatch, ordered by step and rank.

    `plan_steps` makes it.
    """

    steps: range
    """The steps that exist: fewer than were asked for if the data ends before."""
    notes: list[str]
    """What the plan cannot predict, or had to do, in sentences."""
    _rows: list[tuple[int, int, int, int]] = field(repr=False)
    """Tuples (step, rank, stream, number of the element in the plan of that stream)."""
    _plans: dict[int, Planned] = field(repr=False)
    """The plans of the streams."""
    _count_tokens: CountTokens | None
    """Returns the number of tokens of a sample."""
    _media: dict[Source, StoreIndex | None] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self._rows)

    def _repr_html_(self) -> str:
        """The first batches, whose samples are looked up in the index; no shard is read."""
        from energon_dali.samples.cards import card

        rows = [("steps", f"{self.steps.start:,} to {self.steps.stop - 1:,}" if self.steps else "none")]
        for batch in self._detailed(self._rows[:_SHOWN_BATCHES]):
            names = ", ".join(sample.key or str(sample.index) for sample in batch.samples[:_SHOWN_BATCHES])
            rows.append((f"step {batch.step}, rank {batch.rank}", f"{len(batch.samples):,}: {names}"))
        note = f"{len(self):,} batches"
        return card(type(self).__name__, rows, note=note, text=("What the plan cannot know", "\n".join(self.notes)))

    def __iter__(self) -> Iterator[PlannedBatch]:
        rows: list[tuple[int, int, int, int]] = []
        size = 0
        for row in self._rows:
            rows.append(row)
            size += self._size(row)
            if size >= _DETAILED_AT_ONCE:
                yield from self._detailed(rows)
                rows, size = [], 0
        yield from self._detailed(rows)

    def _size(self, row: tuple[int, int, int, int]) -> int:
        starts = self._plans[row[2]].starts
        return int(starts[row[3] + 1] - starts[row[3]])

    def _detailed(self, rows: Sequence[tuple[int, int, int, int]]) -> Iterator[PlannedBatch]:
        """Yields batches, whose samples are looked up in the order of the shards."""
        wanted: dict[tuple[Source, int, int], list[tuple[int, int, int]]] = {}
        found: list[list[PlannedSample | None]] = []
        for number, (_, _, stream, element) in enumerate(rows):
            plan = self._plans[stream]
            start, stop = int(plan.starts[element]), int(plan.starts[element + 1])
            found.append([None] * (stop - start))
            for index, (own, shard, sample, epoch) in enumerate(plan.rows.take(slice(start, stop)).as_tuples()):
                wanted.setdefault((plan.sources[own], shard, sample), []).append((number, index, epoch))
        order = {source: number for number, source in enumerate(dict.fromkeys(place[0] for place in wanted))}
        for source, shard, sample in sorted(wanted, key=lambda place: (order[place[0]], *place[1:])):
            first = self._sample(source, shard, sample)
            for number, position, epoch in wanted[source, shard, sample]:
                found[number][position] = replace(first, epoch=epoch)
        for (step, rank, stream, _), samples in zip(rows, found, strict=True):
            yield PlannedBatch(step, rank, stream, tuple(sample for sample in samples if sample is not None))

    def _sample(self, source: Source, shard: int, sample: int) -> PlannedSample:
        known = source.reader.indexed(shard, sample)
        media = {}
        index = self._media_index(source)
        if index is not None and known.key:
            for part in known.part_bytes:
                try:
                    media[part] = index.media_metadata(f"{known.key}.{part}")
                except EnergonDaliError:  # nothing was stored of this part
                    continue
        number = source.reader.index_of(shard, sample)
        planned = PlannedSample(source.name, known.shard, known.key, number, 0, known.part_bytes, media)
        tokens = _vision_tokens(source, planned) if self._count_tokens is None else self._counted(planned)
        return replace(planned, num_tokens=tokens)

    def _counted(self, sample: PlannedSample) -> int:
        assert self._count_tokens is not None
        try:
            return operator.index(self._count_tokens(sample))
        except EnergonDaliError:
            raise
        except Exception as error:
            name = getattr(self._count_tokens, "__qualname__", None) or repr(self._count_tokens)
            raise ConfigError(
                f"Counting the tokens of sample {sample.key or sample.index} with {name} failed with "
                f"{type(error).__name__}: {error}. Give a function that takes a PlannedSample and returns an int."
            ) from error

    def _media_index(self, source: Source) -> StoreIndex | None:
        """Returns the index of media metadata of a dataset; None if it has none."""
        if source not in self._media:
            index = StoreIndex(source.reader.folder.root) if isinstance(source.reader, ShardReader) else None
            self._media[source] = index if index is not None and index.has_media() else None
        return self._media[source]


def _vision_tokens(source: Source, sample: PlannedSample) -> int | None:
    """Returns the tokens that the decoder's front ends make of a sample's images and recordings; None if unknown."""
    decoder = getattr(source.load, "decoder", None)
    spec: ImageSpec | None = getattr(decoder, "spec", None)
    images = [facts for facts in sample.media.values() if isinstance(facts, ImageMetadata)]
    recordings = [facts for facts in sample.media.values() if isinstance(facts, AVMetadata)]
    known: list[int] = []
    try:
        if spec is not None and spec.front_end is not None:
            known += [MediaHandle("", b"", one.format, one.width, one.height, spec).num_tokens for one in images]
        known += _audio_tokens(getattr(decoder, "audio_spec", None), recordings)
    except DecodeError:  # a front end refuses such media
        return None
    return sum(known) if known else None


def _audio_tokens(spec: AudioSpec | None, files: Sequence[AVMetadata]) -> list[int]:
    """Returns the tokens of each segment of the recordings among files: those that have audio and no video."""
    tokens: list[int] = []
    for one in files:
        samples, rate = one.audio_num_samples, one.audio_sample_rate
        if spec is None or one.video_num_frames is not None or samples is None or not rate:
            continue
        total = samples * spec.front_end.sampling_rate // rate
        tokens += [spec.front_end.layout(stop - start).num_tokens for start, stop in spec.choose(total, 0)]
    return tokens


@explain_call
def plan_steps(
    dataset: SavableDataset[Any],
    steps: range,
    *,
    ranks: Sequence[int] | None = None,
    state: State | None = None,
    unit: Unit = "batch",
    count_tokens: CountTokens | None = None,
    progress: Progress | None = None,
) -> StepPlan:
    """Returns which samples a range of steps holds, on which rank, without reading a byte of the shards.

    Positions are computed: a million steps before the first cost nothing. Keys and sizes come from the index when the
    result is iterated.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned, on any rank of the job.
        steps: The steps, such as range(1000, 1010), counted from 0 over virtual epochs. Its step must be 1. With global
            batches they are steps of the job, each with all micro-batches of a rank.
        ranks: The ranks to plan; None plans all of the job.
        state: Plan from a state of the loader on, such as that of a checkpoint, which holds what hooks have dropped so
            far; of all ranks that are planned. None plans from the beginning.
        unit: "sample" plans single samples in the order in which each stream draws them, before they are packed,
            grouped or batched; a step is then one sample of a rank.
        count_tokens: Returns the number of tokens of a PlannedSample, from its sizes and its media metadata. Text is
            tokenised when it is read, so no index has its tokens. None counts the vision tokens of images, if the
            decoder has a front end and `energon-dali prepare-media` stored their sizes (before rotation by EXIF).
        progress: Called with the number of steps that all ranks together have passed or planned since the last call,
            and the number of all.

    Raises:
        ConfigError: An argument is invalid, the steps are too many to be planned at once, or the order is decided at
            run time (packing, grouping, generators).
        StateError: The state is of another dataset, or after the first step.
        LayoutError: The state lacks a rank.
        DatasetError: The dataset has no samples.
    """
    if not isinstance(dataset, SavableDataset):
        raise ConfigError(
            f"dataset={dataset!r} is not a dataset of energon_dali: give what get_train_dataset or get_val_dataset "
            "returned."
        )
    config = dataset.worker_config
    if not isinstance(steps, range) or steps.step != 1 or steps.start < 0 or not steps:
        raise ConfigError(f"steps={steps!r} is invalid: give a range of steps from 0 on, such as range(1000, 1010).")
    if unit not in ("batch", "sample"):
        raise ConfigError(f'unit={unit!r} is unknown: give "batch" or "sample".')
    chosen = list(range(config.world_size)) if ranks is None else list(ranks)
    wrong = [rank for rank in chosen if type(rank) is not int or not 0 <= rank < config.world_size]
    if wrong or not chosen:
        raise ConfigError(f"ranks={ranks!r} is invalid: with world_size={config.world_size}, give some below it.")
    if state is not None and unit == "sample":
        raise ConfigError('A state holds the position of batches: give unit="batch", or no state.')
    if count_tokens is not None and not callable(count_tokens):
        raise ConfigError(
            f"count_tokens={count_tokens!r} is not a function: give one that takes a PlannedSample and returns an int."
        )
    _check_size(steps, len(chosen), config)
    if dataset.global_batches is not None:
        if unit == "sample":
            raise ConfigError('With global batches the samples of a step are fixed: give unit="batch".')
        return _plan_of_job(dataset, steps, chosen, state, count_tokens)
    limit = dataset.rank_limit
    tree = dataset if limit is None else dataset.children[0]
    if unit == "sample":
        tree = below_grouping(tree)
    report: Progress = progress or (lambda done, total: None)
    total = steps.stop * len(chosen)
    rows: list[tuple[int, int, int, int]] = []
    plans: dict[int, Planned] = {}
    num_samples = 0
    for rank in chosen:
        job = _Rank(tree, rank, None if state is None else _state_of_rank(state, dataset, rank))
        last = min(steps.stop, limit.length) if limit is not None and limit.restart else steps.stop
        rows += job.plan(range(steps.start, max(steps.start, last)), plans, lambda done: report(done, total))
        num_samples += sum(int(plans[stream].starts[-1]) for stream in job.streams if stream in plans)
        if num_samples > MOST_PLANNED_SAMPLES:
            raise too_many_samples()
    rows.sort()
    end = max((row[0] for row in rows), default=steps.start - 1) + 1
    notes = _notes(dataset if unit == "batch" else tree, steps, end, unit)
    return StepPlan(range(steps.start, end), notes, rows, plans, count_tokens)


def _plan_of_job(
    dataset: SavableDataset[Any],
    steps: range,
    ranks: Sequence[int],
    state: State | None,
    count_tokens: CountTokens | None,
) -> StepPlan:
    """Returns the micro-batches of steps of a job with global batches; see `plan_steps`."""
    dataset = dataset_at(dataset, steps, ranks[0], state)
    batches = dataset.global_batches
    assert batches is not None
    limit = dataset.rank_limit
    length = limit.length if limit is not None and limit.restart else None
    per_step = batches.micro_batches_per_step
    planned = steps if length is None else range(steps.start, max(steps.start, min(steps.stop, -(-length // per_step))))
    rows, plans = planned_steps(batches, source_of(dataset).sources, planned, ranks)
    if length is not None:  # it may end within a step
        firsts: dict[tuple[int, int], int] = {}
        for step, rank, _, number in rows:
            firsts.setdefault((step, rank), number)
        rows = [row for row in rows if row[0] * per_step + row[3] - firsts[row[:2]] < length]
    last = max((row[0] for row in rows), default=steps.start - 1) + 1
    notes = ["These are steps of the job. A sample that fails moves no other; on_missing says what takes its place."]
    if last < steps.stop and (length is not None or not batches.is_endless):
        notes.append(f"The data ends after step {last - 1}." if rows else "The data ends before.")
    if isinstance(batches, PackedBatchPlan):
        count, size = batches.num_counted_windows, batches.rule.window
        notes.append(f"{count:,} windows of {size:,} samples were packed to count the packs up to these steps.")
    return StepPlan(range(steps.start, last), notes, rows, plans, count_tokens)


def dataset_at(dataset: SavableDataset[Any], steps: range, rank: int, state: State | None) -> SavableDataset[Any]:
    """Returns a dataset of a job with global batches that continues from a state; itself without one.

    Args:
        dataset: The dataset.
        steps: The steps that it is planned for.
        rank: A rank that the state has.
        state: A state of the loader, or None.

    Raises:
        StateError: The state is of another dataset, or after the first step.
        LayoutError: The state lacks the rank.
    """
    if state is None:
        return dataset
    start = cursor_of(_state_of_rank(state, dataset, rank))
    if steps.start < start.step:
        raise StateError(
            f"The state is after step {start.step - 1}, and step {steps.start} was asked for: give a range from "
            f"{start.step} on, or an older state."
        )
    return dataset.continued(start, dataset.worker_config)


def _check_size(steps: range, num_ranks: int, config: WorkerConfig) -> None:
    """Refuses what would take too long or too much memory.

    Raises:
        ConfigError: There are too many steps or streams, or the steps are too late.
    """
    latest = MAX_COUNT // config.world_size
    if steps.stop > latest:
        raise ConfigError(
            f"Step {steps.stop - 1:,} is too large: with world_size={config.world_size:,}, steps go to {latest - 1:,}."
        )
    num_steps = steps.stop - steps.start
    if num_steps * num_ranks > _MOST_BATCHES:
        raise ConfigError(
            f"{num_steps:,} steps of {num_ranks:,} {'rank' if num_ranks == 1 else 'ranks'} are too many: at most "
            f"{_MOST_BATCHES:,} batches are planned at once. Give a shorter range of steps, or fewer ranks."
        )
    streams = num_ranks * (config.layout.num_streams // config.world_size)
    if streams > _MOST_STREAMS:
        raise ConfigError(
            f"{num_ranks:,} ranks with {streams:,} streams are too many: at most {_MOST_STREAMS:,} streams are planned "
            "at once. Give some of the ranks."
            if num_ranks > 1
            else f"{streams:,} streams of a rank are too many: at most {_MOST_STREAMS:,} streams are planned at once."
        )


def _state_of_rank(state: State, dataset: SavableDataset[Any], rank: int) -> State:
    twin = copy.copy(dataset)
    twin.worker_config = replace(dataset.worker_config, rank=rank)
    return LoaderIdentity(twin).position(state)


class _Rank:
    """The streams of one rank."""

    def __init__(self, tree: SavableDataset[Any], rank: int, state: State | None) -> None:
        self._rank = rank
        self.streams = tree.worker_config.layout.rank_streams(rank)
        self._iterators: dict[int, StreamIterator[Any]] = {
            stream: tree.open(StreamContext(stream)) for stream in self.streams
        }
        self._counts = dict.fromkeys(self.streams, 0)
        self._ended: set[int] = set()
        if state is None:
            return
        for stream, iterator in self._iterators.items():
            saved = state["streams"][str(stream)]
            self._counts[stream] = saved["count"]
            if saved["ended"]:
                self._ended.add(stream)
            if saved["state"] is not None:
                restore_stream(iterator, saved["state"], stream)

    def plan(
        self, steps: range, plans: dict[int, Planned], report: Callable[[int], object]
    ) -> list[tuple[int, int, int, int]]:
        """Returns (step, rank, stream, number of the element) for each step, and adds the plans of the streams.

        Args:
            steps: The steps.
            plans: Plans by stream; changed.
            report: Called with the number of steps that were passed or planned since the last call.

        Raises:
            StateError: The state of the rank is after the first step.
            ConfigError: The steps are too late.
        """
        begun = sum(self._counts.values())
        if begun > steps.start:
            raise StateError(
                f"The state of rank {self._rank} is after step {begun - 1}, and step {steps.start} was asked for: give "
                f"a range from {begun} on, or an older state."
            )
        try:
            return self._plan(steps, begun, plans, report)
        except StateError as error:  # a position of an iterator, which no state can hold
            raise ConfigError(f"Step {steps.stop - 1:,} is too large to be planned. Give earlier steps.") from error

    def _plan(
        self, steps: range, begun: int, plans: dict[int, Planned], report: Callable[[int], object]
    ) -> list[tuple[int, int, int, int]]:
        for iterator in self._iterators.values():
            iterator.plan(0)  # raises before much was computed

        def skip(stream: int, number: int) -> int:
            passed = 0
            at_once = max(_PASSED_AT_ONCE, number // 64)
            while passed < number:
                wanted = min(at_once, number - passed)
                moved = self._iterators[stream].skip(wanted)
                passed += moved
                report(moved)
                if moved < wanted:
                    break
            return passed

        move = in_turn(self.streams, self._counts, self._ended, steps.start - begun, skip)
        if move < steps.start - begun:
            return []
        before = dict(self._counts)
        parts: dict[int, list[Planned]] = {stream: [] for stream in self.streams}

        def take(stream: int, number: int) -> int:
            parts[stream].append(self._iterators[stream].plan(number))
            report(len(parts[stream][-1]))
            return len(parts[stream][-1])

        in_turn(self.streams, self._counts, self._ended, len(steps), take)
        elements = []
        for stream, pieces in parts.items():
            if pieces:
                plans[stream] = joined(pieces)
                elements += [(before[stream] + number, stream, number) for number in range(len(plans[stream]))]
        elements.sort()
        return [(step, self._rank, stream, number) for step, (_, stream, number) in enumerate(elements, steps.start)]


def uncooked_encoder() -> Any:
    """Returns a task encoder that leaves crude samples as they are: to plan and to read, no cookers are needed."""
    from energon_dali.task_encoder.cooking import Cooker
    from energon_dali.task_encoder.default import DefaultTaskEncoder

    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.cookers = (Cooker(_as_it_is),)
    return encoder


def _as_it_is(sample: Any, **stores: Any) -> Any:
    return sample


def below_grouping(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Returns the part of a tree that yields single samples: what is below its packs, groups and batches.

    Raises:
        ConfigError: Finished datasets are blended, so that there is no single such part.
    """
    while _groups(dataset):
        if len(dataset.children) != 1:
            raise ConfigError(
                f"{dataset.describe()} mixes finished batches, which have no order of samples as a whole: give one of "
                "its datasets."
            )
        (dataset,) = dataset.children
    return dataset


def _groups(dataset: SavableDataset[Any]) -> bool:
    return any(isinstance(one, GroupingDataset) for one in walk(dataset))


def _notes(dataset: SavableDataset[Any], steps: range, end: int, unit: Unit) -> list[str]:
    notes = [
        "A sample that cannot be read or decoded is dropped when the job runs, and what follows in its stream moves up."
    ]
    notes += [f"Not known before it runs: {text}" for text in plan_obstacles(dataset)]
    if unit == "sample":
        notes.append("These are samples as they are drawn; packing, grouping and batching decide on their steps.")
    if end < steps.stop:
        notes.append(f"The data ends after step {end - 1}." if end > steps.start else "The data ends before.")
    return notes
