"""Skipping elements moves a stream exactly as taking them does, and a plan names the samples that come."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    BlendDataset,
    ConcatDataset,
    ConfigError,
    DefaultTaskEncoder,
    EpochizeDataset,
    FilterDataset,
    TaskEncoder,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.datasets.base import SavableDataset, plan_obstacles
from energon_dali.datasets.planned import in_turn
from energon_dali.datasets.stream import StreamContext, StreamIterator
from energon_dali.shards.documents.state_entries import plain
from tests.loader.dataset_folder import prepare, write_shards
from tests.part import sampled

STREAMS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planned")
    for name, count, shards in (("a", 61, 4), ("b", 17, 2), ("few", 2, 1)):
        samples = {f"{name}{number:03d}": {"txt": f"{name} {number}".encode()} for number in range(count)}
        prepare(write_shards(root / name, samples, shards), {"text": "txt"}, "TextSample")
    return root


def blended(folder: Path, kind: str, amounts: dict[str, float]) -> str:
    key = "weight" if kind == "blend" else "repetitions"
    parts = [{"path": name, key: amount} for name, amount in amounts.items()]
    document = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {kind: parts}, "val": {kind: parts}},
    }
    path = folder / f"{kind}_{'_'.join(f'{name}{amount}' for name, amount in amounts.items())}.yaml"
    path.write_text(json.dumps(document))
    return str(path)


class Encoding(TaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: Any) -> Any:
        return sample

    def encode_batch(self, batch: Any) -> Any:
        return batch


def job(**options: Any) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=STREAMS, **options)


def tree_of(folder: Path, name: str) -> SavableDataset[Any]:
    def train(path: Any, **options: Any) -> SavableDataset[Any]:
        return get_train_dataset(path, worker_config=job(), **options)

    a, b = str(folder / "a"), str(folder / "b")
    blend, epochized = blended(folder, "blend", {"a": 3, "b": 1, "few": 0.2}), {"a": 1.5, "b": 0.4, "few": 3}
    twice = blended(folder, "blend_epochized", epochized)
    makers: dict[str, Callable[[], SavableDataset[Any]]] = {
        "samples": lambda: train(a, batch_size=None),
        "batches": lambda: train(a, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=5),
        "several epochs": lambda: train(a, batch_size=2, shuffle_over_epochs_multiplier=3),
        "drawn slices": lambda: train(a, batch_size=2, shuffle_over_epochs_multiplier=-1, max_samples_per_sequence=7),
        "file order": lambda: train(a, batch_size=4, shuffle_over_epochs_multiplier=None),
        "fewer samples than streams": lambda: train(str(folder / "few"), batch_size=2),
        "one epoch": lambda: train(a, batch_size=4, repeat=False),
        "one epoch, whole batches": lambda: train(a, batch_size=4, repeat=False, batch_drop_last=True),
        "hooks": lambda: train(a, batch_size=4, task_encoder=Encoding()),
        "blend": lambda: train(blend, batch_size=3, shuffle_buffer_size=10),
        "epochized": lambda: train(twice, batch_size=3),
        "epochized, one epoch": lambda: train(twice, batch_size=3, repeat=False),
        "validation": lambda: get_val_dataset(blend, worker_config=job(), batch_size=4),
        "blend of batches": lambda: BlendDataset(
            (train(a, batch_size=2), 2.0), (train(b, batch_size=3, repeat=False), 1.0), (train(b, batch_size=1), 1.0)
        ),
        "batches after batches": lambda: ConcatDataset(
            get_val_dataset(a, worker_config=job(), batch_size=4), get_val_dataset(b, worker_config=job(), batch_size=3)
        ),
    }
    return makers[name]()


def take(iterator: StreamIterator[Any], count: int) -> list[Any]:
    """Returns the keys of the next elements; fewer if the epoch ends."""
    keys = []
    for _ in range(count):
        try:
            keys.append(next(iterator).__key__)
        except StopIteration:
            break
    return keys


def state_of(iterator: StreamIterator[Any]) -> Any:
    return json.loads(json.dumps(plain(iterator.state_dict())))


def planned_keys(iterator: StreamIterator[Any], count: int) -> list[Any]:
    plan = iterator.plan(count)
    samples = [plan.sources[source].reader.name(shard, sample)[1] for source, shard, sample, _ in plan.rows.as_tuples()]
    return [samples[start:stop] for start, stop in pairwise(plan.starts.tolist())]


NAMES = [
    "samples",
    "batches",
    "several epochs",
    "drawn slices",
    "file order",
    "fewer samples than streams",
    "one epoch",
    "one epoch, whole batches",
    "hooks",
    "blend",
    "epochized",
    "epochized, one epoch",
    "validation",
    "blend of batches",
    "batches after batches",
]


@pytest.mark.parametrize("name", sampled(NAMES, 2))
def test_skipping_and_planning_move_as_taking_does(folder: Path, name: str) -> None:
    tree = tree_of(folder, name)
    for stream in range(STREAMS):
        for begin, count in ((0, 0), (0, 1), (0, 5), (2, 3), (0, 6), (1, 47), (3, 200)):
            taken, skipped, planned = (tree.open(StreamContext(stream)) for _ in range(3))
            for iterator in (taken, skipped, planned):
                take(iterator, begin)
            keys = take(taken, count)
            assert skipped.skip(count) == len(keys)
            as_lists = [key if isinstance(key, list) else [key] for key in keys]
            assert planned_keys(planned, count) == as_lists
            assert state_of(skipped) == state_of(planned) == state_of(taken)
            following = take(taken, 4)
            assert take(skipped, 4) == take(planned, 4) == following


def test_a_million_samples_are_skipped_at_once(folder: Path) -> None:
    tree = get_train_dataset(str(folder / "a"), worker_config=job(), batch_size=None)
    iterator = tree.open(StreamContext(1))
    assert iterator.skip(10**14) == 10**14
    before = state_of(iterator)
    again = tree.open(StreamContext(1))
    assert again.skip(10**14 - 100) + len(take(again, 100)) == 10**14
    assert state_of(again) == before


def test_what_decides_at_run_time_is_run_and_cannot_be_planned(folder: Path) -> None:
    def is_even(sample: Any) -> bool:
        return sample.__key__[-1] in "02468"

    tree = FilterDataset(get_train_dataset(str(folder / "a"), worker_config=job()), filter_fn=is_even)
    taken, skipped = (tree.open(StreamContext(0)) for _ in range(2))
    take(taken, 7)
    assert skipped.skip(7) == 7
    assert take(skipped, 3) == take(taken, 3)
    with pytest.raises(ConfigError, match="decides at run time"):
        skipped.plan(1)


def test_what_a_plan_cannot_know_is_named(folder: Path) -> None:
    def unknown(encoder: Any) -> list[str]:
        return plan_obstacles(
            EpochizeDataset(
                get_train_dataset(str(folder / "a"), worker_config=job(), batch_size=2, task_encoder=encoder), 5
            )
        )

    assert unknown(DefaultTaskEncoder()) == []
    assert [text.split()[0] for text in unknown(Encoding())] == ["encode_batch", "encode_sample"]


def test_streams_move_in_the_order_of_a_rank() -> None:
    lengths = {0: 5, 1: 0, 2: 9, 3: 2}
    order = sorted((count, stream) for stream, length in lengths.items() for count in range(length))
    for total in range(len(order) + 3):
        counts, ended, left = dict.fromkeys(lengths, 0), set[int](), dict(lengths)

        def move(stream: int, wanted: int, left: dict[int, int] = left) -> int:
            taken = min(wanted, left[stream])
            left[stream] -= taken
            return taken

        assert in_turn(list(lengths), counts, ended, total, move) == min(total, len(order))
        expected = {stream: sum(one == stream for _, one in order[:total]) for stream in lengths}
        assert counts == expected
