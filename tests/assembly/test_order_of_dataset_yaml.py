"""Arguments in dataset.yaml that say how samples are shuffled: they override those of the call, as in Energon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from energon_dali import TextSample, WorkerConfig, get_train_dataset, get_val_dataset
from energon_dali.errors import DatasetFormatError
from tests.loader.dataset_folder import prepare, write_shards

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number:02d}": {"txt": b"text"} for number in range(24)}
    return prepare(write_shards(tmp_path_factory.mktemp("order"), samples), {"text": "txt"}, "TextSample")


def keys(folder: Path, order: dict[str, Any], **call: Any) -> list[str]:
    """Returns the keys of an epoch with arguments in dataset.yaml, and others in the call."""
    kind = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}, "field_map": {"text": "txt"}}
    (folder / ".nv-meta" / "order.yaml").write_text(json.dumps({**kind, **order}))
    dataset = get_train_dataset(
        folder, dataset_config="order.yaml", worker_config=CONFIG, batch_size=None, repeat=False, **call
    )
    return [sample.__key__ for sample in dataset]


@pytest.mark.parametrize(
    ("name", "value", "call"),
    [
        ("max_samples_per_sequence", 2, {"max_samples_per_sequence": 2}),
        ("parallel_shard_iters", 2, {"parallel_shard_iters": 2}),
        ("shuffle_over_epochs", None, {"shuffle_over_epochs_multiplier": None}),
    ],
)
def test_it_has_the_effect_of_the_argument_of_the_call(folder: Path, name: str, value: Any, call: Any) -> None:
    expected = keys(folder, {}, **call)
    assert keys(folder, {name: value}) == expected != keys(folder, {})
    (other,) = call
    assert keys(folder, {name: value}, **{other: 1}) == expected, "it overrides the call"
    fields = {"sample_type": TextSample, "field_map": {"text": "txt"}}
    assert keys(folder, {name: value}, **fields) == expected, "whatever makes the samples"


def test_validation_stays_in_file_order(folder: Path) -> None:
    keys(folder, {"shuffle_over_epochs": 2, "max_samples_per_sequence": 2})
    dataset = get_val_dataset(folder, split_part="train", dataset_config="order.yaml", worker_config=CONFIG)
    assert [sample.__key__ for sample in dataset] == [f"k{number:02d}" for number in range(24)]


@pytest.mark.parametrize("value", [0, "four", True])
def test_a_wrong_value_is_named_with_the_file(folder: Path, value: Any) -> None:
    with pytest.raises(DatasetFormatError, match=rf"dataset\.yaml of .*max_samples_per_sequence={value!r} is invalid"):
        keys(folder, {"max_samples_per_sequence": value})
