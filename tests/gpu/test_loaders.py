"""Loaders on the device: training and validation together, a trainer with its own CUDA stream, workers, prefetching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import energon_dali as ed
from tests.gpu.observations import Observations
from tests.gpu.where import Where
from tests.loader.dataset_folder import captioning_dataset


class Means(ed.DefaultTaskEncoder):
    """Yields the mean of each image, computed on the device, with the image's caption."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def encode_sample(self, sample: Any) -> Any:
        return {"mean": sample.image.float().mean(), "caption": sample.caption}

    def batch(self, samples: list[Any]) -> Any:
        return {
            "mean": torch.stack([sample["mean"] for sample in samples]),
            "caption": [sample["caption"] for sample in samples],
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions") / "set", 32, 2)


def loader_of(folder: Path, decoder: Any, *, train: bool) -> Any:
    config, encoder = ed.WorkerConfig(rank=0, world_size=1, num_workers=0), Means(decoder)
    if not train:
        return ed.get_loader(ed.get_val_dataset(folder, worker_config=config, batch_size=4, task_encoder=encoder))
    return ed.get_loader(
        ed.get_train_dataset(
            folder,
            worker_config=config,
            batch_size=4,
            task_encoder=encoder,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
        )
    )


def means_of(folder: Path) -> dict[str, float]:
    """Returns the mean of every image by caption, from PIL."""
    loader = loader_of(folder, ed.SampleDecoder(image_decode="torchrgb8"), train=False)
    return dict(pair for batch in loader for pair in zip(batch["caption"], batch["mean"].tolist(), strict=True))


def test_training_and_validation_at_once_for_a_trainer_on_its_own_stream(
    where: Where, observe: Observations, folder: Path
) -> None:
    wanted = means_of(folder)
    decoder = where.decoder(image_decode="torchrgb8")
    seen: list[tuple[list[str], torch.Tensor]] = []
    with where.other_stream():
        loaders = [iter(loader_of(folder, decoder, train=train)) for train in (True, False)]
        for _ in range(8):
            for loader in loaders:
                batch = next(loader)
                assert batch["mean"].device.type == where.torch_device
                where.stay_busy()
                seen.append((batch["caption"], batch["mean"] * 1))
                del batch
    where.finish()
    differences = [
        abs(float(mean) - wanted[caption])
        for captions, means in seen
        for caption, mean in zip(captions, means, strict=True)
    ]
    observe(largest_difference_of_means=round(max(differences), 4), pictures=len(differences))
    assert len(differences) == 64
    assert max(differences) <= (1.0 if where.kind == "gpu" else 1e-3)
