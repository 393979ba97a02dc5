from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import mmap
import os
import random
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.worker_border import WorkerBorder
from energon_dali.errors import ConfigError, WorkerDiedError, WorkerError
from energon_dali.loader.loader_options import LoaderOptions
from energon_dali.loader.processes import fork_safety, process_group
from energon_dali.loader.processes.launch import ChildProcess
from energon_dali.loader.processes.shared_memory import INLINE_BYTES, Channel
from energon_dali.loader.workers.pool import WorkerPool
from energon_dali.worker_config import WorkerConfig
from tests.forking import fork
from tests.full_disk import largest_file
from tests.loader.numbers_dataset import Mishap, NumbersDataset
from tests.running_time import RunningTime, wait_until

METHODS = ("spawn", "fork", "forkserver")


def config(workers: int = 1, streams: int | None = None) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=streams)


def make_pool(
    lengths: list[int],
    *,
    workers: int = 1,
    block_size: int = 4,
    method: str = "fork",
    prefetch: int = 2,
    **options: Any,
) -> WorkerPool:
    dataset = NumbersDataset(lengths, config(workers, len(lengths)), **options)
    loader_options: Any = {"prefetch_factor": prefetch, "start_method": method}
    return WorkerPool([WorkerBorder(dataset, block_size=block_size)], Metrics(), LoaderOptions(**loader_options))


def open_files(pid: int | str = "self") -> set[str]:
    found = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/{pid}/fd/{number}')}")
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
    """Starts the fork server before anything is counted."""


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    gc.collect()
    before = open_files(), set(threading.enumerate())
    yield
    gc.collect()
    # Threads of other tests may end meanwhile.
    assert (open_files() - before[0], set(threading.enumerate()) - before[1]) == (set(), set())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_blocks_arrive_in_order_with_their_states(method: str) -> None:
    pool = make_pool([10, 3], workers=2, method=method)
    for stream, length in ((0, 10), (1, 3)):
        for epoch in range(2):
            places = []
            while True:
                block = pool.next_block(stream)
                assert block.stream == stream
                for element, state in zip(block.elements, block.states, strict=True):
                    assert element == (stream, epoch, len(places))
                    places.append(element)
                    assert state == {"epoch": epoch, "place": len(places)}
                if block.end_state is not None:
                    assert block.end_state == {"epoch": epoch + 1, "place": 0}
                    break
            assert len(places) == length
    pool.close()
    pool.close()


def test_a_stream_starts_at_a_state_and_can_restart() -> None:
    pool = make_pool([100])
    pool.start(0, {"epoch": 3, "place": 50})
    assert pool.next_block(0).elements[0] == (0, 3, 50)
    assert pool.next_block(0).elements[0] == (0, 3, 54)
    pool.start(0, None)
    assert pool.next_block(0).elements[0] == (0, 0, 0)
    pool.start(0, {"epoch": 1, "place": 8})
    assert pool.next_block(0).elements[0] == (0, 1, 8)
    pool.close()


def test_a_stream_started_ahead_of_time_is_not_started_twice() -> None:
    pool = make_pool([100])
    pool.start(0, None)
    pool.start(0, None)
    assert [pool.next_block(0).elements[0][2] for _ in range(3)] == [0, 4, 8]
    pool.close()


def draw(*_: int) -> tuple[float, float, float]:
    """Draws from the three global generators, which nobody but the worker seeds."""
    return random.random(), float(np.random.random()), torch.rand(1).item()


def drawn_from(*states: dict[str, int] | None) -> list[tuple[float, float, float]]:
    """Returns what a worker draws for the last one of its streams, which start at the given states."""
    pool = make_pool([100] * len(states), make=draw)
    for stream, state in enumerate(states):
        pool.start(stream, state)
    elements = pool.next_block(len(states) - 1).elements
    pool.close()
    return elements


def test_draws_follow_from_where_a_worker_starts() -> None:
    at_first = drawn_from(None)
    later = drawn_from({"epoch": 0, "place": 8})
    assert drawn_from(None) == at_first
    assert drawn_from({"epoch": 0, "place": 8}) == later
    for number in range(3):
        assert len({one[number] for one in at_first + later}) == len(at_first + later)
    other = {"epoch": 0, "place": 12}
    assert drawn_from(other, other) != drawn_from({"epoch": 0, "place": 8}, other), "only the first stream moved"


