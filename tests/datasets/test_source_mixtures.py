from __future__ import annotations

import itertools
import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.fetch import MIXTURE_READ_AHEAD
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.mixing.blend import BlendDataset
from energon_dali.datasets.mixing.measured_blend import MeasuredBlendDataset, count_tokens
from energon_dali.datasets.mixing.mixture_dataset import ConcatDataset
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.restore_key import key_from_json
from energon_dali.datasets.row_sources import Source, short_names
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.stream import StreamContext
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.errors import ConfigError, DatasetError, SkipSample, StateError
from energon_dali.plan.mixtures import BlendPlan, ConcatPlan, EpochizedBlendPlan
from energon_dali.plan.plan import Plan
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from energon_dali.samples import TextSample
from energon_dali.shards import RawSample
from energon_dali.worker_config import WorkerConfig
from tests.datasets.oracle import check_resume, config, silent


class Numbers:
    """A reader of samples that hold their dataset and their number; every seventh of an odd dataset cannot be read."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.rows_read = 0
        self.calls = 0
        self.is_remote = number % 2 == 0

    def read(self, shard_indices: Sequence[int], sample_indices: Sequence[int]) -> list[RawSample | DatasetError]:
        self.calls += 1
        self.rows_read += len(shard_indices)
        return [self._raw(index) for index in sample_indices]

    def _raw(self, index: int) -> RawSample | DatasetError:
        if self.number % 2 and index % 7 == 3:
            return DatasetError("seven")
        return RawSample(f"{self.number}/{index}", "shard", index, 0, index, {"txt": f"{self.number} {index}".encode()})

    @property
    def shard_starts(self) -> Any:
        return np.zeros(1, np.int64)

    def index_of(self, shard_index: int, sample_index: int) -> int:
        return sample_index

    def locate(self, index: int) -> tuple[int, int]:
        return 0, index

    def name(self, shard_index: int, sample_index: int) -> tuple[str, str]:
        return "shard", f"{self.number}/{sample_index}"

    def planned_reads(self, window: int, lanes: int) -> PlannedNumbers | None:
        return PlannedNumbers(self) if self.is_remote else None

    def expect_order(self, window: int, slice_length: float) -> None:
        pass

    def note_speed(self, seconds: float, num_samples: int, size: int) -> None:
        pass

    def close(self) -> None:
        pass


class PlannedNumbers:
    """Reads the rows of a Numbers when they are requested."""

    def __init__(self, reader: Numbers) -> None:
        self.reader = reader
        self.planned: deque[tuple[int, int]] = deque()
        self.issued: deque[RawSample | DatasetError] = deque()

    def __len__(self) -> int:
        return len(self.planned) + len(self.issued)

    def rows_wanted(self) -> int:
        return max(0, 8 - len(self))

    def plan(self, shards: Sequence[int], samples: Sequence[int]) -> None:
        self.planned.extend(zip(shards, samples, strict=True))

    def issue(self, count: int | None = None) -> None:
        rows = [self.planned.popleft() for _ in range(min(len(self.planned), (count or 4) - len(self.issued)))]
        if rows:
            self.issued.extend(self.reader.read(*zip(*rows, strict=True)))

    def is_next_read(self) -> bool:
        return False

    def take(self) -> RawSample | DatasetError:
        if not self.issued:
            self.issue(1)
        return self.issued.popleft()

    def clear(self) -> None:
        self.planned.clear()
        self.issued.clear()

    def close(self) -> None:
        self.clear()


def make_source(
    number: int, size: int, job: WorkerConfig, *, repeat: bool = True, path: str | None = None, **order: Any
) -> Source:
    plan = SourcePlan(
        base=Slices.whole_shards([size]),
        num_streams=job.layout.num_streams,
        seed=3,
        source=number,
        repeat=repeat,
        **{"max_samples_per_sequence": 4, "parallel_shard_iters": 3, "shuffle_buffer_size": 5, **order},
    )
    load = SampleLoader(decoder=None, sample_type=TextSample, field_map={"text": "txt"}, seed=3, source_number=number)
    return Source(plan, Numbers(number, size), load, path or f"/data/part{number}", {})


def job_of(streams: int) -> WorkerConfig:
    return config(streams, global_error_handler=silent)


def make_sources(sizes: Sequence[int], streams: int, **kwargs: Any) -> list[Source]:
    return [make_source(number, size, job_of(streams), **kwargs) for number, size in enumerate(sizes)]


def dataset_of(plan: Plan, sources: Sequence[Source]) -> SourceDataset:
    return SourceDataset(plan, sources, worker_config=job_of(plan.num_streams), read_size=8, failure_tolerance=0)


def blend(sources: Sequence[Source], weights: Sequence[float]) -> SourceDataset:
    return dataset_of(BlendPlan(tuple(source.plan for source in sources), tuple(weights), 3), sources)


def epochized(sources: Sequence[Source], repetitions: Sequence[float], *, repeat: bool) -> SourceDataset:
    return dataset_of(
        EpochizedBlendPlan(
            tuple(RepeatedPlan(plan, times) for plan, times in zip(spread(sources), repetitions, strict=True)),
            3,
            repeat,
        ),
        sources,
    )


def concat(sources: Sequence[Source]) -> SourceDataset:
    return dataset_of(ConcatPlan(tuple(spread(sources))), sources)


def spread(sources: Sequence[Source]) -> list[SourcePlan]:
    """Returns plans in which the remainders go to the streams in turn, as `assembly.mixture` does."""
    offsets = itertools.accumulate((source.num_samples for source in sources), initial=0)
    return [source.plan.rotated(offset) for source, offset in zip(sources, offsets, strict=False)]


def once_or_twice(sample: TextSample) -> Any:
    if sample.__key__.endswith("5"):
        raise SkipSample
    for copy in range(1 + sample.__key__.endswith("2")):
        yield TextSample.derive_from(sample, text=f"copy {copy}")


def no_fives(sample: TextSample) -> TextSample:
    if sample.__key__.endswith("5"):
        raise SkipSample
    return sample


def text_of(sample: TextSample) -> tuple[Any, ...]:
    return sample.__key__, sample.text, sample.__restore_key__


def source_and_number(sample: TextSample) -> tuple[int, int]:
    number, index = sample.__key__.split("/")
    return int(number), int(index)


def of_stream(dataset: SavableDataset[Any], stream: int, count: int | None = None) -> list[Any]:
    return list(itertools.islice(dataset.open(StreamContext(stream)), count))


def length_of(sample: TextSample) -> int:
    number, index = source_and_number(sample)
    return 1 + index % 3 if number % 2 else 10 + index % 30


def measured(streams: int) -> SavableDataset[Any]:
    return MeasuredBlendDataset(
        MapDataset(blend(make_sources([40, 9, 3], streams), [0.5, 0.3, 0.2]), once_or_twice), length_of
    )


def blend_of_blends(streams: int) -> SavableDataset[Any]:
    sources = make_sources([7, 6, 5, 9], streams)
    plans = [source.plan for source in sources]
    inner = BlendPlan((plans[0], plans[1]), (1, 2), 4)
    return MapDataset(dataset_of(BlendPlan((inner, plans[2], plans[3]), (1, 1, 2), 3), sources), no_fives)


CHAIN: dict[str, Any] = {"repeat": False, "shuffle": False}
COMPOSITIONS: dict[str, Callable[[int], SavableDataset[Any]]] = {
    "blend": lambda s: blend(make_sources([23, 5, 1, 8], s), [3, 1, 1, 0.5]),
    "blend, cooked": lambda s: MapDataset(blend(make_sources([23, 5, 1], s), [3, 1, 1]), once_or_twice),
    "blend of blends": blend_of_blends,
    "blend by units": measured,
    "epochized": lambda s: epochized(make_sources([11, 6, 0, 2], s, repeat=False), [1.5, 0.25, 2, 2], repeat=False),
    "epochized, cooked, endless": lambda s: MapDataset(
        epochized(make_sources([11, 6, 2], s, repeat=False), [0.5, 1, 2], repeat=True), once_or_twice
    ),
    "concat": lambda s: concat(make_sources([6, 0, 1, 7], s, **CHAIN)),
    "concat, cooked": lambda s: MapDataset(concat(make_sources([6, 0, 1, 7], s, **CHAIN)), once_or_twice),
}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_a_restore_at_any_sample_continues_exactly(name: str, streams: int, every: int) -> None:
    check_resume(lambda: COMPOSITIONS[name](streams), count=80, epochs=4, view=text_of, every=every)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", ["blend", "epochized", "blend by units"])
def test_batches_of_a_blend_resume_too(name: str, every: int) -> None:
    check_resume(lambda: BatchDataset(COMPOSITIONS[name](2), 3, list), count=40, epochs=3, view=repr, every=every)


@pytest.mark.parametrize("name", ["blend", "epochized", "concat"])
def test_a_restore_key_makes_the_sample_again(name: str) -> None:
    dataset = COMPOSITIONS[name](2)
    for sample in of_stream(dataset, 1, 20):
        key = key_from_json(json.loads(json.dumps(sample.__restore_key__)))
        assert text_of(dataset.restore_sample(key)) == text_of(sample)
        assert sample.__restore_key__[0] == "BlendDataset"
        assert sample.__restore_key__[1] == source_and_number(sample)[0]


def test_a_key_of_an_unknown_member_is_refused() -> None:
    with pytest.raises(StateError, match="names dataset 9, and 4 are mixed here"):
        COMPOSITIONS["blend"](1).restore_sample(("BlendDataset", 9, "Webdataset", 0, 0))


def test_weights_hold_in_every_stream_even_if_sources_have_fewer_samples_than_streams() -> None:
    weights = np.array([4.0, 3.0, 2.0, 1.0, 1.0])
    mixed = MapDataset(blend(make_sources([50, 31, 9, 2, 1], 5), weights.tolist()), no_fives)
    shares = weights / weights.sum()
    seen: set[tuple[int, int]] = set()
    for stream in range(5):
        counts = np.bincount(mixed.dataset.plan.rows(0, 1000, stream).sources, minlength=5)  # type: ignore[attr-defined]
        assert np.all(np.abs(counts - 1000 * shares) < 3 * np.sqrt(1000 * shares * (1 - shares)))
        seen.update(source_and_number(sample) for sample in of_stream(mixed, stream, 1000))
    readable = {
        (number, index)
        for number, size in enumerate([50, 31, 9, 2, 1])
        for index in range(size)
        if index % 10 != 5 and not (number % 2 and index % 7 == 3)
    }
    assert seen == readable


@pytest.mark.parametrize("streams", [1, 4])
def test_proportions_hold_within_one_percent_though_lengths_differ_ten_to_one(streams: int) -> None:
    dataset = MeasuredBlendDataset(blend(make_sources([50, 31, 9, 20], streams), [0.4, 0.3, 0.2, 0.1]), length_of)
    for stream in range(streams):
        units: Counter[int] = Counter()
        for sample in of_stream(dataset, stream, 12_000 // streams):
            units[source_and_number(sample)[0]] += length_of(sample)
        shares = [units[number] / units.total() for number in range(4)]
        assert np.allclose(shares, [0.4, 0.3, 0.2, 0.1], atol=0.01, rtol=0.01), shares


def test_a_dataset_that_measures_nothing_does_not_take_over() -> None:
    sources = [make_source(number, size, job_of(1)) for number, size in ((0, 50), (2, 31))]
    dataset = MeasuredBlendDataset(blend(sources, [0.7, 0.3]), lambda sample: 0 if source_and_number(sample)[0] else 5)
    counts = Counter(source_and_number(sample)[0] for sample in of_stream(dataset, 0, 4000))
    assert abs(counts[2] / 4000 - 0.3) < 0.02


@pytest.mark.parametrize("repeat", [False, True])
def test_epochs_hold_each_sample_as_often_as_asked(repeat: bool) -> None:
    sizes, repetitions = [12, 6, 2, 0], [2, 0.5, 1.5, 1]
    dataset = epochized(make_sources(sizes, 3, repeat=False), repetitions, repeat=repeat)
    plan = dataset.plan
    assert isinstance(plan, EpochizedBlendPlan)
    found: Counter[tuple[int, int]] = Counter()
    for stream in range(3):
        iterator = dataset.open(StreamContext(stream))
        start = 0
        for epoch in range(2):
            length = sum(plan.lengths(epoch, stream))
            rows = plan.rows(start, start + length, stream)
            start += length
            lost = int(np.sum((rows.sources == 1) & (rows.indices % 7 == 3)))
            taken = list(itertools.islice(iterator, length - lost)) if repeat else list(iterator)
            assert len(taken) == length - lost
            found.update(source_and_number(sample) for sample in taken)
    expected = {
        (number, index): 2 * times
        for number, times in enumerate(repetitions)
        for index in range(sizes[number])
        if not (number % 2 and index % 7 == 3)
    }
    assert found == expected


@pytest.mark.parametrize("count", [9, 10])
def test_remainders_of_many_tiny_sources_go_to_the_streams_in_turn(count: int) -> None:
    plan = epochized(make_sources([1] * count, 3, repeat=False), [1] * count, repeat=False).plan
    for epoch in range(3):
        lengths = [plan.epoch_length(epoch, stream) for stream in range(3)]
        assert sum(lengths) == count
        assert max(lengths) - min(lengths) <= 1


def test_a_seed_of_each_position_mixes_nested_blends_of_sources() -> None:
    def inner() -> SavableDataset[Any]:
        return blend(make_sources([40, 40], 1), [1, 1])

    outer = BlendDataset((inner(), 1), (inner(), 1))
    samples = of_stream(outer, 0, 400)
    drawn = [[source_and_number(s)[0] for s in samples if s.__restore_key__[1] == member][:150] for member in range(2)]
    assert drawn[0] != drawn[1]
    plans = {member.plan for member in outer.datasets if isinstance(member, SourceDataset)}
    assert len(plans) == 2


def test_a_seed_of_each_position_mixes_nested_epochized_blends() -> None:
    def inner() -> SavableDataset[Any]:
        return epochized(make_sources([40, 40], 1, repeat=False), [1, 1], repeat=False)

    samples = of_stream(ConcatDataset(inner(), inner()), 0)
    assert len(samples) == 2 * 74  # six samples of the second source cannot be read
    drawn = [[source_and_number(sample)[0] for sample in half] for half in (samples[:74], samples[74:])]
    assert drawn[0] != drawn[1]


def test_sources_at_nested_positions_have_different_orders_and_seeds() -> None:
    def inner() -> SavableDataset[Any]:
        return blend(make_sources([40, 40], 1), [1, 1])

    tree = BlendDataset((inner(), 1), (inner(), 1))
    members = [member for member in tree.datasets if isinstance(member, SourceDataset)]
    plans = [plan for member in members if isinstance(member.plan, BlendPlan) for plan in member.plan.members]
    assert len({tuple(plan.rows(0, 40).indices.tolist()) for plan in plans}) == 4
    sources = [source for member in members for source in member.sources]
    assert len({source.load.seeds(np.array([0]), np.array([5]))[0] for source in sources}) == 4


def test_each_stream_and_each_epoch_is_interleaved_in_its_own_way() -> None:
    dataset = epochized(make_sources([80, 0, 80], 2, repeat=False), [1, 1, 1], repeat=True)
    orders = set()
    for stream in range(2):
        numbers = [source_and_number(sample)[0] for sample in of_stream(dataset, stream, 160)]
        orders |= {tuple(numbers[:80]), tuple(numbers[80:])}
        assert sorted(numbers) == [0] * 80 + [2] * 80
    assert len(orders) == 4


@pytest.mark.parametrize("sizes", [[5, 3, 7, 2, 6], [7] * 9, [1, 9, 12, 30, 3, 3]])
@pytest.mark.parametrize("streams", [3, 8])
def test_remainders_of_validation_continue_where_those_of_the_source_before_ended(
    sizes: list[int], streams: int
) -> None:
    dataset = concat(make_sources(sizes, streams, **CHAIN))
    lengths = [dataset.len_stream(stream) for stream in range(streams)]
    assert sum(lengths) == sum(sizes)
    assert max(lengths) - min(lengths) <= 1


def test_an_epoch_is_mixed_in_proportion_to_its_end() -> None:
    dataset = epochized(make_sources([3000, 1000], 2, repeat=False), [1, 1], repeat=False)
    numbers = [source_and_number(sample)[0] for sample in of_stream(dataset, 1)]
    for start in range(0, 1800, 200):
        assert 25 <= sum(numbers[start : start + 200]) <= 75


def test_validation_has_every_sample_once_in_streams_of_similar_length() -> None:
    dataset = concat(make_sources([1] * 20 + [9], 8, **CHAIN))
    streams = [[source_and_number(sample) for sample in of_stream(dataset, stream)] for stream in range(8)]
    assert sorted(itertools.chain(*streams)) == [*((number, 0) for number in range(20)), *((20, i) for i in range(9))]
    assert max(map(len, streams)) - min(map(len, streams)) <= 2
    assert all(stream == sorted(stream) for stream in streams)


def test_reading_ahead_asks_each_source_once_for_a_window_and_reads_nothing_twice() -> None:
    sources = make_sources([400, 300, 200], 1)
    mixed = blend(sources, [1, 1, 1])
    iterator = mixed.open(StreamContext(0))
    assert len(list(itertools.islice(iterator, 320))) == 320
    row = iterator.state_dict()["row"]
    taken = np.bincount(mixed.plan.rows(0, row).sources, minlength=3)
    for source, count in zip(sources, taken.tolist(), strict=True):
        reader: Any = source.reader
        assert count <= reader.rows_read <= count + MIXTURE_READ_AHEAD
    assert max(source.reader.calls for source in (sources[0], sources[2])) <= 2 * row // 8  # type: ignore[attr-defined]


def test_a_failed_row_shifts_no_other_row() -> None:
    mixed = blend(make_sources([40, 30, 20], 2), [2, 3, 1])
    for stream in range(2):
        rows = mixed.plan.rows(0, 300, stream).as_tuples()
        readable = [(source, index) for source, _, index, _ in rows if not (source % 2 and index % 7 == 3)]
        found = [source_and_number(sample) for sample in of_stream(mixed, stream, len(readable))]
        assert found == readable


def test_state_of_a_hundred_datasets_is_a_row() -> None:
    mixed = blend(make_sources([50] * 100, 4, shuffle_buffer_size=100_000), [1.0] * 100)
    live = RankIterator(MapDataset(mixed, no_fives))
    for _ in range(2000):
        next(live)
    assert len(json.dumps(live.state_dict())) < 600


def test_another_mixture_has_another_config() -> None:
    sources = make_sources([23, 5, 1, 8], 1)
    configs = [
        blend(sources, [3, 1, 1, 0.5]).config(),
        blend(sources, [3, 1, 1, 1]).config(),
        blend(sources[:2], [3, 1]).config(),
        epochized(make_sources([3], 1, repeat=False), [1], repeat=False).config(),
        epochized(make_sources([3], 1, repeat=False), [2], repeat=False).config(),
        concat(make_sources([3], 1, repeat=False)).config(),
    ]
    assert len({json.dumps(one, sort_keys=True) for one in configs}) == len(configs)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: BlendPlan((), (), 0), ConfigError, "at least one"),
        (lambda: blend(make_sources([3, 3], 1), [1]), ConfigError, "give one each"),
        (lambda: blend(make_sources([3, 3], 1), [1, -1]), ConfigError, "are invalid"),
        (lambda: blend(make_sources([3], 1, repeat=False), [1]), ConfigError, "a plan that ends"),
        (lambda: blend([*make_sources([3], 1), *make_sources([3], 2)], [1, 1]), ConfigError, "numbers of streams"),
        (lambda: epochized(make_sources([3], 1, repeat=False), [-1], repeat=True), ConfigError, "from 0 to"),
        (lambda: epochized(make_sources([3], 1), [1], repeat=True), ConfigError, "repeats without an end"),
        (lambda: concat(make_sources([3], 1)), ConfigError, "never ends"),
        (lambda: dataset_of(make_sources([3], 1)[0].plan, make_sources([3, 3], 1)), ConfigError, "2 were given"),
        (lambda: MeasuredBlendDataset(concat(make_sources([3], 1, **CHAIN)), "tokens"), ConfigError, "by weight"),
        (lambda: MeasuredBlendDataset(COMPOSITIONS["blend"](1), "words"), ConfigError, "'words' is not known"),
    ],
)
def test_invalid_arguments_are_refused(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_a_source_of_weight_0_is_never_opened() -> None:
    mixed = blend(make_sources([3, 0], 1), [1, 0])
    assert {source_and_number(sample)[0] for sample in of_stream(mixed, 0, 50)} == {0}


def test_names_are_short_and_different() -> None:
    paths = ["/a/coco/train", "/b/coco/train", "/b/cc3m", "s3://x/laion/", "/b/cc3m", "/train"]
    names = ["a/coco/train", "b/coco/train", "cc3m#1", "laion", "cc3m#2", "/train"]
    assert short_names(paths) == names
    context = StreamContext(0)
    list(itertools.islice(blend(make_sources([3, 3], 1), [1, 3]).open(context), 1024))
    counts = context.metrics.snapshot()["counts"]
    assert counts["blend.samples.part0"] == 256
    assert counts["blend.samples.part1"] == 768


def test_two_sources_with_one_path_have_different_orders() -> None:
    job = config(1)
    mixed = blend([make_source(0, 40, job, path="/data/x"), make_source(2, 40, job, path="/data/x")], [1, 1])
    orders: dict[int, list[int]] = {0: [], 2: []}
    for sample in of_stream(mixed, 0, 80):
        number, index = source_and_number(sample)
        orders[number].append(index)
    assert orders[0][:30] != orders[2][:30]


def test_the_length_of_an_encoded_sample() -> None:
    assert count_tokens({"tokens": [1, 2, 3], "length": 9}) == 3
    assert count_tokens({"input_ids": np.zeros((2, 5))}) == 5
    assert count_tokens({"length": np.int64(4)}) == 4
    with pytest.raises(ConfigError, match="tokens, input_ids, length"):
        count_tokens({"text": "x"})
    with pytest.raises(ConfigError, match="not a length"):
        count_tokens({"length": "long"})


@pytest.mark.parametrize("buffer", ["packing", "group"])
def test_what_a_buffer_held_is_read_together_after_a_restore(buffer: str) -> None:
    def in_threes(samples: list[TextSample]) -> list[list[TextSample]]:
        return [samples[start : start + 3] for start in range(0, len(samples), 3)]

    def make() -> tuple[SavableDataset[Any], list[Any]]:
        sources = make_sources([40, 30], 1)
        cooked_once = MapDataset(MapDataset(blend(sources, [1, 1]), once_or_twice), no_fives)
        if buffer == "packing":
            tree: SavableDataset[Any] = PackingDataset(cooked_once, 60, in_threes, list)
        else:
            tree = GroupBatchDataset(cooked_once, 9, lambda sample: (source_and_number(sample)[1] % 7, None), list)
        return tree, [source.reader for source in sources]

    live = RankIterator(make()[0])
    for _ in range(3):
        next(live)
    state = json.loads(json.dumps(live.state_dict()))
    tree, readers = make()
    restored: Any = RankIterator(tree)
    restored.load_state_dict(state)
    assert [text_of(sample) for sample in next(restored)] == [text_of(sample) for sample in next(live)]
    calls = sum(reader.calls for reader in readers)
    assert calls == 2 if buffer == "packing" else calls < sum(reader.rows_read for reader in readers) / 2
