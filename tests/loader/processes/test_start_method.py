"""start_method="auto": a fork where nothing speaks against it, and what a spawned worker says about state it lacks."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.remote.s3_server import S3Server
from energon_dali import LoaderPanel, MapDataset, WorkerConfig, get_loader, get_train_dataset
from energon_dali.datasets.hooks import FailurePolicy
from energon_dali.datasets.stream import StreamContext
from energon_dali.errors import FatalSampleError
from energon_dali.loader.prefetcher import DirectPrefetcher
from energon_dali.loader.processes import fork_safety
from energon_dali.loader.processes.fork_safety import _has_primary_context, fork_hazard
from energon_dali.loader.processes.launch import resolve_start_method
from energon_dali.shards.storage import storage_in_use
from tests.forking import fork
from tests.integrations.phases import number_shards
from tests.loader.numbers_dataset import tree


def place(workers: int = 1) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=4)


@contextmanager
def running(name: str) -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name=name)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@pytest.fixture(autouse=True)
def _nothing_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have left engines of DALI and their threads, or imported what "auto" avoids."""
    for module in (*fork_safety._THREADED, "energon_dali.decode.dali.runtime.engine", "ray"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    before, all_threads = set(threading.enumerate()), threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [found for found in all_threads() if found not in before])


def test_nothing_speaks_against_a_fork() -> None:
    assert fork_hazard(uses_device=False) is None
    assert resolve_start_method("auto", uses_device=False) == "fork"


OWN_THREADS = ("watchdog", "open_0", "read_0", "cache", "panel", "close", "receive", "fetch_0", "trace")


@pytest.mark.parametrize("name", ["user", "TMonitor", *(f"energon-dali-{name}" for name in OWN_THREADS)])
def test_these_threads_do_not_rule_out_a_fork(name: str) -> None:
    with running(name):
        assert fork_hazard(uses_device=False) is None


def test_the_thread_that_runs_hooks_rules_out_a_fork(caplog: pytest.LogCaptureFixture) -> None:
    with running("energon-dali-rank"), caplog.at_level(logging.INFO, "energon_dali.loader"):
        assert resolve_start_method("auto", uses_device=False) == "forkserver"
    assert "by a fork server, because the thread energon-dali-rank is running hooks" in caplog.text


def test_all_threads_of_the_package_are_in_the_list_of_those_that_may_hold_locks() -> None:
    package = Path(fork_safety.__file__).parents[2]
    code = "\n".join(file.read_text() for file in package.rglob("*.py") if file != Path(fork_safety.__file__))
    names = set(re.findall(r'(?:name=|thread_name(?:_prefix|: str)? ?= ?|, |_submit\()"energon-dali-([a-z-]+)"', code))
    outside = {"stream", "prepare", "pack"}  # of commands that start no worker
    assert {"rank", "panel", "read", "cache", "close"} <= names
    assert {name for name in names - outside if f"-{name}`" not in str(fork_safety.__doc__)} == set()


_forks_begun = threading.Event()
_noted_forks: list[None] = []


def test_a_fork_waits_until_a_thread_has_drawn() -> None:
    if not _noted_forks:  # what is registered stays, and is called before that of `fork_safety`
        os.register_at_fork(before=_forks_begun.set)
        _noted_forks.append(None)
    _forks_begun.clear()
    lock, draws = threading.Lock(), threading.Event()

    def draw() -> None:
        with fork_safety.without_forks(), lock:
            draws.set()
            assert _forks_begun.wait(60)

    thread = threading.Thread(target=draw)
    thread.start()
    assert draws.wait(60)
    pid = fork()
    if pid == 0:
        os._exit(lock.locked())
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0, "the thread held its lock when the process forked"
    with fork_safety.without_forks():  # a process that forks inside waits for nothing
        pid = fork()
        if pid == 0:
            with fork_safety.without_forks():
                os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


_COLLECTED_MEANWHILE = """
import gc, threading
from energon_dali.loader.processes.fork_safety import frames_of_threads

class Node:
    pass

def leave_garbage():
    node = Node()
    node.itself, node.local = node, threading.local()
    node.local.value = 1

for allocations in range(20):  # after as many, the collector would run
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    gc.collect()
    gc.disable()
    for _ in range(50):
        leave_garbage()
    gc.set_threshold(gc.get_count()[0] + allocations)
    gc.enable()
    found = frames_of_threads()
    gc.set_threshold(700)
    assert {thread.ident for thread in threads} < set(found) and gc.isenabled()
    end.set()
    for thread in threads:
        thread.join()
"""


