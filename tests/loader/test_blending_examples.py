"""Programs as in the guides to blending: each dataset with its own task encoder, blended, chained and mixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    Batch,
    BlendDataset,
    CaptioningSample,
    ConcatDataset,
    DaliDecoder,
    DefaultTaskEncoder,
    EpochizeDataset,
    ImageSample,
    MapDataset,
    MixBatchDataset,
    SampleDecoder,
    WorkerConfig,
    batch_list,
    batch_pad_stack,
    concat_pad,
    edataclass,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    homogeneous_concat_mix,
)
from energon_dali.datasets.base import SavableDataset
from tests.loader.dataset_folder import picture, prepare, write_shards

COUNT = 40
"""Samples of each of the three datasets."""


@edataclass
class ImageBatch(Batch):
    image: torch.Tensor


@edataclass
class CaptioningBatch(Batch):
    image: torch.Tensor
    caption: list[str]


@edataclass
class ImageWithOptionalCaptionBatch(Batch):
    images: torch.Tensor
    captions: list[str | None]


class ImageTask(DefaultTaskEncoder[ImageSample, ImageSample, ImageBatch, ImageBatch]):
    """Images alone."""

    def __init__(self, decoder: Any) -> None:
        super().__init__(raw_batch_type=ImageBatch)
        self.decoder = decoder


class CaptioningTask(DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningBatch, CaptioningBatch]):
    """Images and captions, batched field by field."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def batch(self, samples: list[CaptioningSample]) -> CaptioningBatch:
        return CaptioningBatch.from_samples(
            samples,
            image=batch_pad_stack([sample.image for sample in samples]),
            caption=batch_list([sample.caption for sample in samples]),
        )


@dataclass
class WeightedCaptioningBatch:
    """A batch for a trainer that weighs its loss: of our fields only the keys."""

    __keys__: list[str]
    images: torch.Tensor
    text: torch.Tensor
    weight: float


class WeightedCaptioningTask(DefaultTaskEncoder[CaptioningSample, CaptioningSample, Any, WeightedCaptioningBatch]):
    """Gives every batch the weight of its dataset in the loss."""

    def __init__(self, decoder: Any, sample_weight: float = 1.0) -> None:
        super().__init__()
        self.decoder = decoder
        self.sample_weight = sample_weight

    def encode_batch(self, batch: CaptioningSample) -> WeightedCaptioningBatch:
        text = torch.tensor([[len(caption)] for caption in batch.caption])
        return WeightedCaptioningBatch(batch.__key__, batch.image, text, self.sample_weight)  # type: ignore[arg-type]


def optional_captions(batch: list[ImageBatch | CaptioningBatch]) -> ImageWithOptionalCaptionBatch:
    """Mixes batches of one sample each and of two types."""
    return ImageWithOptionalCaptionBatch.derive_from(
        batch[0],
        images=concat_pad([entry.image for entry in batch]),
        captions=[entry.caption[0] if isinstance(entry, CaptioningBatch) else None for entry in batch],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("blending")
    for name in ("image_dataset", "captioning_dataset_1", "captioning_dataset_2"):
        samples = {
            f"{name}/{number}": {
                "jpg": picture(number, size=(16 + 8 * (number % 2), 16)),
                "txt": f"{name} {number}".encode(),
            }
            for number in range(COUNT)
        }
        with_text = name != "image_dataset"
        prepare(
            write_shards(base / name, samples, 2),
            {"image": "jpg", **({"caption": "txt"} if with_text else {})},
            "CaptioningSample" if with_text else "ImageSample",
        )
    return base


Job = tuple[WorkerConfig, Any]


@pytest.fixture(params=["PIL in process", "PIL in 2 workers", "DALI in process", "DALI with 2 workers"])
def job(request: pytest.FixtureRequest) -> Job:
    workers = 2 if "2" in request.param else 0
    decoder = (
        SampleDecoder(image_decode="torchrgb8")
        if request.param.startswith("PIL")
        else DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    )
    return WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=2), decoder


def train(path: Path, task: Any, job: Job, batch_size: int) -> SavableDataset[Any]:
    return get_train_dataset(
        path,
        worker_config=job[0],
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=task,
    )


def batches_of(dataset: SavableDataset[Any], count: int | None = None) -> Iterator[Any]:
    with get_loader(dataset, start_method="fork") as loader:
        yield from islice(loader, count)


def assert_share(found: int, total: int, share: float) -> None:
    """Three standard deviations of `total` independent draws."""
    assert abs(found - share * total) <= 3 * sqrt(total * share * (1 - share)), (found, total, share)


def names_of(keys: list[str]) -> Counter[str]:
    return Counter(key.rpartition("/")[0] for key in keys)


