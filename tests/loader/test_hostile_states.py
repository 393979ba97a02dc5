"""Damaged states: each is refused with a StateError, or restores to something that iterates without a foreign error."""

from __future__ import annotations

import base64
import copy
import json
import math
import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    IterMapDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    RepeatDataset,
    ShuffleBufferDataset,
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.diagnosis.seen_samples import find_seen
from energon_dali.errors import ConfigError, EnergonDaliError, StateError
from energon_dali.loader.loader_state import split_state
from energon_dali.loader.state_file import read_state_file
from energon_dali.metadataset.loader import prepare_metadataset
from energon_dali.task_encoder.stateless import stateless
from tests.datasets.oracle import silent
from tests.loader.dataset_folder import prepare, write_shards


class Keys(TaskEncoder[Any, Any, Any, Any]):
    decoder = None

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return {"__key__": sample.__key__, "__restore_key__": sample.__restore_key__, "tokens": len(sample.text)}

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return samples


class JoinedKeys(Keys):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return {"__key__": sample.__key__, "__restore_key__": sample.__restore_key__}


class Packing(Keys):
    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[start : start + 2] for start in range(0, len(samples), 2)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return [sample["__key__"] for sample in samples]


class Grouping(Keys):
    @stateless
    def batch_group_criterion(self, sample: Any) -> Any:
        return sample["tokens"] % 2, None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("states")
    for name, letters in (("left", 3), ("right", 8)):
        samples = {f"k{number:02d}": {"txt": b"x" * (letters + number % 3)} for number in range(12)}
        prepare(write_shards(root / name, samples), {"text": "txt"}, "TextSample")
    pictures = {f"k{number:02d}": {"txt": b"picture"} for number in range(12)}
    prepare(write_shards(root / "pictures", pictures), {"image": "txt"}, "ImageSample")
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
    items = {
        "blend": "    blend:\n    - {path: left, weight: 1}\n    - {path: right, weight: 2}\n",
        "epochized": "    blend_epochized:\n    - {path: left, repetitions: 1}\n    - {path: right, repetitions: 2}\n",
        "concat": "    concat:\n    - {path: left}\n    - {path: right}\n",
        "join": "    join:\n    - {path: pictures}\n    - {path: right}\n    joiner: {__class__: OCRSample}\n",
    }
    for name, text in items.items():
        (root / f"{name}.yaml").write_text(head + text)
    return root


def train(path: Path, encoder: Any = None, **options: Any) -> Any:
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=0, num_streams=2, global_error_handler=silent, restore_error_handler=silent
    )
    options = {"batch_size": 2, "shuffle_buffer_size": 4, "max_samples_per_sequence": 3, **options}
    return get_train_dataset(path, worker_config=config, task_encoder=encoder or Keys(), **options)


def pairwise(elements: Iterator[Any]) -> Iterator[Any]:
    for element in elements:
        yield element
        yield element


def anything(element: Any) -> bool:
    return True


COMPOSITIONS: dict[str, Callable[[Path], Any]] = {
    "source": lambda root: train(root / "left"),
    "packing": lambda root: train(root / "left", Packing(), packing_buffer_size=5),
    "grouping": lambda root: train(root / "left", Grouping()),
    "blend": lambda root: train(root / "blend.yaml"),
    "blend by tokens": lambda root: train(root / "blend.yaml", blend_by="tokens"),
    "blend_epochized": lambda root: train(root / "epochized.yaml"),
    "concat": lambda root: train(root / "concat.yaml"),
    "virtual epochs": lambda root: train(root / "left", virtual_epoch_length=4),
    "shuffle buffer": lambda root: ShuffleBufferDataset(train(root / "left"), 4, first=2),
    "mixtures": lambda root: BlendDataset(
        (ConcatDataset(train(root / "left", repeat=False), train(root / "right", repeat=False)), 1),
        (RepeatDataset(train(root / "left", repeat=False), repeats=3), 2),
    ),
    "wrappers": lambda root: LogSampleDataset(
        LimitDataset(EpochizeDataset(FilterDataset(MapDataset(train(root / "left"), list), filter_fn=anything), 5), 4),
        mode="train",
    ),
    "iterators": lambda root: IterMapDataset(train(root / "left", repeat=False), pairwise),
}

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    1 << 20,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    10**400,
    0.5,
    1e300,
    math.nan,
    math.inf,
    "",
    "0",
    "x" * 50,
    [],
    [[]],
    [0],
    [None],
    {},
    {"inner": {}},
    {"0": 0},
    [["Webdataset", 0, 0]],
    [["Webdataset", 1 << 80, 0]],
)


def places_of(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path to every value inside a state."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (*way, step)
        yield from places_of(inner, (*way, step))


def mutated(state: Any, draw: random.Random) -> tuple[str, Any]:
    """Returns (the change, a copy of the state in which one value is replaced, missing, repeated or off by some)."""
    changed = copy.deepcopy(state)
    way = draw.choice(list(places_of(changed)))
    *above, last = way
    holder = changed
    for step in above:
        holder = holder[step]
    what = draw.choice(("put", "put", "put", "remove", "double", "change"))
    if what == "remove":
        del holder[last]
    elif what == "double" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[last]))
    elif what == "change" and type(holder[last]) is int:
        holder[last] += draw.choice((-1, 1, 7, 1000))
    else:
        value = draw.choice(VALUES)
        holder[last] = copy.deepcopy(value)
        return f"{way} = {value!r}"[:200], changed
    return f"{what} {way}", changed


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_a_mutated_state_is_refused_or_iterates(name: str, folder: Path) -> None:
    make = COMPOSITIONS[name]
    live = get_savable_loader(make(folder))
    states = []
    iterator = iter(live)
    for _ in range(3):
        states.append(json.loads(json.dumps(live.save_state_rank())))
        next(iterator, None)
    draw = random.Random(name)
    refused = 0
    for number in range(80):
        what, state = mutated(states[number % 3], draw)
        loader = get_savable_loader(make(folder))
        try:
            loader.restore_state_rank(state)
            list(islice(iter(loader), 3))
        except (StateError, ConfigError):  # a LayoutError is a ConfigError
            refused += 1
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert refused > 10