def test_workers_make_no_more_than_the_prefetch_ahead_and_stop_at_the_end_of_an_epoch() -> None:
    made = mmap.mmap(-1, 1)  # shared with a forked worker

    def make(*place: int) -> tuple[int, ...]:
        made[0] += 1
        return place

    pool = make_pool([18], make=make, block_size=2, prefetch=3)
    assert not pool.ready(0)
    for taken in range(1, 11):
        block = pool.next_block(0)
        assert (block.end_state is None) == (taken < 10)
        expected = min(18, 2 * (taken + 3))
        assert wait_until(lambda: made[0] >= expected, 60)  # noqa: B023
        time.sleep(0.02)  # time to make too many
        assert made[0] == expected
    assert not pool.ready(0)
    assert pool.next_block(0).elements[0] == (0, 1, 0)
    pool.close()


@dataclass
class Photo:
    key: str
    pixels: torch.Tensor
    raw: bytes
    boxes: np.ndarray[Any, Any]


def photo(stream: int, epoch: int, place: int) -> Photo:
    return Photo(
        f"{place}",
        torch.full((3, 40, 41), place % 256, dtype=torch.uint8),
        bytes([place % 256]) * 20_000,
        np.full((100, 20), place),
    )


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("method", METHODS)
def test_elements_that_are_held_are_never_overwritten(method: str) -> None:
    pool = make_pool([200], make=photo, method=method)
    held = []
    for _ in range(25):
        held += pool.next_block(0).elements
        gone = pool.next_block(0)  # its memory is reused
        del gone
    pool.close()
    gc.collect()
    assert len(held) == 100
    for element in held:
        number = int(element.key)
        assert type(element) is Photo
        assert torch.all(element.pixels == number % 256)
        assert np.all(element.boxes == number)
        assert element.raw == bytes([number % 256]) * 20_000
        element.pixels += 1  # memory of its own, and writable


def test_memory_is_used_again_when_nobody_holds_it() -> None:
    pool = make_pool([10_000], make=photo, prefetch=2)
    for _ in range(100):
        pool.next_block(0)
    pid = pool.pids[0]
    arenas = sum("energon-dali-block" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    assert 1 <= arenas <= 6
    for process in (str(pid), "self"):  # anonymous: a killed process leaves no name behind
        shared = [line for line in Path(f"/proc/{process}/maps").read_text().splitlines() if "energon-dali" in line]
        assert shared
        assert all(re.search(r"/memfd:energon-dali-(block|work) \(deleted\)", line) for line in shared)
    # Except that of an arena that it may be sending now.
    assert wait_until(lambda: not any("energon-dali-block" in name for name in open_files(pid)), 60)
    pool.close()


def test_memory_of_blocks_that_a_restart_discards_is_used_again() -> None:
    pool = make_pool([10_000], make=photo, prefetch=2)
    pool.next_block(0)
    for turn in range(1, 31):
        assert wait_until(lambda: pool.ready(0), 60)
        assert pool._streams[0].blocks, "there is a block to discard"
        pool.start(0, {"epoch": 0, "place": 4 * turn})
        assert pool.next_block(0).elements[0].key == f"{4 * turn}"
    maps = Path(f"/proc/{pool.pids[0]}/maps").read_text().splitlines()
    assert 1 <= sum("energon-dali-block" in line for line in maps) <= 6
    pool.close()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_an_exception_arrives_as_what_it_was_with_the_traceback_of_the_worker(method: str) -> None:
    pool = make_pool([100, 100], mishap=Mishap(0, 9, "raise"), method=method)
    assert len(pool.next_block(0).elements) == 4
    assert len(pool.next_block(0).elements) == 4
    with pytest.raises(ValueError, match="did not like it") as caught:
        pool.next_block(0)
    assert "in happen" in str(caught.value.__cause__)
    with pytest.raises(ValueError, match="did not like it"):
        pool.next_block(0)
    assert pool.next_block(1).elements[0] == (1, 0, 0)
    pool.close()


def test_an_exception_that_cannot_travel_is_told_in_words() -> None:
    pool = make_pool([100], mishap=Mishap(0, 0, "raise-odd"))
    with pytest.raises(WorkerError, match=r"cannot travel between processes: .*OddError: odd 1 2"):
        pool.next_block(0)
    pool.close()


def test_an_element_that_cannot_be_pickled_ends_the_stream_with_the_reason() -> None:
    pool = make_pool([100], mishap=Mishap(0, 5, "unpicklable"))
    pool.next_block(0)
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        pool.next_block(0)
    pool.close()


def test_a_block_that_the_limit_on_files_does_not_allow_is_an_error_that_says_so() -> None:
    before = open_files()
    with largest_file(100_000):
        pool = make_pool([100], make=lambda stream, epoch, place: np.full(50_000, place, np.uint8))
        with pytest.raises(WorkerError, match=r"could not be taken: File too large.* is 100000 bytes: raise it"):
            pool.next_block(0)
        pool.close()
    assert open_files() == before
    ours, theirs = Channel.pair()
    with largest_file(INLINE_BYTES), pytest.raises(WorkerError, match="File too large"):
        ours.send(bytes(2 * INLINE_BYTES))
    ours.close()
    theirs.close()


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("kind", "text"), [("exit", "exit code 7"), ("kill", "killed by SIGKILL .often the kernel")])
def test_a_dead_worker_is_an_error_that_says_how_it_died(
    method: str, kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "_EXIT_SECONDS", 60.0)
    pool = make_pool([100], mishap=Mishap(0, 8, kind), method=method)
    assert [len(pool.next_block(0).elements) for _ in range(2)] == [4, 4]
    with (
        RunningTime() as passed,
        pytest.raises(WorkerDiedError, match=f"Worker 0 of rank 0 .process \\d+. ended unexpectedly: {text}"),
    ):
        pool.next_block(0)
    assert passed.seconds < 5
    pool.close()


