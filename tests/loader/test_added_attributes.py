"""Attributes that hooks add to samples and batches reach the later hooks and the trainer, wherever these run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from tests.loader.dataset_folder import captioning_dataset


class Adding(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Each hook adds an attribute, and uses those of the hooks before it."""

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        sample.length = len(sample.caption)
        sample.again = {"image": sample.image}  # encoded or decoded, as the decoder has it here
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        ordered = sorted(samples, key=lambda sample: (sample.length, sample.__key__))
        return [ordered[start : start + 2] for start in range(0, len(ordered), 2)]

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        sample.pixels = sample.again["image"].sum()
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        packed = samples[0]
        packed.parts = [(sample.__key__, sample.length, int(sample.pixels)) for sample in samples]
        return packed

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        batch: Any = super().batch(samples)
        batch.parts = [part for sample in samples for part in getattr(sample, "parts", [(sample.__key__,)])]
        batch.lengths = torch.tensor([sample.length for sample in samples])
        return batch

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        batch.total = int(batch.lengths.sum())
        return batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("added") / "data", count=24)


def loader(folder: Path, decoder: str, workers: int, **options: Any) -> Any:
    encoder = Adding()
    encoder.decoder = (
        SampleDecoder(image_decode="torchrgb8")
        if decoder == "sample"
        else DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    )
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=1),
        batch_size=2,
        packing_buffer_size=6,
        shuffle_buffer_size=8,
        max_samples_per_sequence=10,
        task_encoder=encoder,
    )
    return get_savable_loader(dataset, **options)


def take(batches: Any, count: int) -> list[tuple[Any, ...]]:
    return [(batch.parts, batch.lengths.tolist(), batch.total) for batch in itertools.islice(batches, count)]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[Any, ...]]:
    with loader(folder, "sample", 0) as batches:
        return take(batches, 12)


def test_hooks_in_one_process(folder: Path, expected: list[tuple[Any, ...]]) -> None:
    assert all(total == sum(lengths) > 0 for _, lengths, total in expected)
    assert {len(parts) for parts, _, _ in expected} == {4}
    with loader(folder, "dali", 0) as batches:
        assert take(batches, 12) == expected


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(("decoder", "options"), [("sample", {}), ("dali", {"decode_process": True})])
def test_hooks_in_several_processes(
    decoder: str, options: dict[str, Any], folder: Path, expected: list[tuple[Any, ...]]
) -> None:
    with loader(folder, decoder, 1, **options) as batches:
        assert take(batches, 12) == expected


@pytest.mark.parametrize("decoder", ["sample", "dali"])
def test_a_restored_packing_buffer(decoder: str, folder: Path, expected: list[tuple[Any, ...]]) -> None:
    with loader(folder, decoder, 0) as first:
        take(first, 4)  # in the middle of a buffer
        state = first.save_state_rank()
    with loader(folder, decoder, 0) as second:
        second.restore_state_rank(state)
        assert take(second, 8) == expected[4:]
