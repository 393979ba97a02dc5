"""A loader with a decode process delivers the same as without: batches, epochs, states, errors, statistics."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.cache import FileStoreCachePool
from energon_dali.datasets.wrappers.epochize import EpochizeDataset, LimitDataset
from energon_dali.errors import ConfigError, WatchdogTimeoutError, WorkerDiedError, WorkerError
from energon_dali.loader import prefetcher
from energon_dali.loader.decode_process.process import check_fork
from energon_dali.loader.get_loader import get_loader, get_savable_loader
from energon_dali.loader.processes import launch
from energon_dali.worker_config import WorkerConfig
from tests.loader.numbers_dataset import LENGTHS, Mishap, tree
from tests.running_time import wait_until

LAYOUTS = [(0, False), (2, False), (4, True)]


def place(workers: int = 0, streams: int = len(LENGTHS)) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=streams)


def loader(config: WorkerConfig, *, rank_work: bool = False, start_method: str = "fork", **options: Any) -> Any:
    names = ("lengths", "mishap", "make", "seconds", "block_size")
    parts = {name: options.pop(name) for name in names if name in options}
    options = {"decode_process": True, "start_method": start_method, **options}
    return get_savable_loader(tree(config, rank_work=rank_work, **parts), **options)


def expected(epoch: int) -> list[tuple[int, int, int]]:
    places = ((stream, epoch, at) for stream, length in enumerate(LENGTHS) for at in range(length))
    return sorted(places, key=lambda element: (element[2], element[0]))


def open_files() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            continue
    return found


def children() -> set[int]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread is ending
            found.update(map(int, (task / "children").read_text().split()))
    return found


@pytest.fixture(scope="module", autouse=True)
def _fork_server(warm_fork_server: None) -> None:
    """Starts Python's fork server before anything is counted."""


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    gc.collect()
    before = open_files(), set(threading.enumerate()), children()
    yield
    gc.collect()
    assert open_files() - before[0] == set()
    assert set(threading.enumerate()) <= before[1]  # those of other tests may end meanwhile
    assert children() <= before[2]


@pytest.mark.parametrize(("workers", "rank_work"), LAYOUTS)
def test_epochs_breaks_and_a_closed_loader_go_on_in_order(workers: int, rank_work: bool) -> None:
    with loader(place(workers), rank_work=rank_work) as batches:
        assert [batch[:3] for batch in batches] == expected(0)
        got = [batch[:3] for batch in islice(batches, 4)]
        got += [batch[:3] for batch in islice(batches, 3)]
        batches.close()
        batches.close()
        iterator = iter(batches)
        got += [batch[:3] for batch in iterator]
        assert got == expected(1)
        with pytest.raises(StopIteration):
            next(iterator)
        assert [batch[:3] for batch in batches] == expected(2)
        if rank_work:  # a hook of the rank: in the main thread of another process
            assert next(iter(batches))[3] == "MainThread"


