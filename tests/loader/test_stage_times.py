"""What a loader spends its time on, in stages that do not overlap."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from energon_dali import DaliDecoder, DefaultTaskEncoder, Resize, SampleDecoder, WorkerConfig, get_loader
from energon_dali import get_train_dataset as open_dataset
from energon_dali.loader.processes import launch
from energon_dali.loader.statistics import LoaderStatistics
from tests.loader.dataset_folder import captioning_dataset
from tests.running_time import wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("stages"))


class Plain(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="torchrgb8", operations=[Resize((32, 32))])


class Hooked(Plain):
    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.002)
        return sample


class Batched(Plain):
    def batch(self, samples: list[Any]) -> Any:
        return super().batch(samples)


class Blocks(DefaultTaskEncoder):
    decoder = DaliDecoder(image_decode="torchrgb8", operations=[Resize((32, 32))], image_decode_device="cpu")


def statistics(folder: Path, encoder: DefaultTaskEncoder, num_workers: int = 0) -> LoaderStatistics:
    dataset = open_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=2),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=encoder,
    )
    with get_loader(dataset, **({"start_method": "fork"} if num_workers else {})) as loader:
        assert list(loader)
    return loader.stats()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_decoding_in_workers_is_a_stage(folder: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_GRACE_SECONDS", 60.0)  # a killed worker reports no last times: let none be too slow
    found = statistics(folder, Hooked(), num_workers)
    seconds = found.stage_seconds
    assert seconds["decode"] > 0
    assert seconds["load"] > 0
    assert seconds["encode_sample"] >= 40 * 0.002
    assert found.cpu_seconds["encode_sample"] < 0.5 * seconds["encode_sample"]
    assert seconds["start"] > 0
    assert all(found.cpu_seconds[stage] <= seconds[stage] for stage in seconds)
    if num_workers:
        assert seconds["wait for workers"] > 0


def test_decoding_of_blocks_is_a_stage(folder: Path) -> None:
    found = statistics(folder, Blocks())
    assert 0 < found.stage_seconds["decode"] < found.elapsed_seconds
    assert found.cpu_seconds.get("decode", 0.0) == 0.0  # in threads of the decoder


@pytest.mark.parametrize(("encoder", "hooks"), [(Plain, []), (Hooked, ["encode_sample"]), (Batched, ["batch"])])
def test_hooks_are_those_of_the_user(folder: Path, encoder: type[DefaultTaskEncoder], hooks: list[str]) -> None:
    found = statistics(folder, encoder())
    assert found.hooks == hooks
    assert "batch" in found.stage_seconds


def test_the_stages_of_a_worker_are_its_time(folder: Path) -> None:
    dataset = open_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=1, num_streams=1),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Plain(),
    )
    began = time.perf_counter()
    with get_loader(dataset, start_method="fork") as loader:
        next(loader)
        (report,) = loader._metrics.other_reports()

        def idles() -> bool:
            nonlocal report
            (report,) = loader._metrics.other_reports()
            accounted = sum(report.seconds.values()) > 0.5 * (report.written - began)  # starting took the rest
            return report.seconds.get("wait for trainer", 0) > 0.2 and accounted

        assert wait_until(idles, 20)
        assert report.process == "worker 0"
        assert sum(report.seconds.values()) <= report.written - began
        assert loader.stats().stage_seconds["wait for trainer"] >= report.seconds["wait for trainer"]
