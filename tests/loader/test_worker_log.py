"""Programs write lines of their own to the debug log with `WorkerConfig.worker_log`, as with Energon."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import energon_dali as ed
from energon_dali.task_encoder.context import running_stream
from tests.loader.dataset_folder import captioning_dataset


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_rank_and_each_worker_have_a_file_as_in_energon(tmp_path: Path) -> None:
    log = str(tmp_path / "new" / "{worker_id}.jsonl")
    job = ed.WorkerConfig(rank=1, world_size=2, num_workers=2, num_streams=8, worker_debug_path=log)
    job.worker_log({"t": "start", "r": 1})
    for stream in job.streams:  # 1, 3, 5, 7: two of each worker
        with running_stream(job, stream):
            job.worker_log({"stream_of": stream})
    assert lines_of(tmp_path / "new" / "3.jsonl") == [{"t": "start", "r": 1}]
    assert lines_of(tmp_path / "new" / "4.jsonl") == [{"stream_of": 1}, {"stream_of": 5}]
    assert lines_of(tmp_path / "new" / "5.jsonl") == [{"stream_of": 3}, {"stream_of": 7}]


class Logging(ed.DefaultTaskEncoder):
    decoder = None

    def encode_sample(self, sample: Any) -> Any:
        config = ed.WorkerConfig.active_worker_config
        assert config is not None
        if config.should_log(1):
            config.worker_log({"key": sample.__key__})
        return sample


def test_hooks_write_to_the_file_of_their_worker(tmp_path: Path) -> None:
    job = ed.WorkerConfig(
        rank=0, world_size=1, num_workers=1, worker_log_level=1, worker_debug_path=str(tmp_path / "{worker_id}.jsonl")
    )
    folder = captioning_dataset(tmp_path / "data", count=12)
    dataset = ed.get_train_dataset(folder, worker_config=job, batch_size=2, task_encoder=Logging())
    with ed.get_savable_loader(dataset, start_method="fork") as loader:
        keys = [key for batch in itertools.islice(loader, 3) for key in batch.__key__]
    written = [line["key"] for line in lines_of(tmp_path / "1.jsonl") if "key" in line]
    assert written[:6] == keys
    assert not any("key" in line for line in lines_of(tmp_path / "0.jsonl"))


def test_without_a_file_the_lines_go_to_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "energon_dali.debug"):
        ed.WorkerConfig(rank=0, world_size=1, num_workers=0).worker_log({"path": Path("a")})
    assert [json.loads(record.message) for record in caplog.records] == [{"path": "a"}]


def test_a_line_that_cannot_be_written_is_lost_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    job = ed.WorkerConfig(rank=0, world_size=1, num_workers=0, worker_debug_path=str(tmp_path / "file" / "log"))
    with caplog.at_level(logging.WARNING, "energon_dali.debug"):
        job.worker_log({})
    assert "The debug log lacks a line: could not write" in caplog.text
