"""Loaders on an object store that is slow and fails now and then: the order is that of local files, nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.remote.s3_server import S3Server
from energon_dali import ConfigError, DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from energon_dali.shards.storage import buckets
from tests.forking import fork
from tests.loader.dataset_folder import prepare, write_shards

pytestmark = pytest.mark.usefixtures("warm_workers")

FAULTS = {"fault_503": 0.1, "fault_truncated": 0.1, "fault_reset": 0.1, "fault_slow": 0.05, "slow_seconds": 0.2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("buckets")
    for name, size in (("small", 20), ("large", 9000)):
        samples = {f"{name}{number:03d}": {"txt": f"{number} ".encode() * size} for number in range(90)}
        write_shards(folder / "data" / name, samples, 5)
        prepare(folder / "data" / name, {"text": "txt"}, "TextSample")
    (folder / "data" / "both.yaml").write_text(
        "__module__: energon_dali\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {path: ./small, weight: 2}\n      - {path: ./large, weight: 1}\n"
    )
    with S3Server(folder, latency_seconds=0.005) as running:
        yield running


@pytest.fixture(autouse=True)
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name in [name for name in os.environ if name.startswith(("AWS_", "MSC_"))]:
        monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(buckets, "_buckets", {})
    return server


def loader_of(path: str, num_workers: int = 2, window: int = 20, **options: Any) -> Any:
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=2),
        batch_size=4,
        shuffle_buffer_size=window,
        max_samples_per_sequence=10,
        task_encoder=DefaultTaskEncoder(),
    )
    return get_savable_loader(dataset, **options)


def keys(batches: Any, count: int) -> list[list[str]]:
    return [list(batch.__key__) for batch in islice(batches, count)]


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.sweep) for name in ("small", "large")), "both.yaml"]
)
def test_faults_change_neither_order_nor_states(server: S3Server, name: str) -> None:
    with loader_of(str(server.folder / "data" / name), 0) as local:
        expected = keys(local, 50)
    server.configure(**FAULTS)
    try:
        with loader_of(f"s3://data/{name}", requests_in_flight=4, read_ahead_bytes=1 << 20) as loader:
            assert keys(loader, 20) == expected[:20]
            state = loader.save_state_rank()
            statistics = loader.stats()
        with loader_of(f"s3://data/{name}", 0) as restored:
            restored.restore_state_rank(state)
            assert keys(restored, 30) == expected[20:]
    finally:
        server.configure(**dict.fromkeys(FAULTS, 0.0))
    assert not statistics.failures
    assert sum(statistics.retries.values()) > 0
    assert statistics.requests["bytes_wanted"] > 0
    assert statistics.requests["in_flight"] > 0
    assert "in flight" in str(statistics)


def test_a_shard_that_vanishes_costs_its_samples_alone(server: S3Server, tmp_path: Path) -> None:
    shutil.copytree(server.folder / "data" / "small", server.folder / "data" / "partial")
    lost = sorted((server.folder / "data" / "partial").glob("*.tar"))[1]
    with loader_of("s3://data/small", window=1) as whole:
        expected = {key for batch in keys(whole, 60) for key in batch}
    with loader_of("s3://data/partial", window=1) as loader:
        lost.unlink()
        found = {key for batch in keys(loader, 60) for key in batch}
        failures = loader.stats().failures
    assert failures
    assert {failure["shard"] for failure in failures} == {lost.name}
    assert found == expected - {failure["key"] for failure in failures}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_that_forks_itself_while_requests_are_in_flight(server: S3Server, workers: int) -> None:
    """Its copy may not take the loader's batches, and reads the same dataset by a loader of its own."""
    loader = loader_of("s3://data/both.yaml", workers, read_ahead_bytes=1 << 20)
    expected = keys(loader_of(str(server.folder / "data" / "both.yaml"), 0), 20)
    server.configure(latency_seconds=0.05)
    try:
        found = []
        for _ in range(2):
            found += keys(loader, 4)
            copy = fork()
            if copy == 0:
                os._exit(_use_in_a_copy(loader, expected))
            found += keys(loader, 4)
            assert os.waitpid(copy, 0)[1] == 0
    finally:
        server.configure(latency_seconds=0.005)
    assert found == expected[:16]
    loader.close()


def _use_in_a_copy(loader: Any, expected: list[list[str]]) -> int:
    """Returns 0 if a forked copy of the program can use what it inherits; ends the copy if it hangs."""
    signal.alarm(60)
    try:
        with pytest.raises(ConfigError, match="is a forked copy of it"):
            next(loader)
        assert loader.stats().batches in (4, 12)
        with get_savable_loader(loader.dataset, start_method="fork") as own:
            assert keys(own, 8) == expected[:8]
        loader.close()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
