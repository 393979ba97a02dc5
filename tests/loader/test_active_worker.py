"""Hooks find the configuration and the stream that they run for, as with Energon; the trainer's code finds none."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from tests.loader.dataset_folder import captioning_dataset


class Asking(DefaultTaskEncoder[Any, Any, Any, Any]):
    def preencode_sample(self, sample: Any) -> Any:
        sample.found = [found()]
        return sample

    def postencode_sample(self, sample: Any) -> Any:
        sample.found.append(found())
        return sample

    def batch(self, samples: list[Any]) -> Any:
        return [sample.found for sample in samples], found()

    def encode_batch(self, batch: Any) -> Any:
        return {*itertools.chain.from_iterable(batch[0]), batch[1], found()}


def found() -> tuple[int, int, int]:
    config = WorkerConfig.active_worker_config
    assert config is not None
    assert config.active_worker_config is config
    config.assert_worker()
    return config.rank, config.global_worker_id(), config.worker_seed()


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(("decoder", "workers"), [("sample", 0), ("dali", 0), ("dali", 2)])
def test_every_hook_finds_its_stream(decoder: str, workers: int, tmp_path: Path) -> None:
    folder = captioning_dataset(tmp_path / "data", count=12)
    job = WorkerConfig(rank=1, world_size=2, num_workers=workers, num_streams=4, seed_offset=5)
    encoder = Asking()
    encoder.decoder = (
        SampleDecoder(image_decode="torchrgb8")
        if decoder == "sample"
        else DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    )
    dataset = get_train_dataset(folder, worker_config=job, batch_size=2, task_encoder=encoder)
    with get_savable_loader(dataset) as loader:
        batches = []
        for batch in itertools.islice(loader, 4):
            batches.append(batch)
            assert WorkerConfig.active_worker_config is None
    streams = [(1, stream, job.worker_seed(override_local_worker_id=n)) for n, stream in enumerate(job.streams)]
    assert batches == [{stream} for stream in streams] * 2


class Counting(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int, int]] = []

    def batch(self, samples: list[Any]) -> Any:
        self.found.append(found())
        yield len(samples)


def test_hooks_that_run_for_skipped_steps_find_their_stream(tmp_path: Path) -> None:
    folder = captioning_dataset(tmp_path / "data", count=12)
    encoder = Counting()
    job = WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=5)
    dataset = get_train_dataset(folder, worker_config=job, batch_size=2, task_encoder=encoder)
    with get_savable_loader(dataset) as loader:
        loader.skip_steps(0, 3, by="plan")
        assert next(iter(loader)) == 2
    assert encoder.found == [(0, 0, job.worker_seed(override_local_worker_id=0))] * 4
