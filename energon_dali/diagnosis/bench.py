"""Measures a dataset on this machine: reading, decoding and hooks alone, and the whole loader in several settings."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from energon_dali.datasets.base import SavableDataset, walk
from energon_dali.datasets.debug_log import keys_of
from energon_dali.datasets.hooks import is_of_user
from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.stream import Planned, StreamContext
from energon_dali.datasets.worker_border import decode_elements
from energon_dali.decode import Decoder
from energon_dali.diagnosis.rates import CpuMeter, LoaderRate, Setting, StageRate, advise
from energon_dali.diagnosis.step_plan import below_grouping
from energon_dali.errors import ConfigError, DatasetError, EnergonDaliError
from energon_dali.loader.basic_loader import BasicDataLoader
from energon_dali.samples.base import Key, set_restore_key
from energon_dali.shards import RawSample

OpenDataset = Callable[[Setting], SavableDataset[Any]]
"""Opens the dataset for a setting; the same samples in the same order for each."""

READ_AT_ONCE = 32
_WARM_UP = 4
"""Most time for what was made ahead, in measurements."""
_REPLAYED = 512
"""Most samples that are kept in memory to run the hooks alone."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What `bench` measured."""

    stages: tuple[StageRate, ...]
    """Reading, decoding and hooks, each alone in one process."""
    loaders: tuple[LoaderRate, ...]
    """The whole loader, in the order in which it was measured."""
    advice: tuple[str, ...]
    """Where the time goes, and what to change, in sentences."""

    @property
    def best(self) -> LoaderRate:
        """The fastest setting."""
        return max(self.loaders, key=lambda one: one.samples_per_second)


