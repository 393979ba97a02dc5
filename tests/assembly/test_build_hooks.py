"""Build hooks of task encoders: wrong results and wrong places are named. tests/compat runs programs that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energon_dali import TaskEncoder, WorkerConfig, get_train_dataset, get_val_dataset, get_val_datasets
from energon_dali.errors import ConfigError, EmptyDatasetError
from tests.loader.dataset_folder import prepare, write_shards

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=2)


class Bytes(TaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def encode_sample(self, sample: Any) -> Any:
        return sample.__key__

    def batch(self, samples: list[Any]) -> Any:
        return samples


class Builds(Bytes):
    def build_batch(self, dataset: Any, **options: Any) -> Any:
        return super().build_batch(dataset, **options)


class Packs(Bytes):
    def build_batch(self, dataset: Any, **options: Any) -> Any:
        return super().build_batch(dataset, **{**options, "packing_buffer_size": 4})


class Drops(Bytes):
    def build_val_datasets(self, **options: Any) -> Any:
        return super().build_val_datasets(**{**options, "datasets": []})


class Unlimited(Bytes):
    def build_val_datasets(self, **options: Any) -> Any:
        return super().build_val_datasets(**{**options, "limit": 0})


class Forgets(Bytes):
    def build_train_datasets(self, **options: Any) -> Any:
        self.build_encode_sample(options["datasets"][0].dataset.build())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number}": {"txt": b"text"} for number in range(12)}
    return prepare(write_shards(tmp_path_factory.mktemp("hooks"), samples), {"text": "txt"}, "TextSample")


def test_a_hook_that_calls_its_base_class_changes_no_sample(folder: Path) -> None:
    options: dict[str, Any] = {"split_part": "train", "worker_config": CONFIG, "batch_size": 5}
    for make in (get_val_dataset, lambda *args, **more: get_val_datasets(*args, **more)[0][0]):
        plain, built = (list(make(folder, task_encoder=encoder(), **options)) for encoder in (Bytes, Builds))
        assert built == plain
    plain, built = (
        sorted(
            key for keys in get_train_dataset(folder, task_encoder=encoder(), repeat=False, **options) for key in keys
        )
        for encoder in (Bytes, Builds)
    )
    assert built == plain
    assert len(built) == 12


def test_a_limit_of_0_is_no_limit(folder: Path) -> None:
    options: dict[str, Any] = {"worker_config": CONFIG, "batch_size": 2}
    whole = list(get_val_dataset(folder, task_encoder=Bytes(), **options))
    assert len(whole) > 1
    assert list(get_val_dataset(folder, task_encoder=Unlimited(), limit=1, **options)) == whole
    assert list(get_val_dataset(folder, task_encoder=Builds(), limit=0, **options)) == whole
    assert list(get_val_dataset(folder, task_encoder=Builds(), limit=1, **options)) == whole[:1]


def test_wrong_uses_are_named(folder: Path) -> None:
    options: dict[str, Any] = {"worker_config": CONFIG, "batch_size": 2}
    with pytest.raises(ConfigError, match=r"Forgets\.build_train_datasets returned None, which is not a dataset"):
        get_train_dataset(folder, task_encoder=Forgets(), **options)
    with pytest.raises(
        ConfigError, match="build_batch was given packing_buffer_size=4, and the dataset is opened with"
    ):
        get_train_dataset(folder, task_encoder=Packs(), **options)
    with pytest.raises(ConfigError, match="build_val_datasets was given no dataset"):
        get_val_dataset(folder, task_encoder=Drops(), **options)
    with pytest.raises(ConfigError, match="was called outside of get_train_dataset"):
        Builds().build_batch(get_train_dataset(folder, task_encoder=Bytes(), **options), batch_size=2)
    mixture = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": [{"path": str(folder)}] * 2}}}
    schedule = {"step": {"0": 1, "5": 2}, "over": "steps"}
    moving = {"path": str(folder), "weight": schedule}
    with pytest.raises(ConfigError, match=r"need global batches, and Builds overrides build_.*, which exclude them"):
        get_train_dataset(
            {"__class__": "MetadatasetV2", "splits": {"train": {"blend": [moving] * 2}}},
            task_encoder=Builds(),
            **options,
        )
    with pytest.raises(ConfigError, match="repeat=False for datasets that are blended by weight"):
        get_train_dataset(mixture, task_encoder=Builds(), repeat=False, **options)


def test_an_empty_part_is_named(folder: Path, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, {f"k{number}": {"txt": b"text"} for number in range(12)})
    empty = prepare(shards, {"text": "txt"}, "TextSample")
    (empty / ".nv-meta" / "split.yaml").write_text("split_parts: {train: [], val: []}\nexclude: []\n")
    for make in (get_train_dataset, get_val_dataset, get_val_datasets):
        with pytest.raises(EmptyDatasetError, match="has no sample"):
            make(empty, task_encoder=Builds(), worker_config=CONFIG, batch_size=2)
