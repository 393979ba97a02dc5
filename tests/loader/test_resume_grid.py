"""Exact resume over a grid: every kind of composition, saved on 3 x 2, restored on 2 x 3, 1 x 6, 6 x 1 and 3 x 2.

All of it with samples that are skipped and samples that fail, in every hook that a composition has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    BlendDataset,
    ConcatDataset,
    Cooker,
    DefaultTaskEncoder,
    EpochizeDataset,
    LimitDataset,
    MapDataset,
    MixBatchDataset,
    PackSelection,
    SequencePacker,
    SkipSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    prepare_metadataset,
    stateless,
)
from energon_dali.datasets.base import SavableDataset
from energon_dali.loader.loader_state import merge_states
from energon_dali.shards import prepare_jsonl
from tests.datasets.oracle import check_resume
from tests.loader.dataset_folder import prepare, write_shards
from tests.part import sampled
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

STREAMS = 6


class Troubled(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Skips some samples, fails on some, and yields others twice."""

    def encode_sample(self, sample: TextSample) -> Iterator[TextSample]:  # type: ignore[override]
        number = number_of(sample)
        if number % 7 == 3:
            raise SkipSample
        if number % 11 == 5:
            raise ValueError("five of eleven")
        yield sample
        if number % 5 == 0:
            yield TextSample.extend(sample, text=f"{number} again")

    def batch(self, samples: list[TextSample]) -> list[str]:
        if number_of(samples[0]) % 13 == 12:
            raise SkipSample
        return [f"{sample.__subflavors__} {sample.text}" for sample in samples]


class Packing(Troubled):
    """Keeps every third sample once, and yields two elements for some packs and none for others."""

    def select_samples_to_pack(self, samples: list[Any]) -> PackSelection[Any]:
        if number_of(samples[0]) % 8 == 6:
            raise ValueError("none of these")
        waiting = [(sample, rounds) for sample, rounds in zip(samples, samples.rounds, strict=True)]  # type: ignore[attr-defined]
        keep = [sample for sample, rounds in waiting if not rounds and number_of(sample) % 3 == 1]
        rest = [sample for sample, rounds in waiting if rounds or number_of(sample) % 3 != 1]
        return PackSelection([rest[start : start + 2] for start in range(0, len(rest), 2)], keep=keep)

    def postencode_sample(self, sample: TextSample) -> TextSample:
        if number_of(sample) % 9 == 4:
            raise SkipSample
        return TextSample.extend(sample, text=f"<{sample.text}>")

    def pack_selected_samples(self, samples: list[TextSample]) -> Iterator[TextSample]:
        for part in range(sum(map(number_of, samples)) % 3):
            yield TextSample.extend(samples[0], text=f"{part} {' '.join(sample.text for sample in samples)}")

    def encode_batch(self, batch: list[str]) -> str:
        return " | ".join(batch)


class ByLength(Troubled):
    """Packs by length and keeps samples that fit badly."""

    packer = SequencePacker(30, length=lambda sample: 5 + number_of(sample) % 9, max_padding=0.1)

    def select_samples_to_pack(self, samples: list[Any]) -> PackSelection[Any]:
        return self.packer(samples)

    def pack_selected_samples(self, samples: list[TextSample]) -> TextSample:
        return TextSample.extend(samples[0], text=" ".join(sample.text for sample in samples))


class Grouping(Troubled):
    """Groups of different sizes."""

    def batch_group_criterion(self, sample: TextSample) -> tuple[int, int | None]:
        number = number_of(sample)
        if number % 10 == 9:
            raise SkipSample
        if number % 17 == 8:
            raise ValueError("eight of seventeen")
        return number % 3, 2 + number % 3


@stateless
def cook(sample: dict[str, Any], texts: Any) -> TextSample:
    number = sample["json"]["n"]
    if number % 6 == 4:
        raise SkipSample
    return TextSample(**basic_sample_keys(sample), text=str(texts.get(f"k{number:02d}.txt", sample)))


class Cooking(Troubled):
    """Makes samples of lines, and of files that some of them name and that do not exist."""

    cookers = (Cooker(cook),)


