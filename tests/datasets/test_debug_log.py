from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from energon_dali import LogSampleDataset, WorkerConfig
from energon_dali.diagnosis.debug_logs import DebugLogs, find_logs
from energon_dali.errors import ConfigError
from tests.datasets.oracle import Counting, config, take
from tests.full_disk import largest_file


def test_a_line_for_each_delivered_element(tmp_path: Path) -> None:
    job = config(2, worker_log_level=1, worker_debug_path=str(tmp_path / "log" / "rank_{worker_id}.jsonl"))
    take(Counting(5, job), 10)
    lines = [json.loads(line) for line in (tmp_path / "log" / "rank_0.jsonl").read_text().splitlines()]
    assert [(line["stream"], line["count"], line["keys"]) for line in lines] == [
        (number % 2, number // 2, f"sample{number}") for number in range(5)
    ]


def test_each_worker_has_a_file_as_in_energon(tmp_path: Path) -> None:
    log = str(tmp_path / "{worker_id}.jsonl")
    job = WorkerConfig(
        rank=1, world_size=2, num_workers=2, num_streams=8, worker_log_level=1, worker_debug_path=log
    )  # its streams are 1, 3, 5, 7: two of each worker
    take(LogSampleDataset(Counting(16, job), "train"), 20)
    lines = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(tmp_path.iterdir())
    }
    assert sorted(lines) == ["3", "4", "5"]
    assert [line["stream"] for line in lines["3"]] == [1, 3, 5, 7, 1, 3, 5, 7]
    assert {line["event"] for line in lines["3"]} == {"delivered"}
    for name, streams in (("4", [1, 5]), ("5", [3, 7])):
        assert {line["event"] for line in lines[name]} == {"logged"}
        assert sorted({line["stream"] for line in lines[name]}) == streams
        keys = {line["keys"] for line in lines["3"] if line["stream"] in streams}
        assert {line["keys"] for line in lines[name]} == keys
    logs = DebugLogs(find_logs([tmp_path]))
    assert logs.deliveries(["train"]).num_steps == 8, "a line of a worker's file is no further delivery"


def test_without_a_file_the_lines_go_to_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "energon_dali.debug"):
        take(Counting(2, config(1, worker_log_level=1)), 10)
    assert [json.loads(record.message)["keys"] for record in caplog.records] == ["sample0", "sample1"]


def test_nothing_is_logged_unless_asked_for(tmp_path: Path) -> None:
    take(Counting(2, config(1, worker_debug_path=str(tmp_path / "log"))), 10)
    assert not (tmp_path / "log").exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="worker_debug_path"):
        take(Counting(2, config(1, worker_log_level=1, worker_debug_path=str(tmp_path / "file" / "log"))), 1)


def test_a_full_disk_ends_the_log_but_not_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = config(1, worker_log_level=1, worker_debug_path=str(tmp_path / "log.jsonl"))
    with largest_file(100), caplog.at_level(logging.WARNING, "energon_dali.debug"):
        assert len(take(Counting(9, job), 10)) == 9
    assert [record.message.partition(str(tmp_path))[0] for record in caplog.records] == [
        "The debug log stops here, and training continues without it: could not write "
    ]
    assert "ulimit -f" in caplog.records[0].message