@pytest.mark.usefixtures("warm_workers")
def test_a_fork_server_starts_it_too() -> None:
    with loader(place(2), rank_work=True, start_method="forkserver") as batches:
        assert [batch[:3] for batch in batches] == expected(0)


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(
    ("workers", "rank_work", "every"),
    [*(pytest.param(*one, 1, marks=pytest.mark.sweep) for one in LAYOUTS), (*LAYOUTS[-1], 5)],
)
def test_a_state_before_every_batch_restores_exactly(workers: int, rank_work: bool, every: int) -> None:
    """The resume oracle, over two epochs: here and in a decode process, from states of either."""
    states: dict[bool, list[Any]] = {}
    for process in (True, False):
        with loader(place(workers), rank_work=rank_work, decode_process=process) as batches:
            states[process] = [batches.save_state_rank()]
            for _ in range(2):
                for _ in batches:
                    states[process].append(json.loads(json.dumps(batches.save_state_rank())))
                states[process].append(batches.save_state_rank())  # the end of the epoch has been seen
    assert states[True] == states[False]
    everything = [*expected(0), None, *expected(1), None]
    assert len(states[True]) == len(everything) + 1
    for taken, state in list(enumerate(states[True][:-1]))[::every]:
        process = taken % 3 != 1  # two of three restore into a decode process, the others into this process
        with loader(place(0 if taken % 4 else 2), rank_work=rank_work, decode_process=process) as again:
            again.restore_state_rank(state)
            assert again.save_state_rank() == state
            got: list[Any] = []
            while len(got) < len(everything) - taken:
                got += [*(batch[:3] for batch in again), None]
            assert got == everything[taken:], f"after a restore at {taken}"
            assert again.save_state_rank() == states[True][-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_limited_and_virtual_epochs(workers: int) -> None:
    for wrap, second in ((LimitDataset, expected(0)[:6]), (EpochizeDataset, expected(0)[6:12])):
        with get_loader(wrap(tree(place(workers)), 6), start_method="fork", decode_process=True) as batches:
            assert [list(batches) for _ in range(2)] == [expected(0)[:6], second]


def grown(stream: int, epoch: int, at: int) -> dict[str, Any]:
    """A batch whose size changes from one to the next by several orders of magnitude."""
    size = (3, 50, 3000, 200_000, 1, 70_000, 900)[at % 7]
    return {"at": at, "x": torch.full((size,), at % 251, dtype=torch.int64), "y": np.full(size, at), "label": at}


def test_batches_that_are_held_are_never_overwritten_and_outlive_the_process() -> None:
    batches = loader(place(1, 1), lengths=[80], make=grown, block_size=4)
    iterator = iter(batches)
    held = []
    for at in range(60):
        batch = next(iterator)
        assert batch["at"] == at
        if at % 3 == 0:
            held.append(batch["x"])  # a single tensor of the batch
        if at % 10 == 5:
            held[0] += 0  # and another is dropped in between
            held.pop(1)
    batches.close()
    for tensor in held:
        assert len(set(tensor.tolist())) == 1
        tensor += 1
    values = [int(tensor[0]) - 1 for tensor in held]
    assert values == sorted(values)
    assert len(values) == 14


def open_files_at_rest(batches: Any) -> int:
    """Returns how many files are open while the receiving thread waits."""
    assert wait_until(lambda: batches._prefetcher.occupancy == 1.0, 60)
    return len(os.listdir("/proc/self/fd"))


def arenas_of(pid: int | str) -> int:
    return sum("energon-dali-block" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


def test_memory_returns_when_the_last_view_is_dropped() -> None:
    make = large
    batches = loader(place(0, 1), lengths=[10_000], make=make, prefetch_factor=2)
    iterator = iter(batches)
    for _ in range(60):
        next(iterator)
    pid = batches._prefetcher.process.pid
    assert 1 <= arenas_of(pid) <= 5
    files = open_files_at_rest(batches)
    held = [next(iterator)["one"] for _ in range(50)]
    assert arenas_of(pid) >= 50
    assert open_files_at_rest(batches) == files
    assert [int(tensor[7]) for tensor in held] == [at % 251 for at in range(60, 110)]
    del held
    for _ in range(20):
        next(iterator)
    assert arenas_of(pid) <= 7
    batches.close()
    del iterator
    gc.collect()
    assert arenas_of("self") == 0


def large(stream: int, epoch: int, at: int) -> dict[str, Any]:
    return {name: torch.full((40_000,), at % 251, dtype=torch.uint8) for name in ("one", "two")}


def leaves(stream: int, epoch: int, at: int) -> None:
    raise SystemExit(4)


def test_an_exception_arrives_as_what_it_is_with_its_traceback() -> None:
    for workers, where in ((0, "the decode process"), (1, "worker 0")):
        batches = loader(place(workers, 1), lengths=[9], mishap=Mishap(0, 5, "raise"), block_size=1)
        got = []
        with pytest.raises(ValueError, match="did not like it") as caught:
            got.extend(batches)
        assert [batch[2] for batch in got] == [0, 1, 2, 3, 4]
        text = str(caught.value.__cause__)
        assert "In the decode process:" in text
        assert "numbers_dataset.py" in text
        assert f"In {where}" in text
        assert batches._prefetcher is None
        with pytest.raises(ValueError, match="did not like it"):  # the next attempt stops at the same element
            list(batches)
    batches = loader(place(0, 1), lengths=[3], mishap=Mishap(0, 1, "raise-odd"), block_size=1)
    with pytest.raises(WorkerError, match=r"decode process failed with an exception that cannot travel.*odd 1 2"):
        list(batches)
    batches = loader(place(0, 1), lengths=[3], make=leaves, block_size=1)
    with pytest.raises(WorkerError, match="SystemExit: 4"):
        list(batches)
    batches = loader(place(0, 1), lengths=[3], mishap=Mishap(0, 1, "unpicklable"), block_size=1)
    with pytest.raises(TypeError, match="generator"):
        list(batches)


@pytest.mark.parametrize(
    ("workers", "kind", "said"),
    [
        (0, "kill", "decode process of rank 0 .* killed by SIGKILL"),
        (0, "exit", "decode process .* exit code 7"),
        (2, "kill", "Worker 1 of rank 0 .* killed by SIGKILL"),
    ],
)
def test_a_process_that_dies_is_an_error_that_says_how(workers: int, kind: str, said: str) -> None:
    batches = loader(place(workers, 2), lengths=[9, 9], mishap=Mishap(1, 4, kind), block_size=1)
    got = []
    with pytest.raises(WorkerDiedError, match=said):
        got.extend(batches)
    assert [batch[:3] for batch in got] == sorted(
        ((stream, 0, at) for at in range(5) for stream in range(2)), key=lambda e: (e[2], e[0])
    )[: len(got)]
    state = batches.save_state_rank()
    with loader(place(workers, 2), lengths=[9, 9]) as again:
        again.restore_state_rank(state)
        assert len(list(again)) == 18 - len(got)


def test_statistics_of_the_other_process_are_the_loaders() -> None:
    counts = {}
    for process in (False, True):
        with loader(place(2), rank_work=True, decode_process=process) as batches:
            for _ in batches:
                pass
            stats = batches.stats()
            assert stats.counts["made"] == 15
            assert stats.batches == 15
            assert stats.stage_seconds["rank"] > 0
            counts[process] = {k: v for k, v in stats.counts.items() if not k.startswith("decode_process.")}
            if process:
                assert stats.counts["decode_process.batches"] == 15
                assert stats.counts["decode_process.bytes"] > 0
            for _ in islice(batches, 2):
                pass
        assert batches.stats().counts["made"] >= 17  # including those made ahead, which are counted at the end
    assert counts[True] == counts[False]


def test_prefetch_factor_is_how_far_it_runs_ahead() -> None:
    with loader(place(0, 1), lengths=[100], prefetch_factor=3, block_size=1) as batches:
        next(iter(batches))
        batches.close()
        assert batches.stats().counts["decode_process.batches"] <= 1 + 1 + 3


def test_the_watchdog_warns_and_has_all_processes_show_their_stacks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, stacks, shown_all = tmp_path / "begun", tmp_path / "stacks", tmp_path / "shown"

    def slow_second(stream: int, epoch: int, at: int) -> tuple[int, int, int]:
        if at == 1:
            begun.touch()
            while not shown_all.exists():
                time.sleep(0.01)
        return stream, epoch, at

    def let_go() -> None:
        """Lets the worker continue once it has printed its stack."""
        wait_until(lambda: "in slow_second" in stacks.read_text(), 60)
        shown_all.touch()

    # However slow the machine is: of the awaited batches, only the second may be late.
    options: dict[str, Any] = {"block_size": 1, "rank_work": True, "watchdog_initial_timeout_seconds": 60}
    with (
        caplog.at_level(logging.WARNING, "energon_dali.loader"),
        stacks.open("a") as stderr,  # several processes append to it while it is read
        monkeypatch.context() as patch,
        loader(place(1, 1), lengths=[4], make=slow_second, watchdog_timeout_seconds=0.5, **options) as batches,
    ):
        patch.setattr(sys, "stderr", stderr)
        iterator = iter(batches)
        next(iterator)
        assert wait_until(begun.exists, 60)
        freeing = threading.Thread(target=let_go)
        freeing.start()
        assert next(iterator)[:3] == (0, 0, 1)
        freeing.join()
    assert len(caplog.records) == 1
    assert "No batch arrived for" in caplog.text
    assert "in slow_second" in stacks.read_text()  # the worker
    assert "decode_process/process.py" in stacks.read_text()  # the decode process, which asked the worker
    failing = loader(
        place(1, 1),
        lengths=[9],
        mishap=Mishap(0, 2, "hang"),
        watchdog_timeout_seconds=0.5,
        fail_on_timeout=True,
        **options,
    )
    with pytest.raises(WatchdogTimeoutError, match="No batch arrived"):
        list(failing)


def test_a_forgotten_loader_ends_everything() -> None:
    before = children()
    batches = loader(place(2), rank_work=True)
    for _ in batches:
        break
    assert children() > before
    del batches, _
    gc.collect()
    assert children() <= before


def test_settings_that_cannot_work_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="decode_process='yes' is unknown"):
        loader(place(), decode_process="yes")
    assert not loader(place(2), decode_process="auto").config()["decode_process"]  # the workers do everything
    assert loader(place(2), rank_work=True, decode_process="auto").config()["decode_process"]
    assert not loader(place(0), rank_work=True, decode_process="auto").config()["decode_process"]
    lock = threading.Lock()
    locked = {"make": lambda *at: (lock, at)[1]}
    with pytest.raises(WorkerError, match=r"to the decode process.*cannot be pickled: .*lock.*Keep open files"):
        next(iter(loader(place(), start_method="spawn", **locked)))
    with loader(place(), **locked) as forked:
        assert next(iter(forked)) == (0, 0, 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match=r'start_method="fork" with a decode process.*start_method="spawn"'):
        check_fork("fork")
    check_fork("spawn")


def test_page_locked_copies_are_made_in_a_thread_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetcher, "pin_for_trainer", lambda batch: (*batch, threading.current_thread().name))
    batches = loader(place(2))
    batches._options = replace(batches._options, pin_memory=True)
    with batches:
        for epoch in range(2):
            assert list(batches) == [(*place, "energon-dali-receive") for place in expected(epoch)]
        next(iter(batches))
        state = batches.save_state_rank()
    with loader(place(0)) as again:
        again.restore_state_rank(state)
        assert next(iter(again)) == expected(2)[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_hooks_find_the_cache_and_its_files_go(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        launch, "_GRACE_SECONDS", 60.0
    )  # a killed process leaves its files behind: let none be too slow
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    with loader(place(workers), make=cached, rank_work=True, cache_pool=pool) as batches:
        assert {batch[3] for batch in islice(batches, 6)} == {"kept by FileStoreCachePool"}
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"owner.lock"}
    pool.close()
    assert list(tmp_path.iterdir()) == []


def cached(stream: int, epoch: int, at: int) -> tuple[Any, ...]:
    from energon_dali.cache import active_pool

    pool = active_pool()
    return stream, epoch, at, pool.to_cache(f"kept by {type(pool).__name__}", "text").get()
