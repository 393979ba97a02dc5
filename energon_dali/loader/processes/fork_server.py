"""A fork server: a process that runs nothing but what makes copies of itself, from which workers start.

Where this process cannot be forked safely, such as once CUDA is in use, each worker would otherwise start an
interpreter and import torch, which takes seconds. The server has done that before, once: it is a copy of this process
from before there was anything against a fork, or a fresh interpreter where it was asked for too late.

There is at most one server of each kind. It starts in the background and ends with this process, however that ends.
Forked children of this process do not use it. Its copies are children of the server: it reports how they end.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import pickle
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from energon_dali.loader.processes.class_pickling import pickle_task
from energon_dali.loader.processes.fork_safety import fork_hazard, may_use_gpu
from energon_dali.loader.processes.launch import (
    SERVER_ENDED,
    ChildProcess,
    StartMethod,
    end_processes,
    imports_of_children,
    launch,
    launch_copy,
)
from energon_dali.loader.processes.server import ProcessTask
from energon_dali.loader.processes.shared_memory import Channel
from energon_dali.loader.processes.signals import interrupts_deferred
from energon_dali.shards.storage.forks import drop_in_child

if TYPE_CHECKING:
    from types import FrameType

logger = logging.getLogger("energon_dali.loader")

_OF_WORKERS = ("energon_dali.loader.workers.worker", "numpy.random", "torch")
"""Modules that every worker needs."""
_STARTED, _ENDED = b"started", b"ended"
_POLL_SECONDS = 0.01
_STATUS_BYTES = 64
"""More than a line about a copy has: it is written at once."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What the server is asked for: a copy of itself, which begins with what this process has now, as a spawned one."""

    folder: str
    """The current folder."""
    path: list[str]
    """What `sys.path` is."""
    environment: dict[str, str]
    """The environment variables."""
    cores: frozenset[int]
    """The cores that it may use."""
    imports: tuple[str, ...]
    """Modules to import."""

    @classmethod
    def of_this_process(cls) -> CopyRequest:
        """Returns the request for a copy that works as one of this process would."""
        path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
        cores = frozenset(os.sched_getaffinity(0))
        return cls(os.getcwd(), path, dict(os.environ), cores, tuple(imports_of_children()))

    def apply(self, stdout: int, stderr: int) -> None:
        """Prepares a copy.

        Args:
            stdout: Descriptor of its standard output; it is closed.
            stderr: That of its standard error; it is closed.
        """
        for descriptor, number in ((stdout, 1), (stderr, 2)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(self.folder)
        sys.path[:] = self.path
        if self.environment != dict(os.environ):
            os.environ.clear()
            os.environ.update(self.environment)
        if self.cores != os.sched_getaffinity(0):
            os.sched_setaffinity(0, self.cores)
        for module in self.imports:
            importlib.import_module(module)  # quick if the server has it


@dataclass(slots=True, eq=False)
class ForkServerTask(ProcessTask):
    """What the server runs."""

    imports: tuple[str, ...]
    """Modules that it imports before it makes copies."""

    def prepare(self) -> None:
        """Imports the modules."""
        _import_modules(self.imports)

    def serve(self, channel: Channel) -> None:
        """Makes a copy for each request, and imports modules that are named.

        Raises:
            EOFError: The process that asks for copies is gone.
        """
        _Copies(channel).serve()


def _import_modules(names: Sequence[str]) -> None:
    """Imports modules. What cannot be imported is left to the workers, which say why."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


class _Copies:
    """The copies of a server, and what it reports about them.

    Args:
        channel: Brings the requests.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._running: dict[int, tuple[ChildProcess, int]] = {}
        """By process id: a copy, and the descriptor that its end is written to."""
        ended, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._ended = io.FileIO(ended)
        self._wake = io.FileIO(wake, "w")
        signal.signal(signal.SIGCHLD, _ignore)  # only a signal with a handler is written to the descriptor
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """See `ForkServerTask.serve`."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        while True:
            poll.poll()
            with contextlib.suppress(BlockingIOError):
                self._ended.read(4096)
            self._report()
            received = self._channel.receive(wait=False)
            if received is not None:
                message: CopyRequest | tuple[str, ...] = pickle.loads(received[0])
                if isinstance(message, CopyRequest):
                    self._start(message, *received[1])
                else:
                    _import_modules(message)

    def _start(self, request: CopyRequest, channel: int, parent_pipe: int, status: int, out: int, err: int) -> None:
        def prepare() -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._channel, self._ended, self._wake):
                end.close()
            for descriptor in (status, *(other for _, other in self._running.values())):
                os.close(descriptor)
            request.apply(out, err)

        connection = Channel(socket.socket(fileno=channel))
        try:
            child = launch_copy(connection, parent_pipe, prepare)
            self._running[child.pid] = child, status
            _tell(status, _STARTED, child.pid)
        except OSError:  # no process can be started
            os.close(status)
        finally:
            connection.close()
            for descriptor in (parent_pipe, out, err):
                os.close(descriptor)

    def _report(self) -> None:
        for pid, (child, status) in list(self._running.items()):
            code = child.poll()
            if code is not None:
                del self._running[pid]
                _tell(status, _ENDED, code)
                os.close(status)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handles a signal by doing nothing."""


def _tell(status: int, what: bytes, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody asks any more
        os.write(status, (b"%s %d" % (what, number)).ljust(_STATUS_BYTES))


class _Copy(ChildProcess):
    """A process that the server makes for this one. Its process id arrives when the server has made it.

    Args:
        status: Descriptor from which the server's reports about it are read.
    """

    def __init__(self, status: io.FileIO) -> None:
        self._pid: int | None = None
        self._status = status
        self._reading = threading.RLock()
        super().__init__(0, self._read_status, status.close)

    @property
    def pid(self) -> int:
        """Its process id; waits until the server has made it. 0 if it could not."""
        while self._pid is None and self.poll() is None:
            self._has_report(_POLL_SECONDS)  # another thread may read it
        return self._pid or 0

    @pid.setter
    def pid(self, pid: int) -> None:
        pass  # the server reports it

    def _read_status(self) -> int | None:
        with self._reading:  # a report is read once
            if self._code is None:
                self._code = self._read_reports()
            return self._code

    def _read_reports(self) -> int | None:
        while self._has_report(0):
            report = self._status.read(_STATUS_BYTES)
            if not report:
                return SERVER_ENDED
            what, number = report.split()
            if what == _ENDED:
                return int(number)
            self._pid = int(number)
        return None

    def _has_report(self, seconds: float) -> bool:
        """Waits until a report can be read, or for some seconds; returns whether there is one."""
        poll = select.poll()  # `select.select` refuses descriptors from 1024 on
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal if the process still runs. A process that does not run yet is only ended: as soon as it runs,
        because its parent pipe is closed then.
        """
        if self.poll() is not None:
            return
        if self._pid is not None:
            super().signal(number)
        elif number == signal.SIGKILL:
            self._code = -number

    def open_sentinel(self) -> int | None:
        """Returns a descriptor that becomes readable when the process starts, and when it ends."""
        return os.dup(self._status.fileno())


class ForkServer:
    """A fork server, which has been started.

    Args:
        is_copy: Whether it is a copy of this process, which is safe now; otherwise it is a fresh interpreter.
        imports: Modules that it imports before it makes copies.
    """

    def __init__(self, *, is_copy: bool, imports: Sequence[str]) -> None:
        self._owner = os.getpid()
        task = ForkServerTask(tuple(imports))
        pipe, pipe_end = os.pipe2(os.O_CLOEXEC)
        self._parent_pipe_end = io.FileIO(pipe_end, "wb")
        self._channel, theirs = Channel.pair()
        drop_in_child(self)
        try:
            if is_copy:
                kept = {0, 1, 2, theirs.fileno(), pipe}
                self._process = launch_copy(theirs, pipe, partial(_release_connections, kept))
            else:
                self._process = launch("spawn", theirs, pipe, task)
            self._channel.send(pickle_task(task))
        except BaseException:
            self.after_fork()
            raise
        finally:
            os.close(pipe)
            theirs.close()

    @property
    def is_alive(self) -> bool:
        """Whether it belongs to this process, and runs."""
        return os.getpid() == self._owner and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def launch(self, channel: Channel, parent_pipe: int) -> ChildProcess:
        """Starts a copy of the server; returns at once. It expects its task, pickled, as its first message.

        Args:
            channel: The new process's end of its connection; the caller closes its copy afterwards.
            parent_pipe: Read end of its parent pipe, see `signals.exit_with_parent`; the caller closes it afterwards.

        Raises:
            OSError: The server has ended.
        """
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        status = io.FileIO(ours)
        try:
            with _standard_files() as (out, err):
                request = pickle.dumps(CopyRequest.of_this_process())
                self._channel.send(request, (channel.fileno(), parent_pipe, theirs, out, err))
        except BaseException:
            status.close()
            raise
        finally:
            os.close(theirs)
        return _Copy(status)

    def import_modules(self, names: Sequence[str]) -> None:
        """Lets the server import modules in the background, so that none of its later copies has to."""
        with contextlib.suppress(OSError):  # it has just ended
            self._channel.send(pickle.dumps(tuple(names)), wait=False)

    def close(self) -> None:
        """Ends it, and its copies."""
        if os.getpid() == self._owner:
            end_processes([(self._process, self._channel)])
        self.after_fork()

    def after_fork(self) -> None:
        """Closes the copies that a forked child has: they would keep the server from noticing the parent's end."""
        self._channel.close()
        self._parent_pipe_end.close()


def _release_connections(kept: Set[int]) -> None:
    """Releases the pipes and sockets that a copied process has open, except some descriptors.

    Otherwise a program that reads from such a pipe would not see that the first process has closed it. The numbers stay
    in use and refer to the null device, because objects that hold them may still close them.
    """
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing is closed by now
                mode = os.fstat(number).st_mode
                if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                    os.dup2(nothing.fileno(), number, inheritable=False)


@contextlib.contextmanager
def _standard_files() -> Iterator[tuple[int, int]]:
    """Gives descriptors of the standard output and error, or of a file that takes everything where they are closed."""
    with open(os.devnull, "wb") as nothing:
        found = []
        for number in (1, 2):
            try:
                os.fstat(number)
                found.append(number)
            except OSError:
                found.append(nothing.fileno())
        yield found[0], found[1]


_servers: dict[bool, ForkServer] = {}
"""By whether it is a copy."""
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)


def start_process(
    method: StartMethod, channel: Channel, parent_pipe: int, task: ProcessTask, *, may_use_device: bool
) -> ChildProcess:
    """Starts a process.

    Args:
        method: How, not "auto". A forked process inherits the task; others expect it, pickled, as their first message.
        channel: The new process's end of its connection; the caller closes its copy afterwards.
        parent_pipe: Read end of its parent pipe, see `signals.exit_with_parent`; the caller closes it afterwards.
        task: What the process runs.
        may_use_device: Whether the process may use a GPU.
    """
    if method == "forkserver":
        server = find_fork_server(may_use_device=may_use_device)
        if server is not None:
            with contextlib.suppress(OSError):  # it has just ended
                return server.launch(channel, parent_pipe)
    return launch("fork" if method == "fork" else "spawn", channel, parent_pipe, task)


def find_fork_server(*, may_use_device: bool) -> ForkServer | None:
    """Returns a server that runs, and starts one if there is none; None if none can be started.

    Args:
        may_use_device: Whether its copies may use a GPU. A copy of a process that has looked for GPUs cannot.
    """
    with _lock, interrupts_deferred():
        for is_copy in (False,) if may_use_device else (True, False):
            server = _servers.get(is_copy)
            if server is not None and server.is_alive:
                return server
        return _start(is_copy=False)


def prepare_workers() -> None:
    """Lets workers that start later start quickly, even if CUDA is in use by then; returns at once.

    Loaders do this when they are made. Call it yourself, after the imports of a program, if CUDA is in use before its
    loaders are made: the workers then start as copies of a process that is made now. It does nothing on machines
    without a GPU, unless this process cannot be forked safely now. That process does nothing until then, and ends with
    this one.
    """
    hazard = fork_hazard(uses_device=False)
    if hazard is None and not may_use_gpu():
        return
    with _lock, interrupts_deferred():
        server = next((one for one in _servers.values() if one.is_alive), None)
        if server is None:
            _start(is_copy=hazard is None and not _is_importing())
        else:
            server.import_modules(_modules_of_workers())


def _modules_of_workers() -> tuple[str, ...]:
    """Returns the modules that workers will probably need: those of this package that this process has imported."""
    own = (name for name in list(sys.modules) if name.startswith("energon_dali."))
    return (*_OF_WORKERS, *sorted(own))


def _start(*, is_copy: bool) -> ForkServer | None:
    """Starts a server, and forgets an earlier one that has ended."""
    before = _servers.pop(is_copy, None)
    if before is not None:
        before.close()
    try:
        server = _servers[is_copy] = ForkServer(is_copy=is_copy, imports=_modules_of_workers())
    except OSError as error:
        logger.info("No fork server could be started: %s. Workers are spawned.", error)
        return None
    return server


def _is_importing() -> bool:
    """Returns whether a module is being imported: a copy of this process would never have the whole of it."""
    specs = (getattr(module, "__spec__", None) for module in list(sys.modules.values()))
    return any(getattr(spec, "_initializing", False) for spec in specs)
