"""A training program limits its samples before they are packed: in a build hook, each stream takes its share."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import LimitDataset, SavableDataset, TaskEncoder, TextSample, get_train_dataset
from tests.datasets.oracle import check_resume, config
from tests.loader.dataset_folder import prepare, write_shards


class FirstTen(TaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def build_encode_sample(self, dataset: Any, *, worker_config: Any) -> Any:
        encoded = super().build_encode_sample(dataset, worker_config=worker_config)
        return LimitDataset(encoded, 10, worker_config=worker_config)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[start : start + 3] for start in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text="+".join(bytes(sample.text).decode() for sample in samples))

    def batch(self, samples: list[Any]) -> Any:
        return [sample.text for sample in samples]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    samples = {f"k{number:02d}": {"txt": str(number).encode()} for number in range(24)}
    return prepare(write_shards(tmp_path / "numbers", samples, 2), {"text": "txt"}, "TextSample")


def packs(folder: Path) -> SavableDataset[Any]:
    return get_train_dataset(
        folder,
        worker_config=config(),
        batch_size=1,
        packing_buffer_size=6,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=FirstTen(),
    )


def test_every_epoch_of_training_packs_the_first_samples(folder: Path) -> None:
    dataset = packs(folder)
    first, second = ([text for (text,) in islice(dataset, 20)] for _ in range(2))
    assert first == second
    assert sum(len(text.split("+")) for text in first) == 10
    assert max(len(text.split("+")) for text in first) == 3


def test_it_resumes_at_every_pack(folder: Path) -> None:
    check_resume(lambda: packs(folder), count=12, epochs=3)
