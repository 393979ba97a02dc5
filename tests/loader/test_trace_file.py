from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    ConfigError,
    DaliDecoder,
    DefaultTaskEncoder,
    Resize,
    SampleDecoder,
    SkipSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energon_dali.datasets import trace
from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.trace import TracedMetrics
from energon_dali.loader import basic_loader
from energon_dali.loader.advice import Diagnosis, diagnose
from energon_dali.loader.processes import launch
from energon_dali.loader.trace_file import TraceFile
from tests.forking import fork
from tests.loader.dataset_folder import captioning_dataset
from tests.loader.numbers_dataset import Mishap, tree
from tests.running_time import wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("traced"))


class Encoder(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="torchrgb8", operations=[Resize((32, 32))])

    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ == "k0007":
            raise SkipSample
        if sample.__key__ == "k0008":
            raise ValueError("a sample that the hook refuses")
        return sample


class DaliEncoder(Encoder):
    decoder = DaliDecoder(image_decode="torchrgb8", operations=[Resize((32, 32))], image_decode_device="cpu")


def numbers(path: Path, **options: Any) -> Any:
    """Returns a loader of numbers, without processes, whose trace is written to `path`."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=4, trace_path=path, **options)
    return get_loader(tree(config, lengths=[1000] * 4))


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Returns the events of a trace, after checking them against the Trace Event Format."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    open_spans: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    spans: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    overlapping: dict[tuple[str, str], float] = {}
    names: set[tuple[int, int]] = set()
    processes: set[int] = set()
    for event in events:
        assert isinstance(event["name"], str), event
        assert isinstance(event["pid"], int), event
        assert isinstance(event["tid"], int), event
        lane = event["pid"], event["tid"]
        phase = event["ph"]
        if phase == "M":
            assert event["name"] in ("process_name", "process_sort_index", "process_labels", "thread_name"), event
            names |= {lane} if event["name"] == "thread_name" else set()
            processes |= {event["pid"]} if event["name"] == "process_name" else set()
            continue
        assert isinstance(event["cat"], str), event
        assert event["ts"] > 0, event
        if phase == "X":
            assert event["dur"] >= 0, event
            spans[lane].append((event["ts"], event["ts"] + event["dur"]))
        elif phase == "B":
            open_spans[lane].append(event)
        elif phase == "E":
            assert open_spans[lane].pop()["name"] == event["name"], event
        elif phase == "b":
            overlapping[event["cat"], event["id"]] = event["ts"]
        elif phase == "e":
            assert overlapping.pop((event["cat"], event["id"])) <= event["ts"], event
        elif phase == "i":
            assert event["s"] == "t", event
        else:
            assert phase == "C", event
            assert all(isinstance(value, (int, float)) for value in event["args"].values()), event
        # A viewer shows every lane and process by its name, which is written before the first event.
        assert lane in names, event
        assert event["pid"] in processes, event
    assert not overlapping
    for rows in spans.values():  # spans of a lane follow each other; times are rounded to nanoseconds
        rows.sort()
        assert all(first[1] <= second[0] + 0.002 for first, second in pairwise(rows))
    return events


def count(events: list[dict[str, Any]], phase: str) -> Counter[str]:
    return Counter(event["cat"] for event in events if event["ph"] == phase)


def own_times(events: list[dict[str, Any]], stages: set[str]) -> Counter[str]:
    """Returns the time of the spans of each stage, without that of the spans inside them."""
    seconds: Counter[str] = Counter()
    for pid in {event["pid"] for event in events}:
        spans = [event for event in events if event["ph"] == "X" and event["cat"] in stages and event["pid"] == pid]
        around: list[dict[str, Any]] = []
        for span in sorted(spans, key=lambda event: (event["ts"], -event["dur"])):
            while around and around[-1]["ts"] + around[-1]["dur"] < span["ts"] + 0.5 * span["dur"]:
                around.pop()
            if around:
                seconds[around[-1]["cat"]] -= span["dur"] / 1e6
            seconds[span["cat"]] += span["dur"] / 1e6
            around.append(span)
    return seconds


def test_every_batch_and_wait_of_workers_is_in_the_trace(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnoses: list[Diagnosis] = []

    def keep(*given: Any, **options: Any) -> Diagnosis:
        assert options == {"num_workers": 2}
        diagnoses.append(diagnose(*given, **options))
        return diagnoses[-1]

    monkeypatch.setattr(basic_loader, "diagnose", keep)
    monkeypatch.setattr(launch, "_GRACE_SECONDS", 60.0)  # a killed worker sends no last spans: let none be too slow
    path = tmp_path / "new" / "trace-{rank}.json"
    config = WorkerConfig(rank=0, world_size=1, num_workers=2, num_streams=4, trace_path=path)
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=Encoder(),
    )
    with get_loader(dataset, start_method="fork") as loader:
        batches = sum(1 for _ in loader)
    statistics = loader.stats()
    events = read_trace(tmp_path / "new" / "trace-0.json")
    waits = [event["args"] for event in events if event["ph"] == "E" and event["name"] == "wait"]
    assert waits == [*({"batch": number + 1} for number in range(batches)), {"no batch": "the epoch is over"}]
    spans, instants = count(events, "X"), count(events, "i")
    assert spans["trainer"] == batches  # a step after each batch
    assert spans["batch"] == batches
    assert spans["blocks"] == statistics.counts["blocks"]
    assert spans["load"] == statistics.counts["samples.read"] == spans["encode_sample"] == 48
    assert spans["decode"] == statistics.routes["pil"] == 48
    assert (
        instants["dropped samples"] == statistics.counts["samples.skipped"] + statistics.counts["samples.failed"] == 2
    )
    (advice,) = (event for event in events if event.get("cat") == "advice")
    (found,) = diagnoses
    assert advice["name"] == f"limit: {found.cause}"
    assert advice["args"] == {"finding": found.finding, "remedy": found.remedy}
    pids = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(pids.values()) == ["rank 0: trainer", "rank 0: worker 0", "rank 0: worker 1"]
    seconds = own_times(events, set(statistics.stage_seconds))
    measured = statistics.stage_seconds
    del measured["wait for trainer"], measured["worker"]  # workers are in them when they send their last spans
    for stage, expected in measured.items():
        assert seconds[stage] == pytest.approx(expected, abs=1e-4), stage


def test_blocks_that_dali_decodes_are_spans_that_may_overlap(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=2, trace_path=path)
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=DaliEncoder(),
    )
    with get_loader(dataset) as loader:
        assert len(list(islice(loader, 6))) == 6
    events = read_trace(path)
    media = [event["args"]["media"] for event in events if event["ph"] == "b"]
    assert sum(media) >= sum(loader.stats().routes.values()) >= 24
    assert count(events, "e")["decode"] == len(media) <= count(events, "X")["wait for decode"] + 2
    assert {event["args"]["batch"] for event in events if event["ph"] == "E"} == set(range(1, 7))


def kill_when(path: Path, text: bytes, run: Callable[[], object]) -> list[dict[str, Any]]:
    """Returns the trace of a run in a forked process that was killed after it had written a text."""
    child = fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(1)
    try:
        assert wait_until(lambda: path.exists() and text in path.read_bytes(), 20)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return read_trace(path)


def test_a_killed_run_leaves_a_trace_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def run() -> None:
        for number, _ in enumerate(numbers(path)):
            if number == 100:
                time.sleep(1000)

    events = kill_when(path, b'"batch": 101', run)
    assert [event["args"]["batch"] for event in events if event["ph"] == "E"] == list(range(1, 102))


def test_a_run_that_is_killed_while_it_waits_shows_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=4, trace_path=path)
    events = kill_when(path, b'"wait"', lambda: next(get_loader(tree(config, mishap=Mishap(0, 0, "hang")))))
    shown = [(event["ph"], event["name"]) for event in events if event["ph"] != "M" and event["name"] != "start"]
    assert shown == [("B", "wait")]


def test_an_older_trace_is_replaced_and_loaders_of_one_process_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" + "x" * 10_000)
    with numbers(path) as first, numbers(path) as second:
        next(first), next(second), next(second)
    events = read_trace(path)
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    ends = [lanes[event["tid"]] for event in events if event["ph"] == "E"]
    assert sorted(ends) == ["trainer", "trainer, loader 2", "trainer, loader 2"]


def test_a_loader_goes_on_when_its_trace_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "trace.json"
    with caplog.at_level(logging.WARNING, "energon_dali"), numbers(path, trace_max_bytes=5000) as loader:
        assert len(list(islice(loader, 100))) == 100
        loader.close()
        assert len(list(islice(loader, 50))) == 50
    assert 3000 < path.stat().st_size <= 5000
    assert read_trace(path)[-1]["name"] == "the trace is full"
    assert "has reached trace_max_bytes=5000" in caplog.text


def test_a_loader_goes_on_when_its_trace_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with numbers(tmp_path / "trace.json") as loader:
        monkeypatch.setattr(os, "pwrite", lambda *_: 0)
        assert len(list(islice(loader, 10))) == 10
    assert "The trace ends here, and training continues without it" in caplog.text


def test_what_waits_to_be_sent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "KEPT_EVENTS", 100)
    metrics = TracedMetrics("a worker", 2)
    clock = metrics.clock("load")
    for _ in range(150):
        clock.end(clock.begin())
    record = metrics.drain()
    assert record is not None
    assert len(record["events"]) == 100
    assert record["counts"] == {"trace.dropped": 50}
    assert metrics.drain() is None


def test_a_report_that_could_not_be_sent_keeps_its_events() -> None:
    metrics = TracedMetrics("a worker", 2)
    clock = metrics.clock("load")
    clock.end(clock.begin())
    metrics.count("loaded")
    record = metrics.drain()
    metrics.merge(record, again=True)
    assert metrics.drain() == record
    plain = Metrics()
    plain.merge(record)
    assert plain.snapshot()["counts"] == {"loaded": 1}


def test_without_a_trace_nothing_is_kept(tmp_path: Path) -> None:
    loader = get_loader(tree(WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=4)))
    assert type(loader._metrics) is Metrics


@pytest.mark.parametrize(
    ("path", "world_size", "message"),
    [
        ("trace.json", 2, "same file for all 2 ranks. Put {rank} into it"),
        ("trace-{worker}.json", 1, "braces with another content than {rank} and {pid}"),
    ],
)
def test_paths_that_cannot_work(path: str, world_size: int, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        WorkerConfig(rank=0, world_size=world_size, num_workers=0, trace_path=path)
    assert message in str(error.value)


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*Give a path in a folder"):
        numbers(tmp_path / "file" / "trace.json")


def test_ranks_write_files_of_their_own(tmp_path: Path) -> None:
    for rank in range(2):
        config = WorkerConfig(rank=rank, world_size=2, num_workers=0, trace_path=tmp_path / "trace-{rank}.json")
        with get_loader(tree(config, lengths=[3, 3])) as loader:
            assert len(list(loader)) == 3
    for rank in range(2):
        events = read_trace(tmp_path / f"trace-{rank}.json")
        (name,) = {event["args"]["name"] for event in events if event["name"] == "process_name"}
        assert name == f"rank {rank}: trainer"


def test_a_forked_copy_does_not_write(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "trace.json"), 2**20)
    metrics = TracedMetrics("the trainer", 0, file.add)
    child = fork()
    if child == 0:
        metrics.clock("load").end(metrics.clock("load").begin())
        file.flush()
        os._exit(0)
    os.waitpid(child, 0)
    metrics.clock("read").end(metrics.clock("read").begin())
    file.flush()
    assert [event["name"] for event in read_trace(tmp_path / "trace.json") if event["ph"] == "X"] == ["read"]