def test_a_blend_gives_whole_batches_of_one_type(folder: Path, job: Job) -> None:
    blend = BlendDataset(
        (train(folder / "image_dataset", ImageTask(job[1]), job, 8), 0.6),
        (train(folder / "captioning_dataset_1", CaptioningTask(job[1]), job, 8), 0.4),
    )
    kinds: Counter[str] = Counter()
    for batch in batches_of(blend, 100):
        kinds[type(batch).__name__] += 1
        assert batch.image.shape == (8, 3, 16, batch.image.shape[3])
        assert len(batch.__key__) == 8
        name = "image_dataset" if isinstance(batch, ImageBatch) else "captioning_dataset_1"
        assert set(names_of(batch.__key__)) == {name}
        if isinstance(batch, CaptioningBatch):
            assert batch.caption == [key.replace("/", " ") for key in batch.__key__]
    assert set(kinds) == {"ImageBatch", "CaptioningBatch"}
    assert_share(kinds["ImageBatch"], 100, 0.6)


def test_validation_is_one_dataset_after_the_other(folder: Path, job: Job) -> None:
    config, decoder = job

    def val(name: str, task: Any) -> SavableDataset[Any]:
        return get_val_dataset(folder / name, worker_config=config, batch_size=8, task_encoder=task)

    whole = ConcatDataset(
        val("image_dataset", ImageTask(decoder)), val("captioning_dataset_1", CaptioningTask(decoder))
    )
    with get_loader(whole, start_method="fork") as loader:
        for _ in range(2):  # all epochs are the same
            batches = list(loader)
            kinds = [type(batch).__name__ for batch in batches]
            assert kinds == sorted(kinds, reverse=True)
            keys = [key for batch in batches for key in batch.__key__]
            assert names_of(keys) == {"image_dataset": COUNT, "captioning_dataset_1": COUNT}
            assert len(set(keys)) == 2 * COUNT


def test_a_homogeneous_mix_has_both_datasets_in_every_batch(folder: Path, job: Job) -> None:
    mix = MixBatchDataset(
        (train(folder / "captioning_dataset_1", CaptioningTask(job[1]), job, 1), 6),
        (train(folder / "captioning_dataset_2", CaptioningTask(job[1]), job, 1), 4),
        batch_size=32,
        batch_mix_fn=homogeneous_concat_mix,
    )
    epochs = MapDataset(EpochizeDataset(mix, 10), lambda batch: batch)
    found: Counter[str] = Counter()
    batches = list(batches_of(epochs))
    assert len(batches) == 10
    for batch in batches:
        assert type(batch) is CaptioningBatch
        assert batch.image.shape == (32, 3, 16, 24)
        assert batch.caption == [key.replace("/", " ") for key in batch.__key__]
        assert len(names_of(batch.__key__)) == 2
        found += names_of(batch.__key__)
    assert_share(found["captioning_dataset_1"], 320, 0.6)


def test_a_heterogeneous_mix_is_made_by_a_function_of_the_users(folder: Path, job: Job) -> None:
    mix = MixBatchDataset(
        (train(folder / "image_dataset", ImageTask(job[1]), job, 1), 6),
        (train(folder / "captioning_dataset_1", CaptioningTask(job[1]), job, 1), 4),
        batch_size=32,
        batch_mix_fn=optional_captions,
    )
    without = 0
    for batch in batches_of(mix, 8):
        assert type(batch) is ImageWithOptionalCaptionBatch
        assert batch.images.shape == (32, 3, 16, 24)
        assert len(batch.captions) == 32
        without += batch.captions.count(None)
    assert_share(without, 256, 0.6)


def test_each_dataset_has_its_weight_in_the_loss_through_its_task_encoder(folder: Path, job: Job) -> None:
    weights = {"captioning_dataset_1": 0.2, "captioning_dataset_2": 0.8}
    blend = BlendDataset(
        *(
            (train(folder / name, WeightedCaptioningTask(job[1], weight), job, 8), 0.5)
            for name, weight in weights.items()
        )
    )
    found: Counter[str] = Counter()
    for batch in batches_of(blend, 60):
        assert type(batch) is WeightedCaptioningBatch
        ((name, count),) = names_of(batch.__keys__).items()
        assert (count, batch.weight) == (8, weights[name])
        assert batch.text.shape == (8, 1)
        found[name] += 1
    assert_share(found["captioning_dataset_1"], 60, 0.5)


def test_without_a_worker_config_as_the_guide_writes_it(folder: Path) -> None:
    decoder = SampleDecoder()
    blend = BlendDataset(
        (
            get_train_dataset(
                folder / "image_dataset",
                batch_size=4,
                shuffle_buffer_size=100,
                max_samples_per_sequence=100,
                task_encoder=ImageTask(decoder),
            ),
            0.6,
        ),
        (
            get_train_dataset(
                folder / "captioning_dataset_1",
                batch_size=4,
                shuffle_buffer_size=100,
                max_samples_per_sequence=100,
                task_encoder=CaptioningTask(decoder),
            ),
            0.4,
        ),
    )
    kinds = {type(batch).__name__ for batch in batches_of(blend, 20)}
    assert kinds == {"ImageBatch", "CaptioningBatch"}