def bench(
    open_dataset: OpenDataset,
    settings: Sequence[Setting],
    *,
    seconds: float = 3.0,
    report: Callable[[Any], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Measures a dataset: its stages alone in this process, and the whole loader in each setting.

    Files that were read before may come from the page cache: to measure storage, measure data that was not read lately.

    Args:
        open_dataset: Returns the dataset for a setting.
        settings: What to measure the whole loader with, at least one.
        seconds: How long each measurement lasts, after it has started up.
        report: Called with each StageRate and LoaderRate as it is there; None reports nothing.
        progress: Called with a line that says what is measured next; None says nothing.

    Raises:
        ConfigError: There is no setting, or the dataset cannot be opened with one.
        DatasetError: The dataset cannot be read.
    """
    if not settings:
        raise ConfigError("bench was given no settings: give at least one Setting.")
    tell, begin = report or _nothing, progress or _nothing
    begin("opening the dataset")
    dataset = open_dataset(settings[0])
    stages = []
    begin("measuring the stages alone")
    for stage in measure_stages(dataset, decoder_of(dataset), seconds):
        tell(stage)
        stages.append(stage)
    loaders = []
    for number, setting in enumerate(settings, start=1):
        begin(f"measuring {setting} ({number} of {len(settings)})")
        loader = measure_loader(open_dataset, setting, seconds)
        tell(loader)
        loaders.append(loader)
    return BenchResult(tuple(stages), tuple(loaders), tuple(advise(stages, loaders)))


def _nothing(_: Any) -> None:
    """Ignores what is reported."""


def decoder_of(dataset: SavableDataset[Any]) -> Decoder | None:
    """Returns the decoder of a tree that works on media handles; None if samples are decoded when they are loaded."""
    decoders = (getattr(one, "decoder", None) for one in walk(dataset))
    return next((decoder for decoder in decoders if decoder is not None), None)


def measure_loader(open_dataset: OpenDataset, setting: Setting, seconds: float) -> LoaderRate:
    """Returns how fast the loader delivers in a setting.

    Args:
        open_dataset: Returns the dataset for the setting.
        setting: What to measure.
        seconds: How long, after the first batches.

    Raises:
        ConfigError: The dataset cannot be opened so.
    """
    dataset = open_dataset(setting)
    begun = time.perf_counter()
    with BasicDataLoader(dataset, prefetch_factor=setting.prefetch_factor) as loader:
        batches = _endless(loader)
        try:
            next(batches)
            first = time.perf_counter() - begun
            # What was made ahead while the processes started is not the rate at which they work. A block of samples
            # may hold several batches.
            ahead = setting.prefetch_factor * len(dataset.worker_config.streams) if setting.num_workers else 0
            warm_until = time.perf_counter() + _WARM_UP * seconds
            for _ in itertools.islice(batches, ahead):
                if time.perf_counter() > warm_until:
                    break
            meter, before = CpuMeter(), loader.stats()
            started, samples = time.perf_counter(), 0
            while time.perf_counter() - started < seconds or not samples:
                samples += num_samples(next(batches))
            elapsed = time.perf_counter() - started
            cpu, after = meter.read(), loader.stats()
        except EnergonDaliError as error:
            return LoaderRate(setting, 0, 0.0, 0.0, problem=f"{type(error).__name__}: {error}")
        did = after.since(before)
        return LoaderRate(setting, samples, elapsed, first, dict(did.stage_seconds), cpu, did)


def _endless(loader: BasicDataLoader[Any]) -> Iterator[Any]:
    while True:
        given = False
        for batch in loader:
            given = True
            yield batch
        if not given:
            raise DatasetError("An epoch of this dataset has no batch, so there is nothing to measure.")


def num_samples(batch: Any) -> int:
    """Returns the number of samples of a batch or pack: of its keys; 1 for a sample."""
    keys = keys_of(batch)
    return sum(map(_count_keys, keys)) if isinstance(keys, (list, tuple)) and keys else 1


def _count_keys(keys: Any) -> int:
    return sum(map(_count_keys, keys)) if isinstance(keys, (list, tuple)) else 1


def measure_stages(dataset: SavableDataset[Any], decoder: Decoder | None, seconds: float) -> Iterator[StageRate]:
    """Yields how fast reading, decoding and hooks work, each alone in this process, one after the other.

    Args:
        dataset: The dataset, without workers.
        decoder: Decodes the handles of its samples; None if there are none.
        seconds: How long each is measured.

    Raises:
        DatasetError: The dataset cannot be read.
    """
    rows = _rows(dataset)
    raws: list[tuple[Source, RawSample]] = []
    spent, count, size = 0.0, 0, 0
    while spent < seconds:
        source, shards, samples = next(rows)
        started = time.perf_counter()
        found = source.reader.read(shards, samples)
        spent += time.perf_counter() - started
        good = [raw for raw in found if isinstance(raw, RawSample)]
        count += len(found)
        size += sum(len(part) for raw in good for part in raw.parts.values())
        raws += [(source, raw) for raw in good[: max(0, _REPLAYED - len(raws))]]
    yield StageRate("reading", count, spent, size)
    loaded: dict[Source, dict[tuple[int, int], Any]] = {}
    spent, count = 0.0, 0
    pre = _hooks_see_handles(dataset)
    for source, group in _groups(raws):
        if spent >= seconds:
            break
        started = time.perf_counter()
        made, decoded = _decode(source, group, decoder)
        spent += time.perf_counter() - started
        count += len(group)
        for raw, sample, whole in zip(group, made, decoded, strict=True):
            if not isinstance(whole, Exception):
                loaded.setdefault(source, {})[raw.shard_index, raw.sample_index] = sample if pre else whole
    yield StageRate("decoding", count, spent)
    rest = _measure_hooks(dataset, loaded, seconds, has_decoding=pre)
    yield rest if _has_hooks(dataset) else replace(rest, name="batching")


def _decode(source: Source, raws: list[RawSample], decoder: Decoder | None) -> tuple[list[Any], list[Any]]:
    """Returns (samples as they are loaded, the same with their media decoded); errors in place of bad ones."""
    seeds = source.load.seeds(np.zeros(len(raws), np.int64), np.array([raw.index for raw in raws], np.int64))
    made: list[Any] = []
    for raw, seed in zip(raws, seeds, strict=True):
        try:
            made.append(source.load(raw, seed))
        except Exception as error:
            made.append(error)
    if decoder is None:
        return made, made
    # Copies, because decoding puts the pixels into the sample.
    good = iter(decode_elements(decoder, [copy.copy(one) for one in made if not isinstance(one, Exception)]))
    return made, [sample if isinstance(sample, Exception) else next(good) for sample in made]


def _has_hooks(dataset: SavableDataset[Any]) -> bool:
    """Returns whether a tree calls hooks of the user's."""
    names = ("map_fn", "hook", "iter_map_fn")
    functions = (getattr(one, name, None) for one in walk(dataset) for name in names)
    return any(function is not None and is_of_user(function) for function in functions)


def _hooks_see_handles(dataset: SavableDataset[Any]) -> bool:
    """Returns whether hooks run before media are decoded, so that they cannot be given decoded samples."""
    from energon_dali.datasets.wrappers.map import MapDataset

    def below_decoder(one: SavableDataset[Any], found: bool) -> bool:
        found = found or getattr(one, "decoder", None) is not None
        return (found and isinstance(one, MapDataset)) or any(below_decoder(child, found) for child in one.children)

    return below_decoder(dataset, False)


def _rows(dataset: SavableDataset[Any]) -> Iterator[tuple[Source, list[int], list[int]]]:
    """Yields (source, shards, samples) of the next samples of all streams in turn, as they would be read."""
    tree = below_grouping(dataset)
    iterators = [tree.open(StreamContext(stream)) for stream in dataset.worker_config.streams]
    given = True
    while given:
        given = False
        for iterator in iterators:
            plan = iterator.plan(READ_AT_ONCE)
            if len(plan) == 0:  # the end of an epoch
                plan = iterator.plan(READ_AT_ONCE)
            for number, source in enumerate(plan.sources):
                given = True
                yield source, *_of_source(plan, number)
    raise DatasetError("This dataset has no sample to measure.")


def _of_source(plan: Planned, number: int) -> tuple[list[int], list[int]]:
    rows = plan.rows.take(np.flatnonzero(plan.rows.sources == number))
    return rows.shards.tolist(), rows.indices.tolist()


def _groups(raws: list[tuple[Source, RawSample]]) -> Iterator[tuple[Source, list[RawSample]]]:
    for source, group in itertools.groupby(raws, key=lambda pair: pair[0]):
        samples = [raw for _, raw in group]
        for start in range(0, len(samples), READ_AT_ONCE):
            yield source, samples[start : start + READ_AT_ONCE]


def _measure_hooks(
    dataset: SavableDataset[Any],
    loaded: dict[Source, dict[tuple[int, int], Any]],
    seconds: float,
    *,
    has_decoding: bool,
) -> StageRate:
    """Returns how fast the tree above its sources works, on samples that are in memory."""
    replay = _with_replay(dataset, loaded)
    note = "with decoding: hooks that run before it need undecoded samples" if has_decoding else ""
    elements, samples, spent = iter(replay), 0, 0.0
    while spent < seconds:
        started = time.perf_counter()
        try:
            element = next(elements)
        except StopIteration:
            if not samples:
                return StageRate("hooks", 0, 0.0, problem="an epoch has no batch")
            elements = iter(replay)
            continue
        except EnergonDaliError as error:
            return StageRate("hooks", 0, 0.0, problem=f"{type(error).__name__}: {error}")
        spent += time.perf_counter() - started
        samples += num_samples(element)
    return StageRate("hooks", samples, spent, problem=note)


def _with_replay(dataset: SavableDataset[Any], loaded: dict[Source, dict[tuple[int, int], Any]]) -> SavableDataset[Any]:
    """Returns a tree whose sources give samples that are in memory, in place of reading and loading them."""
    if not isinstance(dataset, SourceDataset):
        return dataset.with_children(*(_with_replay(child, loaded) for child in dataset.children))
    twin = copy.copy(dataset)
    twin.sources = tuple(_replayed(source, loaded) for source in dataset.sources)
    return twin


def _replayed(source: Source, loaded: dict[Source, dict[tuple[int, int], Any]]) -> Source:
    samples = loaded.get(source) or next(iter(loaded.values()), {})
    if not samples:
        raise DatasetError(f"No sample of {source.name} could be read and decoded.")
    reader, load = _Replay(source.reader), _Loaded(source.load, samples)
    return replace(source, reader=reader, load=load)  # type: ignore[arg-type]


class _Replay:
    """A reader that reads nothing."""

    is_remote = False

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read(self, shards: Sequence[int], samples: Sequence[int]) -> list[RawSample]:
        return [
            RawSample("", "", self._reader.index_of(shard, sample), shard, sample, {})
            for shard, sample in zip(shards, samples, strict=True)
        ]

    def planned_reads(self, window: int, lanes: int) -> None:
        return None

    def note_speed(self, seconds: float, num_samples: int, size: int) -> None:
        pass


class _Loaded:
    """Gives samples that were loaded before; others in place of those that were not."""

    def __init__(self, load: Any, samples: dict[tuple[int, int], Any]) -> None:
        self._load = load
        self._samples = samples
        self._any = itertools.cycle(list(samples.values()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load, name)

    def __call__(self, raw: RawSample, seed: int, restore_key: Key = ()) -> Any:
        found = self._samples.get((raw.shard_index, raw.sample_index))
        return set_restore_key(copy.copy(next(self._any) if found is None else found), restore_key)

    def counting(self, metrics: Metrics) -> _Loaded:
        return self