def number_of(sample: Any) -> int:
    return int(sample.text.strip("<>").split()[0])


def join_texts(left: TextSample, right: TextSample | None) -> TextSample:
    return TextSample.extend(left, text=f"{left.text} and {right and right.text}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("grid"))


def write_grid(base: Path) -> Path:
    """Writes the datasets of the compositions."""
    for name, count, shards in (("a", 31, 4), ("b", 17, 2), ("c", 9, 1)):
        samples = {f"k{number:02d}": {"txt": str(number).encode()} for number in range(count)}
        prepare(write_shards(base / name, samples, shards), {"text": "txt"}, "TextSample")
    (base / "lines.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(25)))  # the store ends at 16
    prepare_jsonl(str(base / "lines.jsonl"))
    joined = {
        "join": [{"path": "a"}, {"path": "b", "nonmatch": "none"}],
        "joiner": {"__module__": __name__, "__function__": "join_texts"},
    }
    nodes = {
        "blend of blends": {
            "blend": [{"path": "inner.yaml", "weight": 3}, {"path": "c", "weight": 1, "subflavors": {"of": "c"}}]
        },
        "fractional repetitions": {
            "blend_epochized": [
                {"path": "a", "repetitions": 0.4},
                {"path": "b", "repetitions": 1.5, "subflavors": {"of": "b"}},
                {"path": "c", "repetitions": 2, "subset": {"range": ["0%", "50%"]}},
            ]
        },
        "join": joined,
        "aux": {"path": "lines.jsonl", "aux": {"texts": "b"}},
    }
    inner = {"blend": [{"path": "a", "weight": 1}, {"path": "b", "weight": 2}, {"path": "b", "weight": 1}]}
    for name, node in {**nodes, "inner": inner}.items():
        file = base / f"{name}.yaml"
        file.write_text(json.dumps({"__class__": "MetadatasetV2", "splits": {"train": node}}))
    prepare_metadataset(base / "join.yaml")
    return base


def job(world: int, rank: int, workers: int = 0, streams: int = STREAMS) -> WorkerConfig:
    return WorkerConfig(
        rank=rank, world_size=world, num_workers=workers, num_streams=streams, seed_offset=5, global_error_handler=quiet
    )


def train(path: Path, config: WorkerConfig, encoder: Any = Troubled, **options: Any) -> SavableDataset[Any]:
    options = {"batch_size": 2, "shuffle_buffer_size": 6, "max_samples_per_sequence": 4, **options}
    return get_train_dataset(path, worker_config=config, task_encoder=encoder(), allow_imports=True, **options)


def mixed(folder: Path, config: WorkerConfig) -> SavableDataset[Any]:
    def mix(batches: list[list[str]]) -> str:
        if len(batches[0][0]) % 5 == 0:
            raise SkipSample
        return " ".join(text for batch in batches for text in batch)

    members = ((train(folder / name, config, batch_size=1), weight) for name, weight in (("a", 2), ("b", 1)))
    return MixBatchDataset(*members, batch_size=3, batch_mix_fn=mix)


def wrapped(folder: Path, config: WorkerConfig) -> SavableDataset[Any]:
    def unlucky(batch: Any) -> Any:
        if "13" in str(batch):
            raise ValueError("thirteen")
        return batch

    inner = BlendDataset((train(folder / "a", config, Packing, packing_buffer_size=5), 1), (mixed(folder, config), 2))
    return EpochizeDataset(
        MapDataset(BlendDataset((inner, 1), (train(folder / "c", config), 1)), unlucky), 12 // config.world_size
    )


Build = Callable[[Path, WorkerConfig], SavableDataset[Any]]
ENDLESS: dict[str, Build] = {
    "blend of blends": lambda folder, config: train(folder / "blend of blends.yaml", config),
    "fractional repetitions": lambda folder, config: train(folder / "fractional repetitions.yaml", config),
    "join": lambda folder, config: train(folder / "join.yaml", config),
    "aux": lambda folder, config: train(folder / "aux.yaml", config, Cooking),
    "mix": mixed,
    "packing": lambda folder, config: train(
        folder / "blend of blends.yaml", config, Packing, packing_buffer_size=6, packing_first_buffer_size=2
    ),
    "packing by length": lambda folder, config: train(
        folder / "join.yaml", config, ByLength, packing_buffer_size=7, batch_size=None
    ),
    "grouping": lambda folder, config: train(folder / "fractional repetitions.yaml", config, Grouping, batch_size=None),
    "blends of packs and mixes in virtual epochs": wrapped,
}


def limited(folder: Path, config: WorkerConfig) -> SavableDataset[Any]:
    def val(name: str, encoder: Any, **options: Any) -> SavableDataset[Any]:
        return get_val_dataset(
            folder / name,
            split_part="train",
            worker_config=config,
            task_encoder=encoder(),
            allow_imports=True,
            **{"batch_size": 2, **options},
        )

    parts = (
        val("join.yaml", Grouping, batch_size=None),
        val("a", Packing, packing_buffer_size=4, limit=7),
        val("aux.yaml", Cooking),
    )
    return LimitDataset(ConcatDataset(*parts), 20)


FINITE: dict[str, Build] = {
    "limits": limited,
    "one epoch": lambda folder, config: train(folder / "fractional repetitions.yaml", config, repeat=False),
    "one epoch in packs": lambda folder, config: train(
        folder / "join.yaml", config, Packing, packing_buffer_size=6, repeat=False
    ),
}


def shown(element: Any) -> str:
    return element.text if isinstance(element, TextSample) else str(element)


@pytest.mark.parametrize("name", sampled([*ENDLESS, *FINITE], 2))
def test_a_restore_at_every_element_continues_exactly(name: str, folder: Path) -> None:
    build, config = {**ENDLESS, **FINITE}[name], job(1, 0, streams=2)
    check_resume(lambda: build(folder, config), count=24, epochs=3, view=shown)


def taken(loader: Any, count: int) -> list[str]:
    """Returns elements over any number of epochs."""
    found: list[str] = []
    while len(found) < count:
        before = len(found)
        found += map(shown, islice(loader, count - before))
        assert len(found) > before, "an epoch was empty"
    return found


def taken_from_all(
    build: Build, folder: Path, world: int, begin: int, end: int, state: Any = None, workers: int = 0
) -> tuple[list[str], Any]:
    """Returns (elements `begin` to `end` of the job's order, its global state after them), on `world` ranks."""
    order: dict[int, str] = {}
    states = []
    for rank in range(world):
        config = job(world, rank, workers)
        places = [place for place in range(begin, end) if place % STREAMS in config.streams]
        with get_savable_loader(build(folder, config), start_method="fork") as loader:
            loader.restore_state_global(state)
            order.update(zip(places, taken(loader, len(places)), strict=True))
            states.append(loader.save_state_rank())
    assert sorted(order) == list(range(begin, end))
    return [order[place] for place in sorted(order)], json.loads(json.dumps(merge_states(states)))


@pytest.mark.parametrize("name", sampled(ENDLESS, 3))
def test_what_three_ranks_saved_goes_on_anywhere(name: str, folder: Path) -> None:
    build = ENDLESS[name]
    expected, _ = taken_from_all(build, folder, 1, 0, 42)
    assert len(set(expected)) > 12
    for place in (9, 18):  # within a round of the streams, and after one
        begun, state = taken_from_all(build, folder, 3, 0, place)
        assert begun == expected[:place]
        for world in (2, 1, 6, 3):
            rest, _ = taken_from_all(build, folder, world, place, 42, state)
            assert rest == expected[place:], f"on {world} ranks from {place}"


@pytest.mark.parametrize("name", ["aux", "blends of packs and mixes in virtual epochs"])
def test_workers_of_another_layout_go_on_too(name: str, folder: Path) -> None:
    build = ENDLESS[name]
    expected, _ = taken_from_all(build, folder, 1, 0, 36)
    begun, state = taken_from_all(build, folder, 3, 0, 15, workers=2)
    rest, _ = taken_from_all(build, folder, 2, 15, 36, state, workers=3)
    assert begun + rest == expected