def global_batches(path: Path, **options: Any) -> Any:
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=0, global_error_handler=silent, restore_error_handler=silent
    )
    options = {"batch_size": 2, "global_batch_size": 6, "shuffle_buffer_size": 4, **options}
    return get_train_dataset(path, worker_config=config, task_encoder=Picky(), **options)


class Picky(Keys):
    @stateless(failure_tolerance=0)
    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ in ("k03", "k07"):
            raise SkipSample
        return super().encode_sample(sample)


@pytest.mark.parametrize(
    ("name", "options"),
    [("blend.yaml", {}), ("left", {}), ("left", {"repeat": False}), ("right", {"virtual_epoch_length": 2})],
)
def test_a_mutated_state_of_global_batches_is_refused_or_iterates(
    name: str, options: dict[str, Any], folder: Path
) -> None:
    """And so it is by what lists the samples that were seen, and by what writes it for other ranks."""
    dataset = global_batches(folder / name, **options)
    draw = random.Random(name)
    live = get_savable_loader(dataset)
    live.skip_steps(5, 7)
    states = []
    for number in range(1, 4):
        states.append(json.loads(json.dumps(live.save_state_rank())))
        for _ in range(7):
            next(live, None)
        if name == "blend.yaml":
            first = live.save_state_rank()["cursor"]["step"] + 1
            live.set_weights([1, number], from_step=first, until_step=first + 2 if number % 2 else None)
    uses: list[Callable[[Any], object]] = [
        lambda state: find_seen(dataset, [state]),
        lambda state: split_state(state, 3),
        lambda state: continue_with(get_savable_loader(dataset), state),
    ]
    refused = 0
    for number in range(60):
        what, state = mutated({**states[number % 3], "config": ""}, draw)
        if state.get("config") == "":
            state["config"] = states[0]["config"]
        for use in uses:
            try:
                use(copy.deepcopy(state))
            except (StateError, ConfigError):
                refused += 1
            except Exception as error:
                raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert refused > 30
    for state in states:
        for use in uses:
            use(state)


def continue_with(loader: Any, state: Any) -> None:
    with loader:
        loader.restore_state_rank(state)
        list(islice(iter(loader), 3))
        loader.save_state_rank()
        loader.stats()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"num_streams": 1 << 40}, "num_streams is missing or cannot be used"),
        ({"num_streams": True}, "num_streams is missing or cannot be used"),
        ({"world_size": 0}, "world_size is missing or cannot be used"),
        ({"streams": {"0": None, "9" * 5000: None}}, r"streams\[0\], streams\[9"),
        ({"given": {"7": 1}}, r"given\[7\]"),
        ({"config": "x" * 10}, "its config cannot be read"),
        ({"config": base64.b85encode(zlib.compress(b"[" * 100_000)).decode()}, "its config cannot be read"),
        ({"config": base64.b85encode(zlib.compress(b"[]")).decode()}, r"its config cannot be read \(it holds \[\]"),
        (
            {"config": base64.b85encode(zlib.compress(bytes(100 << 20), 1)).decode()},
            "unpacks to more than 67,108,864 bytes",
        ),
        ({"version": "x" * 10_000}, "has version 'x"),
    ],
)
def test_a_hostile_head_is_refused_at_once(damage: dict[str, Any], message: str, folder: Path) -> None:
    state = {**get_savable_loader(train(folder / "left")).save_state_rank(), **damage}
    with pytest.raises(StateError, match=message) as caught:
        get_savable_loader(train(folder / "left")).restore_state_rank(state)
    assert len(str(caught.value)) < 2500


def test_a_state_that_is_nested_without_end_is_refused(folder: Path, tmp_path: Path) -> None:
    state = get_savable_loader(train(folder / "left")).save_state_rank()
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"inner": deep}
    state["streams"]["0"]["state"] = deep
    with pytest.raises(StateError, match="nested in more than 200 levels"):
        get_savable_loader(train(folder / "left")).restore_state_rank(state)
    for content in (json.dumps(state), "[" * 100_000, "{" * 10, ""):
        file = tmp_path / "state.json"
        file.write_text(content)
        with pytest.raises(StateError, match=r"state\.json"):
            read_state_file(file)


def test_a_mutated_join_index_gives_samples_or_our_errors(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepare_metadataset(folder / "join.yaml")
    indices = list((folder / "join.yaml.cache").glob("*.bin"))
    good = indices[0].read_bytes()
    draw = random.Random(8)
    failures = 0
    assert len(list(islice(iter(get_savable_loader(train(folder / "join.yaml", JoinedKeys()))), 8))) == 8
    for _ in range(120):
        content = bytearray(good)
        place = 8 * draw.randrange(len(good) // 8)
        number = draw.choice((0, 1, -1, -2, 512, 513, 1 << 40, (1 << 63) - 1, -(1 << 63), draw.getrandbits(62)))
        content[place : place + 8] = number.to_bytes(8, "little", signed=True)
        for index in indices:
            index.write_bytes(content)
        try:
            list(islice(iter(get_savable_loader(train(folder / "join.yaml", JoinedKeys()))), 8))
        except EnergonDaliError:
            failures += 1
    assert failures
