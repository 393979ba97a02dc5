"""Validation on few samples: ranks get equally many, `len` says how many, and states of earlier releases restore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.shards import prepare_dataset
from tests.shards.tars import write_tar


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None


def texts(folder: Path, count: int, shards: int = 1, **options: Any) -> Path:
    for shard in range(shards):
        numbers = range(count * shard // shards, count * (shard + 1) // shards)
        write_tar(folder / f"shard_{shard}.tar", {f"{folder.name}{number:03}.txt": b"text" for number in numbers})
    prepare_dataset(folder, **{"split_patterns": [("train", ".*"), ("val", ".*")], **options})
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: txt}\n"
    )
    return folder


def config(rank: int, world_size: int, num_streams: int) -> WorkerConfig:
    return WorkerConfig(rank=rank, world_size=world_size, num_workers=0, num_streams=num_streams)


def several(folder: Path, count: int, samples: int) -> Path:
    for number in range(count):
        texts(folder / f"d{number}", samples)
    members = "".join(f"      - path: {folder}/d{number}\n" for number in range(count))
    place = folder / "all.yaml"
    place.write_text("__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  val:\n    blend:\n" + members)
    return place


def validation(path: Path, **layout: int) -> Any:
    return get_val_dataset(path, worker_config=config(**layout), batch_size=1, task_encoder=Texts())


def test_a_remainder_is_spread_over_the_ranks(tmp_path: Path) -> None:
    folder = texts(tmp_path / "a", 24)
    keys: list[str] = []
    for rank in range(2):
        dataset = validation(folder, rank=rank, world_size=2, num_streams=16)
        own = [batch.__key__[0] for batch in get_loader(dataset)]
        assert len(own) == len(dataset) == 12
        keys += own
    assert len(set(keys)) == 24


def test_the_spread_goes_on_over_the_datasets_of_a_tree(tmp_path: Path) -> None:
    place = several(tmp_path, 5, 24)
    lengths = [len(validation(place, rank=rank, world_size=16, num_streams=16)) for rank in range(16)]
    assert sorted(lengths) == [7] * 8 + [8] * 8
    dataset = validation(place, rank=3, world_size=16, num_streams=16)
    assert len(list(get_loader(dataset))) == lengths[3]


def test_a_rank_that_trains_on_samples_has_a_length(tmp_path: Path) -> None:
    folder = texts(tmp_path / "a", 3)
    for rank in range(8):
        dataset = get_train_dataset(
            folder,
            worker_config=config(rank, 8, 8),
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            task_encoder=Texts(),
        )
        with get_loader(dataset) as loader:
            assert next(iter(loader)) is not None
        assert len(dataset) == 1


@pytest.mark.parametrize("multiplier", [1, 2, 3, -1])
def test_the_length_of_training_is_that_of_one_pass(tmp_path: Path, multiplier: int) -> None:
    folder = texts(tmp_path / "a", 22)
    dataset = get_train_dataset(
        folder,
        worker_config=config(0, 1, 2),
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=4,
        shuffle_over_epochs_multiplier=multiplier,
        task_encoder=Texts(),
    )
    assert len(dataset) == 12  # 11 samples in each of two streams
    if multiplier == 2:
        once = get_train_dataset(
            folder,
            worker_config=config(0, 1, 2),
            batch_size=2,
            shuffle_buffer_size=None,
            max_samples_per_sequence=4,
            shuffle_over_epochs_multiplier=2,
            task_encoder=Texts(),
            repeat=False,
        )
        assert len(once) == len(list(get_loader(once))) == 22


class Grouped(Texts):
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        return int(sample.__key__[-3:]) % 5, None


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_of_groups_is_an_upper_bound(tmp_path: Path, drop_last: bool) -> None:
    folder = texts(tmp_path / "a", 49)
    dataset = get_val_dataset(
        folder, worker_config=config(0, 1, 1), batch_size=4, batch_drop_last=drop_last, task_encoder=Grouped()
    )
    batches = len(list(get_loader(dataset)))
    assert batches <= len(dataset) == (12 if drop_last else 49)
    assert drop_last or batches == 15


def taken(loader: Any, count: int) -> list[str]:
    batches = iter(loader)
    return [next(batches).__key__[0] for _ in range(count)]


def test_states_go_on_at_every_batch(tmp_path: Path) -> None:
    path = several(tmp_path, 3, 10)
    layout = {"rank": 1, "world_size": 2, "num_streams": 16}
    straight = [batch.__key__[0] for batch in get_loader(validation(path, **layout))]
    for number in range(len(straight)):
        loader = get_savable_loader(validation(path, **layout))
        assert taken(loader, number) == straight[:number]
        state = json.loads(json.dumps(loader.save_state_rank()))
        other = get_savable_loader(validation(path, **layout))
        other.restore_state_rank(state)
        assert [batch.__key__[0] for batch in other] == straight[number:]
        own = validation(path, **layout)
        live = iter(own)
        assert [next(live).__key__[0] for _ in range(number)] == straight[:number]
        copy = validation(path, **layout)
        copy.load_state_dict(json.loads(json.dumps(own.state_dict())))
        assert [batch.__key__[0] for batch in copy] == straight[number:]


@pytest.mark.parametrize("get", [get_val_dataset, get_val_datasets])
def test_a_validation_over_nothing_is_an_error_unless_it_is_wanted(tmp_path: Path, get: Any) -> None:
    ratio = {"train": 8, "val": 1, "test": 1}
    folder = texts(tmp_path / "a", 8, shards=4, split_patterns=None, split_ratio=ratio)
    options = {"worker_config": config(0, 1, 1), "batch_size": 1, "task_encoder": Texts()}
    with pytest.raises(DatasetError, match=r"no sample in the split part 'val'.*allow_empty=True"):
        get(folder, **options)
    found = get(folder, allow_empty=True, **options)
    dataset = found if get is get_val_dataset else found[0][0]
    assert list(get_loader(dataset)) == []
    with pytest.raises(ConfigError, match="has no split part 'valid'"):
        get(folder, split_part="valid", **options)


def test_one_empty_dataset_among_several_is_not_an_error(tmp_path: Path) -> None:
    place = several(tmp_path, 2, 4)
    folder = tmp_path / "d1"
    prepare_dataset(folder, split_ratio={"train": 1, "val": 0})
    assert len(validation(place, rank=0, world_size=1, num_streams=1)) == 4
    with pytest.raises(DatasetError, match="d1 has no sample"):
        get_val_datasets(place, worker_config=config(0, 1, 1), task_encoder=Texts())
