"""The fork server: what its copies have, when it is started, and that nothing is left of it."""

from __future__ import annotations

import fcntl
import io
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from energon_dali import MapDataset, WorkerConfig, get_loader, prepare_workers
from energon_dali.errors import WorkerDiedError
from energon_dali.loader.processes import fork_safety, fork_server, process_group
from energon_dali.loader.processes.fork_server import ForkServer
from tests.forking import fork
from tests.loader.numbers_dataset import tree
from tests.running_time import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _own_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets each test begin without a server, on a machine that seems to have no GPU."""
    servers: dict[bool, ForkServer] = {}
    monkeypatch.setattr(fork_server, "_servers", servers)
    monkeypatch.setattr(fork_safety, "_DRIVER_FILES", ())
    monkeypatch.setattr(fork_safety, "_has_cuda_context", lambda: False)
    for module in (*fork_safety._THREADED, "energon_dali.decode.dali.runtime.engine", "ray"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    yield
    for server in servers.values():
        server.close()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine seems to have a GPU, which is not in use."""
    monkeypatch.setattr(fork_safety, "_DRIVER_FILES", ("/proc/self/status",))


def start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on CUDA seems to be in use."""
    monkeypatch.setattr(fork_safety, "_has_cuda_context", lambda: True)


def running() -> dict[bool, int]:
    """Returns the process ids of the servers, by whether they are copies."""
    return {kind: server.pid for kind, server in fork_server._servers.items() if server.is_alive}


def config(workers: int = 2) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=4)


STATE: dict[str, int] = {}
"""What a program sets after its imports."""


def describe(element: Any) -> Any:
    """Returns what a worker has."""
    return os.getppid(), STATE.get("number"), os.environ.get("OF_TEST"), os.getcwd(), sorted(os.sched_getaffinity(0))


def described(dataset: Any, **options: Any) -> set[Any]:
    with get_loader(dataset, **options) as loader:
        return {(*values[:4], tuple(values[4])) for values in loader}


@pytest.mark.usefixtures("gpu")
def test_workers_are_copies_of_what_the_program_was_before_cuda_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(STATE, "number", 7)
    with get_loader(MapDataset(tree(config()), describe)) as loader:
        servers = running()
        assert list(servers) == [True], "a loader that is made before CUDA starts has its server"
        start_cuda(monkeypatch)
        monkeypatch.setenv("OF_TEST", "as set later")
        monkeypatch.chdir(tmp_path)
        found = {(*values[:4], tuple(values[4])) for values in loader}
        assert loader._prefetcher._processes._method == "forkserver"
    assert found == {(servers[True], 7, "as set later", str(tmp_path), tuple(sorted(os.sched_getaffinity(0))))}
    assert running() == servers, "it stays for the next loader"


@pytest.mark.usefixtures("gpu")
def test_copies_use_the_cores_that_this_process_may_use_now(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    dataset = MapDataset(tree(config()), describe)
    prepare_workers()
    start_cuda(monkeypatch)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert {found[4] for found in described(dataset)} == {(min(before),)}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("gpu", "warm_workers")
def test_where_cuda_is_in_use_already_the_server_is_a_fresh_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    start_cuda(monkeypatch)
    monkeypatch.setitem(STATE, "number", 7)
    found = described(MapDataset(tree(config()), describe))
    assert {number for _, number, *_ in found} == {None}
    # `warm_python` runs it in a child of the process that was started.
    assert len(found) == 1
    assert os.getpid() not in {server for server, *_ in found}
    assert list(running()) == [False]


def test_without_a_gpu_nothing_is_started_and_workers_are_forked() -> None:
    prepare_workers()
    assert {found[0] for found in described(MapDataset(tree(config()), describe))} == {os.getpid()}
    assert not fork_server._servers


@pytest.mark.usefixtures("gpu", "warm_workers")
def test_no_copy_is_made_while_a_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    half = types.ModuleType("half_imported")
    half.__spec__ = types.SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "half_imported", half)
    prepare_workers()
    assert list(running()) == [False]


@pytest.mark.usefixtures("gpu")
def test_a_forked_child_has_no_server_and_keeps_none_alive() -> None:
    prepare_workers()
    server = fork_server._servers[True]
    parent_end = server._parent_pipe_end
    pid = fork()
    if pid == 0:
        os._exit(bool(fork_server._servers) + 2 * server.is_alive + 4 * (not parent_end.closed))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert server.is_alive


@pytest.mark.usefixtures("gpu")
def test_a_server_keeps_no_pipe_and_no_port_of_the_program_open() -> None:
    reading, writing = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        prepare_workers()
        address = listening.getsockname()
    os.close(writing)
    with open(reading, "rb") as pipe:
        ready = select.select([pipe], [], [], 10)[0]
        assert ready, "the server keeps the pipe open"
        assert pipe.read() == b""
    assert wait_until(lambda: not _takes_connections(address), 10)
    assert running()


def _takes_connections(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.usefixtures("gpu")
def test_a_server_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_EXIT_SECONDS", 60.0)
    dataset = tree(config(), lengths=[10**9] * 4)
    with get_loader(dataset) as loader:
        start_cuda(monkeypatch)
        batches = iter(loader)
        next(batches)
        os.kill(running()[True], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="the fork server that had started it ended"):
            for _ in batches:
                pass
    with get_loader(dataset, start_method="forkserver") as loader:
        next(iter(loader))
    assert list(running()) == [False], "another one was started"


@pytest.mark.usefixtures("gpu")
def test_a_worker_that_is_killed_is_reported_with_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_EXIT_SECONDS", 60.0)
    with get_loader(tree(config(1), lengths=[10**9] * 4)) as loader:
        start_cuda(monkeypatch)
        batches = iter(loader)
        next(batches)
        os.kill(loader._prefetcher._processes.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="killed by SIGKILL"):
            for _ in batches:
                pass


@pytest.mark.usefixtures("gpu")
def test_workers_end_with_their_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    with get_loader(tree(config(), lengths=[10**9] * 4)) as loader:
        start_cuda(monkeypatch)
        next(iter(loader))
        pids = loader._prefetcher._processes.pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


PROGRAM = """
import os, signal, sys, time
from energon_dali import WorkerConfig, get_loader, prepare_workers
from energon_dali.loader.processes import fork_safety, fork_server
from tests.loader.numbers_dataset import tree

