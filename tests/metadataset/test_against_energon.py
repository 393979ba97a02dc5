"""Metadatasets that megatron-energon 7.4.1 prepared and read mean the same in this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    Cooker,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    stateless,
)
from energon_dali.metadataset.loader import load_dataset, traverse_metadataset
from energon_dali.metadataset.reference import SourceReference

FOLDER = Path(__file__).parent.parent / "data" / "energon_7_4_1_mix"
GOLDEN: dict[str, dict[str, Any]] = json.loads((FOLDER / "golden.json").read_text())
"""Made by tests/data/make_energon_mix.py."""
SPLITS = [(name, split) for name, splits in GOLDEN.items() for split in splits]
CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=3)

pytestmark = pytest.mark.filterwarnings("ignore:.*subflavor is deprecated:DeprecationWarning")


@stateless
def cook(sample: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=f"{sample['txt']} {sample['json']['number']}")


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


def relative(path: str) -> str:
    return Path(path).name


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_the_same_sources_with_the_same_weights(name: str, split: str) -> None:
    golden = GOLDEN[name][split]
    loaded = load_dataset(FOLDER / name).get_datasets(training=True, split_part=split, worker_config=CONFIG)
    assert loaded.blend_mode.value == golden["mode"]
    for item, expected in zip(loaded.datasets, golden["leaves"], strict=True):
        source = item.dataset
        columns = [source.path] if source.join is None else [column.path for column in source.join.columns]
        assert [relative(path) for path in columns] == expected["paths"]
        assert item.weight == (None if expected["weight"] is None else pytest.approx(expected["weight"], rel=1e-12))
        assert item.repetitions == expected["repetitions"]
        assert source.shuffle_over_epochs_multiplier == expected["shuffle_over_epochs"]
        assert subset_of(source) == expected["subset"]
        if source.join is None:  # Energon's references already include those of dataset.yaml
            assert {**from_dataset_yaml(source), **source.subflavors} == expected["subflavors"]


def subset_of(source: SourceReference) -> list[Any] | None:
    if source.subset is None:
        return None
    return [
        pytest.approx(list(source.subset.share)),
        None if source.subset.numbers is None else list(source.subset.numbers),
    ]


def from_dataset_yaml(source: SourceReference) -> dict[str, Any]:
    return {"kind": "from dataset.yaml", "crude": True} if relative(source.path) == "crude" else {}


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, split in SPLITS if "join" not in name])
def test_traversal_finds_the_same_datasets(name: str, split: str) -> None:
    found = traverse_metadataset(FOLDER / name, split_part=split)
    assert [[relative(item.path), item.split_part, item.subflavors] for item in found] == GOLDEN[name][split][
        "traversed"
    ]


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_validation_holds_the_same_samples(name: str, split: str) -> None:
    dataset = get_val_dataset(FOLDER / name, split_part=split, worker_config=CONFIG, task_encoder=Encoder())
    assert samples_of(dataset) == expected_samples(GOLDEN[name][split]["validation"])
    sources = get_val_datasets(FOLDER / name, split_part=split, worker_config=CONFIG, task_encoder=Encoder())
    assert len(sources) == len(GOLDEN[name][split]["leaves"])
    assert sorted((s for source, _ in sources for s in samples_of(source)), key=json.dumps) == samples_of(dataset)


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, split in SPLITS if "epoch" in GOLDEN[name][split]])
def test_an_epoch_holds_the_same_samples_as_often(name: str, split: str) -> None:
    dataset = get_train_dataset(
        FOLDER / name,
        split_part=split,
        worker_config=CONFIG,
        task_encoder=Encoder(),
        repeat=False,
        shuffle_buffer_size=5,
        max_samples_per_sequence=3,
    )
    for _ in range(2):
        assert samples_of(dataset) == expected_samples(GOLDEN[name][split]["epoch"])


def samples_of(dataset: Any) -> list[Any]:
    """Returns key, content, subflavors and sources of an epoch, sorted."""
    found = []
    for sample in dataset:
        sources = [[relative(s.dataset_path), s.index, s.shard_name, list(s.file_names)] for s in sample.__sources__]
        content = [getattr(sample, "image", None), getattr(sample, "text", None)]
        found.append([sample.__key__, content, sample.__subflavors__, without_rows(sources)])
    return sorted(found, key=json.dumps)


def expected_samples(samples: list[Any]) -> list[Any]:
    return sorted(([*sample[:3], without_rows(sample[3])] for sample in samples), key=json.dumps)


def without_rows(sources: list[list[Any]]) -> list[list[Any]]:
    """Energon names the primary source of a joined sample twice, with rows of the join instead of sample numbers."""
    if len(sources) == 1:
        return sources
    once = {json.dumps([source[0], *source[2:]]): None for source in sources}
    return [json.loads(source) for source in once]