def test_a_worker_killed_while_the_rank_waits_is_noticed() -> None:
    pool = make_pool([100], mishap=Mishap(0, 0, "hang"))
    pool.launch()
    killer = threading.Timer(0.3, os.kill, (pool.pids[0], signal.SIGKILL))
    killer.start()
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        pool.next_block(0)
    killer.join()
    pool.close()


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("method", METHODS)
def test_close_ends_workers_that_hang(method: str) -> None:
    pool = make_pool([100, 100], workers=2, mishap=Mishap(0, 0, "hang"), method=method)
    pool.next_block(1)
    pids = pool.pids
    with RunningTime() as passed:
        pool.close()
    assert passed.seconds < 3
    assert not children() & set(pids)
    with pytest.raises(WorkerError, match="were ended with close"):
        pool.next_block(1)


def test_a_forgotten_pool_ends_its_workers() -> None:
    pool = make_pool([100])
    pool.next_block(0)
    pids = pool.pids
    del pool
    gc.collect()
    assert not children() & set(pids)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="prefetch_factor=0"):
        make_pool([1], prefetch=0)
    with pytest.raises(ConfigError, match="start_method='thread' is unknown: give one of 'spawn'"):
        make_pool([1], method="thread")


def test_a_dataset_that_cannot_be_pickled_is_refused_with_the_reason() -> None:
    lock = threading.Lock()
    pool = make_pool([4], method="spawn", make=lambda *place: (lock, place)[1])
    with pytest.raises(WorkerError, match=r"cannot be pickled: .*lock.*Keep open files, locks"):
        pool.next_block(0)
    pool.close()
    pool = make_pool([4], method="fork", make=lambda *place: (lock, place)[1])
    assert pool.next_block(0).elements[0] == (0, 0, 0)
    pool.close()