def test_frames_are_found_while_a_collection_is_due(warm_python: str) -> None:
    done = subprocess.run([warm_python, "-c", _COLLECTED_MEANWHILE], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("terminal", [False, True])
def test_a_panel_leaves_workers_forked(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with (
        get_loader(tree(place())) as loader,
        LoaderPanel(loader, console=console, line_seconds=0.01, refresh_seconds=0.01),
    ):
        first = next(iter(loader))
        assert loader._prefetcher._processes._method == "fork"
        assert first is not None


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_method_that_was_chosen_stays(method: Any) -> None:
    with running("energon-dali-rank"):
        assert resolve_start_method(method, uses_device=True) == method


@pytest.mark.parametrize(
    ("module", "content", "reason"),
    [
        ("grpc._cython.cygrpc", {}, "gRPC is loaded"),
        ("jaxlib", {}, "JAX is loaded"),
        ("ray", {"is_initialized": lambda: True}, "belongs to Ray"),
        ("ray", {"is_initialized": lambda: False}, None),
        ("energon_dali.decode.dali.runtime.engine", {"has_engines": lambda: True}, "DALI is in use"),
        ("energon_dali.decode.dali.runtime.engine", {"has_engines": lambda: False}, None),
    ],
)
def test_libraries_with_threads(
    monkeypatch: pytest.MonkeyPatch, module: str, content: dict[str, Any], reason: str | None
) -> None:
    fake = types.ModuleType(module)
    vars(fake).update(content)
    monkeypatch.setitem(sys.modules, module, fake)
    hazard = fork_hazard(uses_device=False)
    assert (hazard is None) if reason is None else (hazard is not None and reason in hazard)


def test_cuda_in_use_rules_out_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert resolve_start_method("auto", uses_device=False) == "forkserver"
    assert resolve_start_method("auto", uses_device=True) == "spawn"


def test_a_gpu_in_the_machine_rules_out_a_forked_decode_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_safety, "_DRIVER_FILES", ("/proc/self/status",))
    assert resolve_start_method("auto", uses_device=True) == "spawn"
    assert resolve_start_method("auto", uses_device=False) == "fork"


@pytest.mark.parametrize(("initialised", "active"), [(False, False), (True, False), (True, True)])
def test_contexts_that_other_libraries_have(initialised: bool, active: bool) -> None:
    class Driver:
        """The two functions of libcuda: two GPUs, of which the second may have a context."""

        def cuDeviceGetCount(self, count: Any) -> int:
            count._obj.value = 2
            return 0 if initialised else 3

        def cuDevicePrimaryCtxGetState(self, device: int, flags: Any, state: Any) -> int:
            state._obj.value = int(active and device == 1)
            return 0

    assert _has_primary_context(Driver()) == (initialised and active)


STATE: dict[str, int] = {}
"""What a program sets after its imports."""


def use_state(element: Any) -> Any:
    if not STATE:
        raise AssertionError("args is not initialized.")
    return (*element, STATE["number"])


def test_a_forked_worker_has_what_the_program_set_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATE, "number", 7)
    handled: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda *_: handled.append(1))
    try:
        with get_loader(MapDataset(tree(place()), use_state)) as loader:
            assert {element[-1] for element in loader} == {7}
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_spawned_worker_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATE, "number", 7)
    dataset = MapDataset(tree(place(), lengths=[200] * 4), use_state)
    with (
        get_loader(dataset, start_method="spawn") as loader,
        pytest.raises(FatalSampleError, match=r'times in a row.*This worker was spawned.*start_method="fork"'),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("fresh", "worked", "hinted"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_only_a_hook_that_never_worked_in_a_spawned_worker_gets_the_hint(
    fresh: bool, worked: bool, hinted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    policy = FailurePolicy("encode_sample", 7, StreamContext(0, fresh_process=fresh), place())
    if worked:
        policy.on_success()
    failures = []
    for number in range(7):
        try:
            policy.on_failure(ValueError(f"bad {number}"), {"__key__": str(number)})
        except FatalSampleError as error:
            failures.append(str(error))
    assert ["encode_sample failed 7 times in a row" in text for text in failures] == [True]
    assert ('start_method="fork"' in failures[0]) == hinted
    assert ("failed in all of its first 5 calls. This worker was spawned" in caplog.text) == hinted


@pytest.mark.parametrize("stage", ["read", "load", "decode"])
def test_data_that_cannot_be_read_has_nothing_to_do_with_how_workers_start(stage: str) -> None:
    policy = FailurePolicy(stage, 1, StreamContext(0, fresh_process=True), place())
    with pytest.raises(FatalSampleError) as caught:
        policy.on_failure(ValueError("bad"), None)
    assert "spawned" not in str(caught.value)


def test_a_name_that_is_missing_is_explained_at_once() -> None:
    policy = FailurePolicy("encode_sample", 100, StreamContext(0, fresh_process=True), place())
    with pytest.raises(FatalSampleError, match=r'NameError.*does not go away.*spawned.*start_method="fork"'):
        policy.on_failure(NameError("name 'TOKENIZER' is not defined"), None)


def test_the_warning_of_python_3_12_does_not_reach_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork

    def fork_and_warn() -> int:
        warnings.warn("This process is multi-threaded, use of fork() may lead to deadlocks", DeprecationWarning, 2)
        return fork()

    monkeypatch.setattr(os, "fork", fork_and_warn)  # pytest turns warnings into errors
    with running("user"), get_loader(tree(place())) as loader:
        assert len(list(loader)) == 15


def test_a_dataset_opened_in_remote_storage_is_read_by_forked_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number_shards(tmp_path / "data" / "numbers", 24)
    with S3Server(tmp_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        config = WorkerConfig(rank=0, world_size=1, num_workers=2)
        dataset = get_train_dataset("s3://data/numbers", worker_config=config, batch_size=4, repeat=False)
        assert storage_in_use()
        with get_loader(dataset) as loader:
            batches = list(loader)
            assert isinstance(loader._prefetcher, DirectPrefetcher)
            processes = loader._prefetcher._processes
            assert processes is not None
            assert processes._method == "fork"
        assert sorted(key for batch in batches for key in batch.__key__) == [f"k{number:03d}" for number in range(24)]
