"""Starts worker processes, from anywhere: a script without a main guard, a notebook, a prompt, `python -c`, pytest."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Literal, get_args

from energon_dali.errors import ConfigError
from energon_dali.loader.workers.channel import Channel
from energon_dali.loader.workers.lifeline import leave_termination

if TYPE_CHECKING:
    from typing import TypeAlias

    from energon_dali.loader.decode_process.messages import DecodeTask
    from energon_dali.loader.workers.messages import WorkerTask

    Task: TypeAlias = WorkerTask | DecodeTask

StartMethod = Literal["spawn", "fork", "forkserver"]
"""How worker processes start.

"spawn": a fresh interpreter; safe with threads, CUDA and everything else. What the dataset holds must be picklable by
cloudpickle (classes, functions and lambdas of `__main__` are).
"fork": a copy of this process; quick, and nothing needs to be picklable, but unsafe where this process has threads that
hold locks (OpenMP, CUDA, tokenizers).
"forkserver": Python's own; needs the main guard (`if __name__ == "__main__":`) in scripts.
"""

Program = Literal["worker", "decode process"]
"""What a process runs: `run_worker` or `run_decode_process`."""

_POLL_SECONDS = 0.005


class WorkerProcess(ABC):
    """A process that was started here."""

    pid: int

    @abstractmethod
    def poll(self) -> int | None:
        """Returns the exit code if the process has ended, negative for a signal; else None. Never waits."""

    def kill(self) -> None:
        """Ends the process at once."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal if the process still runs."""
        if self.poll() is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it ended in between

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the end of the process; returns whether it has ended."""
        deadline = time.monotonic() + timeout_seconds
        while self.poll() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def close(self) -> None:
        """Gives back what was kept for a process that has ended; `poll` still answers."""
        self.poll()

    def open_sentinel(self) -> int | None:
        """Returns a descriptor that becomes readable when the process ends; None where the kernel has none."""
        try:
            return os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            return None


class _Spawned(WorkerProcess):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.poll()


class _Forked(WorkerProcess):
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._code = 0  # somebody else waited for it
            else:
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
        return self._code


class _Served(WorkerProcess):
    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self._process = process
        self._code: int | None = None
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._code if self._code is not None else self._process.exitcode

    def close(self) -> None:
        self._code = self._process.exitcode
        if self._code is not None:
            self._process.close()


def check_start_method(method: str) -> StartMethod:
    """Returns the method.

    Raises:
        ConfigError: There is no such method.
    """
    for known in get_args(StartMethod):
        if method == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"start_method={method!r} is unknown: give one of {', '.join(map(repr, get_args(StartMethod)))}.")


def launch(
    method: StartMethod, channel: Channel, lifeline: int, task: Task, foreign: list[int], program: Program = "worker"
) -> WorkerProcess:
    """Starts a worker, or a decode process.

    Args:
        method: How. A forked process has the task; others expect it as their first message.
        channel: The new process's end of its connection; the caller closes its copy afterwards.
        lifeline: Read end of the lifeline pipe.
        task: What the process runs.
        foreign: Descriptors of this process that a forked one must close: ends of other connections.
        program: What kind of task it is.
    """
    # A Ctrl-C while the interpreter of the worker starts must not kill it with a traceback, and the watchdog's SIGUSR1
    # and a SIGTERM that the trainer handles must not kill it either: it begins with them blocked, and unblocks them
    # when it is ready for them. A fork server would pass the block on to processes that others start by it; those end
    # by SIGTERM, and so do workers that it starts: multiprocessing ends them so.
    blocked = {signal.SIGINT, signal.SIGUSR1} | ({signal.SIGTERM} if method != "forkserver" else set())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        if method == "spawn":
            return _spawn(channel, lifeline, program)
        if method == "fork":
            return _fork(channel, lifeline, task, foreign, program)
        return _serve(channel, lifeline, program)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(channel: Channel, lifeline: int, program: Program) -> WorkerProcess:
    # At a prompt and with `python -c`, sys.path begins with "" for the current folder, which may change later. What is
    # no text, such as a Path, is not looked at by imports, and would be no literal in the code below.
    path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    code = (
        f"import sys; sys.path[:] = {path!r}; from energon_dali.loader.workers.launch import spawned_main; "
        f"spawned_main({channel.fileno()}, {lifeline}, {os.getpid()}, {program!r})"
    )
    command = [multiprocessing.spawn.get_executable() or sys.executable, *_args_from_interpreter_flags(), "-c", code]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(channel.fileno(), lifeline))
    return _Spawned(process)


def _fork(channel: Channel, lifeline: int, task: Task, foreign: list[int], program: Program) -> WorkerProcess:
    rank_pid = os.getpid()
    _flush()  # else the copy would print once more what waits here
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; whoever asks for "fork" was told about them in StartMethod.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return _Forked(pid)
    code = 1
    try:
        leave_termination()
        for descriptor in foreign:
            os.close(descriptor)
        code = _run(program, channel, lifeline, rank_pid, task)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)  # what the rank registered for its own end must not run here


def _flush() -> None:
    for file in (sys.stdout, sys.stderr):
        # None where the descriptor is closed; or a pipe that nobody reads any more.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            file.flush()


def _serve(channel: Channel, lifeline: int, program: Program) -> WorkerProcess:
    context = multiprocessing.get_context("forkserver")
    # Sockets and connections travel to the server; plain descriptors do not.
    sock = socket.socket(fileno=os.dup(channel.fileno()))
    pipe = Connection(os.dup(lifeline), writable=False)
    process = context.Process(target=_served_main, args=(sock, pipe, program), daemon=True)
    try:
        process.start()
    finally:
        sock.close()
        pipe.close()
    return _Served(process)


def spawned_main(channel: int, lifeline: int, rank_pid: int, program: Program) -> None:
    """Is what a spawned interpreter runs."""
    code = 1
    leave_termination()
    connection = Channel(socket.socket(fileno=channel))
    try:
        code = _run(program, connection, lifeline, rank_pid)
    finally:
        _flush()
        if code == 0:
            os._exit(0)  # threads of libraries must not keep the process


def _served_main(sock: socket.socket, pipe: Connection, program: Program) -> None:
    # The server is the parent of this process, and it outlives the rank: the lifeline alone tells of the rank's end.
    _run(program, Channel(sock), pipe.fileno(), os.getppid())


def _run(program: Program, channel: Channel, lifeline: int, rank_pid: int, task: Any = None) -> int:
    try:
        return _run_program(program, channel, lifeline, rank_pid, task)
    finally:
        # Those that hooks started (a Pool, a ProcessPoolExecutor) end where Python ends, and os._exit is no such end.
        # A forked process also knows those of the process that it is a copy of.
        for child in multiprocessing.active_children():
            if child._parent_pid == os.getpid():  # type: ignore[attr-defined]
                child.terminate()


def _run_program(program: Program, channel: Channel, lifeline: int, rank_pid: int, task: Any) -> int:
    if program == "decode process":
        from energon_dali.loader.decode_process.server import run_decode_process

        return run_decode_process(channel, lifeline, rank_pid, task)
    from energon_dali.loader.workers.worker import run_worker

    return run_worker(channel, lifeline, rank_pid, task)