def test_many_blocks_held_need_no_descriptors() -> None:
    pool = make_pool([4000], make=photo)
    pool.next_block(0)
    before = len(os.listdir("/proc/self/fd"))
    held = [pool.next_block(0) for _ in range(100)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(held) == 100
    pool.close()


@pytest.mark.parametrize("size", [1, INLINE_BYTES + 1])
def test_a_message_whose_descriptors_cannot_be_taken_is_an_error_that_names_the_limit(size: int) -> None:
    ours, theirs = Channel.pair()
    theirs.send(bytes(size), [ours.fileno()])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(WorkerError, match=r"as many files open as it may.*ulimit -n"):
            ours.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    ours.close()
    theirs.close()


@pytest.mark.parametrize(("module", "name"), [(os, "pipe2"), (socket, "socketpair"), (os, "fork")])
def test_a_worker_that_cannot_be_started_leaves_no_open_file(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    before = open_files()
    pool = make_pool([4])
    monkeypatch.setattr(module, name, refuse)
    with pytest.raises(OSError, match="Too many open files"):
        pool.launch()
    pool.close()
    assert open_files() == before


def connections(pid: int | str = "self") -> set[str]:
    """Returns the sockets and pipes of a process."""
    return {name.split()[1] for name in open_files(pid) if name.split()[1].startswith(("socket:", "pipe:"))}


def test_a_forked_worker_has_no_connection_of_another_one() -> None:
    before = connections()
    pools = [make_pool([100, 100], workers=2) for _ in range(2)]
    for pool in pools:
        for stream in range(2):
            pool.next_block(stream)
    ends = connections() - before
    assert len(ends) == 8, "a socket and a pipe for each worker"
    shared = [connections(pid) & ends for pool in pools for pid in pool.pids]
    assert [len(pipes) for pipes in shared] == [1, 1, 1, 1]
    assert {name[:5] for pipes in shared for name in pipes} == {"pipe:"}
    assert len(set.union(*shared)) == 4, "workers share a pipe, and one of them alone gets its signal"
    copy = fork()
    if copy == 0:
        own = connections()
        pools[0].close()
        os._exit(1 if own & ends else 0)
    assert os.waitpid(copy, 0)[1] == 0, "a copy of the trainer has ends of its connections"
    for pool in pools:
        assert pool.next_block(0).elements[0] == (0, 0, 4)
        pool.close()


def test_a_connection_whose_descriptor_something_else_closed_is_an_error_that_says_so() -> None:
    ours, theirs = Channel.pair()
    os.close(ours.fileno())
    with pytest.raises(WorkerError, match=r"Bad file descriptor. Something in this process closed a file descriptor"):
        ours.receive()
    ours._socket.detach()
    theirs.close()
    with pytest.raises(EOFError):
        theirs.receive()


def test_a_worker_whose_exit_code_something_else_took_does_not_count_as_exited_with_zero() -> None:
    pool = make_pool([100], mishap=Mishap(0, 0, "hang"))
    pool.launch()
    os.kill(pool.pids[0], signal.SIGKILL)
    os.waitpid(pool.pids[0], 0)
    with pytest.raises(WorkerDiedError, match=r"something else in this program, such as a handler of SIGCHLD, took"):
        pool.next_block(0)
    pool.close()


def import_slowly(stream: int, epoch: int, place: int) -> tuple[int, int]:
    import imported_slowly  # type: ignore[import-not-found]

    return place, imported_slowly.value


def test_a_fork_waits_for_the_imports_of_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_slowly.py").write_text("import threading\nthreading.go_on.wait(60)\nvalue = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(threading, "go_on", threading.Event(), raising=False)
    monkeypatch.setattr(fork_safety, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: go_on()))
    thread = threading.Thread(target=importlib.import_module, args=("imported_slowly",))

    def go_on() -> None:
        threading.go_on.set()  # type: ignore[attr-defined]
        thread.join(60)

    thread.start()
    while "imported_slowly" not in sys.modules:
        time.sleep(0.001)
    pool = make_pool([100], make=import_slowly)
    try:
        assert pool.next_block(0).elements[0] == (0, 7)
    finally:
        go_on()
        pool.close()
        del sys.modules["imported_slowly"]


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Lets SIGINT raise KeyboardInterrupt: shells make background jobs ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("where", ["launch", "join"])
def test_ctrl_c_while_processes_start_or_end_leaves_none_behind(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = children()
    times = iter(range(100))

    def interrupting(function: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            if next(times) == 1:  # at the second process
                os.kill(os.getpid(), signal.SIGINT)
            return function(*args, **options)

        return run

    pool = make_pool([4, 4, 4], workers=3)
    if where == "join":
        pool.launch()
        pids = pool.pids
        monkeypatch.setattr(ChildProcess, "join", interrupting(ChildProcess.join))
        with pytest.raises(KeyboardInterrupt):
            pool.close()
        assert len(pids) == 3
    else:
        monkeypatch.setattr(ChildProcess, "__init__", interrupting(ChildProcess.__init__))
        with pytest.raises(KeyboardInterrupt):
            pool.launch()
        pool.close()
    assert children() == own, "a process still runs, or nothing waited for it"