fork_safety._DRIVER_FILES = ("/proc/self/status",)
config = WorkerConfig(rank=0, world_size=1, num_workers=2, num_streams=4)

def run():
    prepare_workers()
    pids = [server.pid for server in fork_server._servers.values()]
    if "unused" not in sys.argv:
        fork_safety._has_cuda_context = lambda: True
        loader = get_loader(tree(config, lengths=[10**9] * 4))
        next(iter(loader))
        pids += loader._prefetcher._processes.pids
        globals()["kept"] = loader
    print(*pids, flush=True)
"""

ENDS = {
    "returns": "run()",
    "raises": "run(); raise SystemExit(1)",
    "exits at once": "run(); os._exit(0)",
    "killed": "run(); os.kill(os.getpid(), signal.SIGKILL)",
    "killed while a child of it lives": """
run()
if os.fork() == 0:
    os.close(1)
    os.close(2)
    time.sleep(20)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
""",
    "Ctrl-C": "run(); os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
}


IN_SHORT = {("killed while a child of it lives", True), ("returns", False)}


@pytest.mark.parametrize(
    ("end", "used"),
    [
        pytest.param(end, used, marks=() if (end, used) in IN_SHORT else pytest.mark.sweep)
        for end in ENDS
        for used in (True, False)
    ],
)
def test_nothing_is_left_however_the_program_ends(end: str, used: bool, warm_python: str) -> None:
    done = subprocess.run(
        [warm_python, "-c", PROGRAM + ENDS[end], *([] if used else ["unused"])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=False,
    )
    pids = done.stdout.split()
    assert len(pids) == (3 if used else 1), done
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10.0), "processes are left"


def test_reports_arrive_in_a_process_with_more_than_1024_open_files() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2100), limits[1]))
    try:
        ours, theirs = os.pipe()
        high = fcntl.fcntl(ours, fcntl.F_DUPFD, 2000)
        os.close(ours)
        copy = fork_server._Copy(io.FileIO(high))
        assert copy.poll() is None
        fork_server._tell(theirs, b"started", 123)
        assert copy.pid == 123
        fork_server._tell(theirs, fork_server._ENDED, 7)
        assert copy.poll() == 7
        os.close(theirs)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_workers_write_to_the_files_that_this_process_has_now(warm_python: str, tmp_path: Path) -> None:
    body = f"""
prepare_workers()
fork_safety._has_cuda_context = lambda: True
os.dup2(os.open({str(tmp_path / "out.txt")!r}, os.O_WRONLY | os.O_CREAT), 1)

def make(stream, epoch, place):
    os.write(1, b"from a worker")
    return 1

with get_loader(tree(config, make=make)) as loader:
    assert next(iter(loader)) == 1
"""
    done = subprocess.run(
        [warm_python, "-c", PROGRAM + body], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode == 0
    assert "from a worker" in (tmp_path / "out.txt").read_text()
