"""A run reports once what failed, in five lines; the files that it leaves hold it too."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from energon_dali import (
    DefaultTaskEncoder,
    SavableDataLoader,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_dali.cli.main import main
from energon_dali.diagnosis.failure_logs import read_failures
from energon_dali.errors import ConfigError
from energon_dali.loader.failure_report import (
    FailureGroup,
    group_line,
    groups_of_state,
    merge_groups,
    report_entry,
    report_lines,
)
from energon_dali.loader.loader_state import merge_states, split_state
from tests.loader.dataset_folder import prepare, write_shards

COUNT = 24
ROOT = Path(__file__).parents[2]


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Fails in seven lines for some samples, and skips one."""

    decoder = None

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        number = int(sample.__key__[1:])
        if number == 20:
            raise SkipSample
        if number % 2:
            raise ValueError(f"odd: {number}.\nIt has two lines")
        if number == 2:
            raise KeyError("two")
        if number == 4:
            raise RuntimeError("four, See it: energon-dali preview /etc --index 0")
        if number == 6:
            raise OSError("six")
        if number in (8, 10):
            raise IndexError("eight")
        return sample


class Sound(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Never fails."""

    decoder = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number}": {"txt": b"%d" % number} for number in range(COUNT)}
    folder = tmp_path_factory.mktemp("failures") / "with 'quotes' in it"
    return prepare(write_shards(folder, samples), {"text": "txt"}, "TextSample")


def loader_of(folder: Path, encoder: Any = None, **config: Any) -> SavableDataLoader[Any]:
    chosen = WorkerConfig(**{"rank": 0, "world_size": 1, "num_workers": 0, "num_streams": 2, **config})
    return get_savable_loader(get_val_dataset(str(folder), worker_config=chosen, task_encoder=encoder or Encoder()))


EXPECTED = [(12, "ValueError"), (2, "IndexError"), (1, "KeyError"), (1, "OSError"), (1, "RuntimeError")]


def kinds_of(groups: list[FailureGroup]) -> list[tuple[int, str]]:
    return [(group.count, group.kind.split(": ")[1].split(" at ")[0]) for group in groups]


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "so far because of failures" in message]


def test_the_end_of_a_run_tells_it_in_five_lines(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with loader_of(folder) as loader:
        assert len(list(loader)) == COUNT - 18
    (report,) = reports(caplog)
    lines = report.splitlines()
    assert len(lines) == 5
    assert lines[0] == "17 samples were dropped so far because of failures:"
    assert lines[1].startswith("  12 x encode_sample: ValueError at ")
    command = f"energon-dali preview '{str(folder).replace(chr(39), chr(39) + chr(34) + chr(39) + chr(34) + chr(39))}'"
    assert lines[1].endswith(f"odd: 1. It has two lines. First: shard_000.tar/k1. See it: {command} --index 1")
    assert lines[4] == "  2 others, for 2 other reasons. All of them: loader.stats().failure_kinds"
    assert read_text(report) == []
    assert kinds_of(read_text("\n".join(caplog.messages))) == EXPECTED


def read_text(text: str, name: str = "run.log") -> list[FailureGroup]:
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / name
        path.write_text(text)
        return read_failures([path])


def test_runs_without_failures_say_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with loader_of(folder, Sound()) as loader:
        state = loader.save_state_rank()
        assert len(list(loader)) == COUNT
    assert not caplog.messages
    assert "failures" not in state
    assert "failures" not in loader.save_state_rank()


def test_the_report_can_be_turned_off(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENERGON_DALI_FAILURE_REPORT", "0")
    with loader_of(folder) as loader:
        list(loader)
    assert not reports(caplog)


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.sweep)], ids=["warm", "cold"])
def test_a_program_that_just_ends_tells_it_too(folder: Path, warm: bool, warm_python: str) -> None:
    """Trainers rarely close a loader, and training rarely ends an epoch."""
    program = (
        "import sys\n"
        "from tests.loader.test_failure_report import Encoder, loader_of\n"
        "from pathlib import Path\n"
        "loader = loader_of(Path(sys.argv[1]), num_workers=1)\n"
        "batches = iter(loader)\n"
        "[next(batches) for _ in range(4)]\n"
    )
    command = [warm_python if warm else sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("dropped so far because of failures:") == 1
    found = read_text(done.stderr)
    assert "ValueError" in found[0].kind
    assert found[0].dataset == str(folder)


def test_states_logs_and_statistics_tell_the_same(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "debug" / "log.jsonl"
    with loader_of(folder, worker_log_level=1, worker_debug_path=str(log)) as loader:
        list(loader)
        state, statistics = loader.save_state_rank(), loader.stats().as_dict()
    assert json.loads(json.dumps(state)) == state
    (tmp_path / "state.json").write_text(json.dumps(state))
    (tmp_path / "statistics.json").write_text(json.dumps(statistics))
    for path in (log, log.parent, tmp_path / "state.json", tmp_path / "statistics.json"):
        groups = read_failures([path])
        assert kinds_of(groups) == EXPECTED, path
        assert (groups[0].dataset, groups[0].shard, groups[0].key, groups[0].index) == (
            str(folder),
            "shard_000.tar",
            "k1",
            1,
        )
    shown = CliRunner().invoke(main, ["failures", str(tmp_path / "state.json")])
    assert shown.exit_code == 0
    assert shown.output.startswith("17 samples dropped because of failures, for 5 reasons:\n\n12 x encode_sample: ")
    assert f"    first: shard_000.tar/k1, sample 1 of {folder}\n    energon-dali preview " in shown.output
    as_json = json.loads(CliRunner().invoke(main, ["failures", "--json", str(log)]).output)
    assert [row["count"] for row in as_json] == [12, 2, 1, 1, 1]


def test_failures_of_a_state_go_on_after_a_restore(folder: Path) -> None:
    with loader_of(folder) as first:
        list(first)
        state = first.save_state_rank()
    with loader_of(folder) as second:
        second.restore_state_rank(state)
        assert groups_of_state(second.save_state_rank()) == groups_of_state(state)
        list(second)
        assert [group.count for group in groups_of_state(second.save_state_rank())] == [24, 4, 2, 2, 2]
    # The failures of all ranks are those of rank 0 afterwards, and are not multiplied.
    ranks = split_state(merge_states([state]), 2)
    assert [len(groups_of_state(rank)) for rank in ranks] == [5, 0]
    assert kinds_of(groups_of_state(merge_states(ranks))) == EXPECTED
    damaged = {**state, "failures": [{"kind": 5, "count": 1}, None, {"kind": "a: B", "count": -1}]}
    with loader_of(folder) as third:
        third.restore_state_rank(damaged)
        assert "failures" not in third.save_state_rank()


def entry_line(groups: list[FailureGroup], reporter: str, rank: int = 0) -> str:
    return json.dumps(report_entry(groups, reporter=reporter, rank=rank))


def test_reports_are_read_as_they_were_written() -> None:
    groups = [
        FailureGroup(
            "load: DecodeError at /a b/pil.py:88",
            1_234_567,
            'Part \'jpg\': cut. Off: {"event": "failures", yes\nindeed',
            "/data/x y",
            "s/1.tar",
            "k.1",
            7,
        ),
        FailureGroup("<lambda>: ValueError", 3, "", "", "", "", -1),
        FailureGroup("read: ShardError at c.py:1", 1, "gone", "s3://b/d", "b.tar", "", 0),
    ]
    line = entry_line(groups, "a", rank=3)
    text = "\n".join([*report_lines(groups, rank=3), line])
    assert (
        read_text("noise\n" + "\n".join(f"[rank3] {one}" for one in text.splitlines()) + "\nTraceback: 1 x\n") == groups
    )
    # Two processes that write into one line, and one that was killed while it wrote.
    assert read_text(f"2026-11-25 ERROR {line}{entry_line(groups[1:2], 'b')} and more\n{line[:-9]}") == [
        groups[0],
        FailureGroup("<lambda>: ValueError", 6),
        groups[2],
    ]
    # A later report of the same loader replaces the earlier one; other ranks and later runs are added.
    one, two = [FailureGroup("a: B", 2, "x")], [FailureGroup("a: B", 5, "x")]
    log = [entry_line(one, "a"), entry_line(two, "a"), entry_line(one, "b", rank=1), entry_line(one, "c")]
    assert [group.count for group in read_text("\n".join(log))] == [5 + 2 + 2]
    assert group_line(FailureGroup("a: B", 1)) == "  1 x a: B."
    assert merge_groups([]) == []


def test_two_loaders_of_one_process_are_added_up(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with loader_of(folder) as loader:
            list(loader)
    assert kinds_of(read_text("\n".join(caplog.messages))) == [(2 * count, kind) for count, kind in EXPECTED]


def test_other_files_are_explained(tmp_path: Path) -> None:
    assert read_text("nothing of interest\n") == []
    with pytest.raises(ConfigError, match="is not JSON"):
        read_text("{", "state.json")
    with pytest.raises(ConfigError, match="neither the state of a loader nor its statistics"):
        read_text("[1]", "state.json")
    with pytest.raises(ConfigError, match="holds no file that ends in"):
        read_failures([tmp_path])
    done = CliRunner().invoke(main, ["failures", str(tmp_path / "missing")])
    assert done.exit_code == 2
    for name, content in (
        ("README.md", "# No log"),
        ("table.csv", "," * 300_000),  # searching this for a number took minutes
        ("data.jsonl", '{"text": "a sample"}\n'),
        ("shard.tar", "k.txt\0\0"),
    ):
        (tmp_path / name).write_text(content)
        done = CliRunner().invoke(main, ["failures", str(tmp_path / name)])
        assert done.exit_code == 1
        assert f"{name} " in done.output
        assert "Give what a run printed, in a file that ends in .log" in done.output
    (tmp_path / "debug.jsonl").write_text('{"rank": 0, "stream": 0, "count": 0, "event": "delivered", "keys": []}\n')
    done = CliRunner().invoke(main, ["failures", str(tmp_path / "debug.jsonl")])
    assert (done.exit_code, done.output) == (0, "No failures found.\n")


def test_preview_shows_the_sample_of_the_command(folder: Path) -> None:
    done = CliRunner().invoke(main, ["preview", str(folder), "--index", "3"])
    assert done.exit_code == 0, done.output
    assert "k3, sample 3 of " in done.output
    assert "text: 3" in done.output
    done = CliRunner().invoke(main, ["preview", str(folder), "--index", "99"])
    assert (done.exit_code, "sample 99 was requested" in done.output) == (1, True)
    config = folder / ".nv-meta" / "dataset.yaml"
    text = config.read_text()
    try:
        config.write_text(text.replace('"txt"', '"jpg"'))
        done = CliRunner().invoke(main, ["preview", str(folder), "--index", "3"])
        assert (done.exit_code, "part txt: 1 bytes" in done.output) == (1, True)
        assert "This sample fails. DatasetFormatError: sample 'k3' has no part 'jpg'" in done.output
    finally:
        config.write_text(text)


def test_training_in_a_blend_keeps_the_first_example(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    dataset = get_train_dataset(str(folder), worker_config=config, task_encoder=Encoder())
    with caplog.at_level(logging.ERROR), get_savable_loader(dataset) as loader:
        for _, _ in zip(loader, range(3 * COUNT), strict=False):
            pass
        record = loader.stats()
    for kind, example in record.failure_examples.items():
        first = next(failure for failure in record.failures if failure["kind"] == kind)
        assert example == first
