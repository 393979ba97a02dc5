"""Processes of a job on one node read small files once, and none waits for one that has died."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import energon_dali as ed
from energon_dali.shards.storage import node_files, retry
from energon_dali.shards.storage.node_files import read_once
from tests.loader.dataset_folder import prepare, write_shards
from tests.running_time import wait_until
from tests.shards.web_server import Web, serving

FORK = get_context("fork")


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job of its own for each test; only forked processes read in it."""
    monkeypatch.setenv(node_files.VARIABLE, str(tmp_path))
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    return str(tmp_path)


def in_processes(work: Callable[..., Any], arguments: list[Any]) -> list[Any]:
    """Returns what a function returns in a process per argument, in their order; None of one that died."""

    def run(connection: Any, argument: Any) -> None:
        connection.send(work(argument))
        connection.recv()  # stays until all are done: it may keep the files of the others

    running = []
    for argument in arguments:
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=run, args=(theirs, argument))
        process.start()
        theirs.close()
        running.append((process, ours))
    found = []
    for _, ours in running:
        try:
            found.append(ours.recv() if ours.poll(60) else "nothing in 60 s")
        except EOFError:
            found.append(None)
    for process, ours in running:
        with suppress(OSError):
            ours.send("all are done")
        process.join()
    return found


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    for number in range(6):
        samples = {f"s{number}-{index}": {"txt": f"{number} {index}".encode()} for index in range(6)}
        prepare(write_shards(tmp_path / "data" / str(number), samples, 2), {"text": "txt"}, "TextSample")
    entries = "\n".join(f"      - {{path: '{number}', weight: 1}}" for number in range(6))
    (tmp_path / "data" / "all.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n" + entries + "\n"
    )
    with serving(tmp_path / "data") as web:
        yield web


def requested(web: Web) -> Counter[str]:
    """Returns how often each file besides shards was requested, and forgets it."""
    found: Counter[str] = Counter()
    for (_, name), count in web.requests.items():
        if not name.endswith(".tar"):
            found[name] += count
    web.requests.clear()
    return found


def open_and_read(url: str, times: int = 1) -> list[str]:
    """Opens a dataset as one rank of eight does, some times, and returns a batch."""
    texts: list[str] = []
    for _ in range(times):
        config = ed.WorkerConfig(rank=0, world_size=8, num_workers=0)
        dataset = ed.get_train_dataset(f"{url}/all.yaml", worker_config=config, batch_size=2)
        with ed.get_loader(dataset) as loader:
            texts = next(iter(loader)).text
    return texts


@pytest.mark.parametrize(("processes", "times"), [(3, 2), pytest.param(8, 8, marks=pytest.mark.sweep)])
def test_many_processes_request_what_one_requests(
    web: Web, monkeypatch: pytest.MonkeyPatch, processes: int, times: int
) -> None:
    monkeypatch.setenv(node_files.VARIABLE, "")
    alone = in_processes(open_and_read, [web.url])
    of_one = requested(web)
    monkeypatch.setenv(node_files.VARIABLE, "a job of several")
    together = in_processes(partial(open_and_read, times=times), [web.url] * processes)
    of_many = requested(web)
    assert together == alone * processes
    assert sum(of_one.values()) > 10
    assert of_many.keys() == of_one.keys()
    assert all(of_many[name] <= of_one[name] for name in of_one), (of_one, of_many)


def wait_for(file: Path) -> None:
    """Waits until another process has made a file."""
    assert wait_until(file.exists, 60)


def test_a_process_that_dies_while_it_fetches_leaves_nothing_that_others_wait_for(tmp_path: Path) -> None:
    kept, fetches = tmp_path / "kept", tmp_path / "fetches"

    def work(number: int) -> bytes | None:
        def fetch() -> bytes:
            with fetches.open("a") as file:
                print(number, file=file, flush=True)
            if number == 1:
                time.sleep(0.5)  # the others ask meanwhile
                os._exit(1)
            return b"content"

        if number == 0:
            read_once("another file", lambda: b"")  # becomes the keeper
            kept.touch()
        wait_for(kept if number == 1 else fetches)
        return read_once("file", fetch)

    found = in_processes(work, [0, 1, 2, 3, 4])
    assert found == [b"content", None, b"content", b"content", b"content"]
    assert len(fetches.read_text().split()) == 2


def test_when_the_keeper_dies_others_read_for_themselves_or_keep_files(tmp_path: Path) -> None:
    kept, ending = tmp_path / "kept", tmp_path / "ending"

    def work(number: int) -> Any:
        if number == 0:
            read_once("first", lambda: b"1")
            kept.touch()
            for other in (1, 2):
                wait_for(tmp_path / f"read-{other}")
            ending.touch()
            os._exit(1)
        wait_for(kept)
        first = read_once("first", lambda: b"fetched again")
        (tmp_path / f"read-{number}").touch()
        wait_for(ending)
        time.sleep(0.2)
        return [first, *(read_once(f"{name}", lambda: b"2") for name in range(3))]

    assert in_processes(work, [0, 1, 2]) == [None, *[[b"1", b"2", b"2", b"2"]] * 2]


def test_an_error_is_raised_where_it_happened_and_nowhere_else(tmp_path: Path) -> None:
    fetching = tmp_path / "fetching"

    def work(number: int) -> Any:
        def fetch() -> bytes:
            if number == 0:
                fetching.touch()
                time.sleep(0.3)  # the others ask meanwhile
                raise OSError("the disk of rank 0")
            return b"content"

        if number:
            wait_for(fetching)
        try:
            return read_once("file", fetch)
        except OSError as error:
            return str(error)

    assert in_processes(work, [0, 1, 2]) == ["the disk of rank 0", b"content", b"content"]


def test_missing_large_and_old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_files, "MOST_BYTES", 10)
    monkeypatch.setattr(node_files, "KEPT_BYTES", 25)

    def work(_: int) -> Any:
        fetched: Counter[str] = Counter()

        def read(name: str, content: bytes | None) -> bytes | None:
            def fetch() -> bytes | None:
                fetched[name] += 1
                return content

            return read_once(name, fetch)

        read("missing", None)
        assert read("missing", b"not asked again") is None
        assert read("large", bytes(11)) == read("large", bytes(11))
        for name in "abc":
            assert read(name, bytes(10)) == bytes(10)
        read("c", b"")
        read("a", b"")
        node_files.KEPT_SECONDS = 0.0
        assert read("c", b"changed") == b"changed"
        return dict(fetched)

    assert in_processes(work, [0]) == [{"missing": 1, "large": 2, "a": 2, "b": 1, "c": 2}]


def test_only_processes_of_one_job_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(node_files.VARIABLE)
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "TORCHELASTIC_RUN_ID", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert node_files.job_name() is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("MASTER_PORT", "1234")
    first = node_files.job_name()
    monkeypatch.setenv("MASTER_PORT", "1235")
    assert first is not None
    assert node_files.job_name() not in (None, first)
    monkeypatch.setenv(node_files.VARIABLE, "")
    assert node_files.job_name() is None
