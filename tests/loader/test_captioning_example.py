"""The captioning example of Energon's documentation, with the import changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    CaptioningSample,
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    batch_list,
    batch_stack,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from tests.loader.dataset_folder import captioning_dataset

pytestmark = pytest.mark.usefixtures("warm_workers")


@dataclass
class CaptioningRawBatch:
    """What batch() returns."""

    # (n,)
    __key__: list[str]
    # (n, c, h, w)
    image: torch.Tensor
    # (n,)
    caption: list[str]


@dataclass
class CaptioningBatch:
    """The input of the network."""

    __keys__: list[str]
    # (n, c, h, w)
    images: torch.Tensor
    # (n, c)
    text_tokens: torch.Tensor
    # (n, c)
    text_attn_mask: torch.Tensor


def tokenizer(captions: list[str]) -> dict[str, torch.Tensor]:
    """Replaces a tokenizer of transformers: bytes, padded."""
    longest = max(map(len, captions))
    ids = torch.zeros(len(captions), longest, dtype=torch.int64)
    mask = torch.zeros(len(captions), longest, dtype=torch.bool)
    for row, caption in enumerate(captions):
        ids[row, : len(caption)] = torch.tensor(list(caption.encode()))
        mask[row, : len(caption)] = True
    return {"input_ids": ids, "attention_mask": mask}


class CaptioningTaskEncoder(
    DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningRawBatch, CaptioningBatch]
):
    """A simple task encoder for captioning."""

    def __init__(self, tokenizer: Callable[..., Any], image_transform: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(batch_type=CaptioningBatch)
        self.tokenizer = tokenizer
        self.image_transform = image_transform

    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        sample.image = self.image_transform(sample.image)
        return sample

    def batch(self, samples: list[CaptioningSample]) -> CaptioningRawBatch:
        return self._batch(
            samples, result_type=CaptioningRawBatch, actions={"image": batch_stack, "caption": batch_list}
        )

    def encode_batch(self, batch_data: CaptioningRawBatch) -> CaptioningBatch:
        tokenized = self.tokenizer(batch_data.caption)
        return CaptioningBatch(
            __keys__=batch_data.__key__,
            images=batch_data.image,
            text_tokens=tokenized["input_ids"],
            text_attn_mask=tokenized["attention_mask"],
        )


class DaliCaptioning(CaptioningTaskEncoder):
    decoder = DaliDecoder(image_decode_device="cpu")


class PilCaptioning(CaptioningTaskEncoder):
    decoder = SampleDecoder(image_decode="torchrgb")


def top_left(image: torch.Tensor) -> torch.Tensor:
    return image[:, :48, :64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions"))


def check(batch: CaptioningBatch, size: int) -> None:
    assert batch.images.shape == (size, 3, 48, 64)
    assert batch.images.dtype == torch.float32
    assert 0 <= batch.images.min() < batch.images.max() <= 1
    assert len(batch.__keys__) == size
    texts = [
        bytes(row[mask].tolist()).decode() for row, mask in zip(batch.text_tokens, batch.text_attn_mask, strict=True)
    ]
    assert texts == [f"picture number {int(key.removeprefix('k'))}" for key in batch.__keys__]


@pytest.mark.parametrize("encoder", [CaptioningTaskEncoder, PilCaptioning, DaliCaptioning])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_training(folder: Path, encoder: type[CaptioningTaskEncoder], num_workers: int) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    dataset = get_train_dataset(
        folder,
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=config,
        task_encoder=encoder(tokenizer, top_left),
    )
    loader = get_savable_loader(dataset)
    batches = [batch for _, batch in zip(range(24), loader, strict=False)]
    for batch in batches:
        check(batch, 4)
    # Two epochs of 48 samples, each sample once in each.
    keys = [key for batch in batches for key in batch.__keys__]
    assert sorted(keys[:48]) == sorted(keys[48:]) == [f"k{n:04d}" for n in range(48)]
    assert keys[:48] != keys[48:]


def test_without_a_worker_config_and_with_an_old_keyword(folder: Path) -> None:
    with pytest.warns(DeprecationWarning, match="image_decode"):
        dataset = get_train_dataset(
            folder, batch_size=4, image_decode="torchrgb", task_encoder=CaptioningTaskEncoder(tokenizer, top_left)
        )
    loader = get_loader(dataset)
    check(next(iter(loader)), 4)


@pytest.mark.parametrize("encoder", [PilCaptioning, DaliCaptioning])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_validation(folder: Path, encoder: type[CaptioningTaskEncoder], num_workers: int) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=2)
    loader = get_loader(
        get_val_dataset(folder, batch_size=5, worker_config=config, task_encoder=encoder(tokenizer, top_left))
    )
    assert len(loader) == 10
    for _ in range(2):  # two epochs of the same loader
        batches = list(loader)
        assert [len(batch.__keys__) for batch in batches] == [5] * 8 + [4, 4]
        assert sorted(key for batch in batches for key in batch.__keys__) == [f"k{n:04d}" for n in range(48)]
        check(batches[0], 5)


def test_limited_validation_begins_at_the_beginning_again(folder: Path) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=2)
    dataset = get_val_dataset(
        folder, batch_size=4, limit=3, worker_config=config, task_encoder=PilCaptioning(tokenizer, top_left)
    )
    loader = get_loader(dataset)
    first, second = ([batch.__keys__ for batch in loader] for _ in range(2))
    assert len(first) == len(loader) == 3
    assert first == second
