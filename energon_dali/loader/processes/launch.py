"""Starts child processes from anywhere: a script without a main guard, a notebook, a prompt, `python -c`, pytest."""

from __future__ import annotations

import contextlib
import gc
import logging
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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.util import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import Literal, get_args

from energon_dali.errors import ConfigError
from energon_dali.loader.processes.fork_safety import fork_hazard, wait_for_imports
from energon_dali.loader.processes.server import ProcessTask, run_task
from energon_dali.loader.processes.shared_memory import Channel
from energon_dali.loader.processes.signals import forget_handlers, interrupts_deferred, leave_sigterm_to_parent

StartMethod = Literal["spawn", "fork", "forkserver", "auto"]
"""How child processes start.

"auto": "fork" where that is safe as far as is known (see `fork_safety`), otherwise "forkserver" for workers, and
"spawn" for a process that may use a GPU.

"spawn": a fresh interpreter; safe with threads, CUDA and everything else. What the dataset holds must be picklable by
cloudpickle (classes, functions and lambdas of `__main__` are).
"fork": a copy of this process; quick, and nothing needs to be picklable, but unsafe if this process has threads that
hold locks (OpenMP, CUDA, tokenizers).
"forkserver": a copy of a process that runs nothing but what makes such copies (see `fork_server`); as safe as "spawn",
and what it has imported is not imported again. What the dataset holds must be picklable, as with "spawn".
"""

logger = logging.getLogger("energon_dali.loader")

_imports: list[str] = ["energon_dali.loader.processes.launch"]
"""Modules that a child process imports before it unpickles its task."""

_POLL_SECONDS = 0.005
_GRACE_SECONDS = 0.5
"""How long a process may take to end by itself after its parent hung up."""

_UNKNOWN_CODE = 1 << 16
"""Used as the exit code of a process that something else waited for."""
SERVER_ENDED = _UNKNOWN_CODE + 1
"""Used as the exit code of a process whose fork server ended, and its copies with it."""

_HINTS = {
    "SIGKILL": " (often the kernel's out-of-memory killer: see dmesg, and lower num_workers, prefetch_factor or "
    "batch_size)",
    "SIGSEGV": " (a crash inside a native library)",
    "SIGBUS": " (memory or a mapped file went away)",
}


class ChildProcess:
    """A process that this one started.

    Args:
        pid: Its process id.
        poll: Returns its exit code if it has ended, negative for a signal; else None. Never waits, and is not called
            again after it returned a code.
        release: Releases what is kept for the process after it has ended; None for nothing.
    """

    def __init__(self, pid: int, poll: Callable[[], int | None], release: Callable[[], None] | None = None) -> None:
        self.pid = pid
        self._poll = poll
        self._release = release
        self._code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code if the process has ended, negative for a signal; else None. Never waits."""
        if self._code is None:
            self._code = self._poll()
        return self._code

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
        """Waits for the process to end; returns whether it has ended."""
        deadline = time.monotonic() + timeout_seconds
        while self.poll() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def close(self) -> None:
        """Releases what is kept for a process that has ended; `poll` still works."""
        if self.poll() is not None and self._release is not None:
            self._release()

    def open_sentinel(self) -> int | None:
        """Returns a descriptor that becomes readable when the process ends; None if the kernel has none."""
        try:
            return os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            return None


def _exit_code_of_fork(pid: int) -> int | None:
    """Returns the exit code of a forked process, if it has ended; else None."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return _UNKNOWN_CODE
    return os.waitstatus_to_exitcode(status) if ended else None


def check_start_method(method: str) -> None:
    """Checks that there is a method.

    Raises:
        ConfigError: There is none of this name.
    """
    if method not in get_args(StartMethod):
        known = ", ".join(map(repr, get_args(StartMethod)))
        raise ConfigError(f"start_method={method!r} is unknown: give one of {known}.")


def import_in_children(module: str) -> None:
    """Makes every child process import a module before it unpickles what it runs.

    Args:
        module: Its name, such as "energon_dali.compat".
    """
    if module not in _imports:
        _imports.append(module)


def imports_of_children() -> Sequence[str]:
    """Returns the modules that every child process imports before it unpickles what it runs."""
    return _imports


def resolve_start_method(method: StartMethod, *, uses_device: bool) -> StartMethod:
    """Returns the method that processes which start now use: what "auto" stands for, or the method itself.

    Args:
        method: What the user asked for.
        uses_device: Whether the processes may use a GPU.
    """
    if method != "auto":
        return method
    hazard = fork_hazard(uses_device=uses_device)
    if hazard is None:
        return "fork"
    # A copy of a process that has looked for GPUs cannot use CUDA, and a fork server may be such a copy.
    chosen: StartMethod = "spawn" if uses_device else "forkserver"
    how = "spawned" if uses_device else "started by a fork server"
    logger.info('Processes are %s, because %s. start_method="fork" would copy this one.', how, hazard)
    return chosen


def launch(method: Literal["spawn", "fork"], channel: Channel, parent_pipe: int, task: ProcessTask) -> ChildProcess:
    """Starts a child process of this one.

    Args:
        method: How. A forked process inherits the task; a spawned one expects it, pickled, as its first message.
        channel: The new process's end of its connection; the caller closes its copy afterwards.
        parent_pipe: Read end of its parent pipe, see `signals.exit_with_parent`; the caller closes it afterwards.
        task: What the process runs.
    """
    with _signals_blocked():
        return _fork(channel, parent_pipe, task) if method == "fork" else _spawn(channel, parent_pipe)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Lets a process that is started inside begin with signals blocked, which it unblocks when it is ready.

    Neither a Ctrl-C while the child's interpreter starts, nor the watchdog's SIGUSR1, nor a SIGTERM that the trainer
    handles may kill the child.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(channel: Channel, parent_pipe: int) -> ChildProcess:
    # At a prompt and with `python -c`, sys.path starts with "" for the current folder, which may change later. Entries
    # that are not strings, such as a Path, are skipped: imports ignore them, and their repr is not a literal.
    path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    code = (
        f"import sys; sys.path[:] = {path!r}; import {', '.join(_imports)}; "
        f"{_imports[0]}.spawned_main({channel.fileno()}, {parent_pipe}, {os.getpid()})"
    )
    command = [multiprocessing.spawn.get_executable() or sys.executable, *_args_from_interpreter_flags(), "-c", code]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(channel.fileno(), parent_pipe))
    return ChildProcess(process.pid, process.poll)


def launch_copy(channel: Channel, parent_pipe: int, prepare: Callable[[], None]) -> ChildProcess:
    """Starts a copy of this process that expects its task, pickled, as its first message.

    Args:
        channel: As in `launch`.
        parent_pipe: As in `launch`.
        prepare: Called in the copy first.
    """
    with _signals_blocked():
        return _fork(channel, parent_pipe, None, prepare)


def _fork(
    channel: Channel, parent_pipe: int, task: ProcessTask | None, prepare: Callable[[], None] | None = None
) -> ChildProcess:
    parent_pid = os.getpid()
    _flush_output()  # otherwise the copy prints what is buffered here again
    wait_for_imports()
    with warnings.catch_warnings():
        # Python 3.12 warns about threads; StartMethod documents that risk for "fork".
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return ChildProcess(pid, partial(_exit_code_of_fork, pid))
    code = 1
    try:
        gc.freeze()  # what the parent left for its collector is not finalised here a second time
        leave_sigterm_to_parent()
        forget_handlers()
        if prepare is not None:
            prepare()
        _run(channel, parent_pipe, parent_pid, task)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush_output()
        os._exit(code)  # what the parent registered with atexit must not run here


def _flush_output() -> None:
    for file in (sys.stdout, sys.stderr):
        # None if the descriptor is closed; or a pipe that nobody reads any more.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            file.flush()


def spawned_main(channel: int, parent_pipe: int, parent_pid: int) -> None:
    """Main function of a spawned interpreter."""
    failed = True
    leave_sigterm_to_parent()
    connection = Channel(socket.socket(fileno=channel))
    try:
        _run(connection, parent_pipe, parent_pid)
        failed = False
    finally:
        _flush_output()
        if not failed:
            os._exit(0)  # threads of libraries must not keep the process alive


def _run(channel: Channel, parent_pipe: int, parent_pid: int, task: ProcessTask | None = None) -> None:
    try:
        run_task(channel, parent_pipe, parent_pid, task)
    finally:
        # Processes that hooks started (a Pool, a ProcessPoolExecutor) end when Python exits, which os._exit skips.
        # A forked process also lists those of the process that it is a copy of.
        for child in multiprocessing.active_children():
            if child._parent_pid == os.getpid():  # type: ignore[attr-defined]
                child.terminate()


def end_processes(processes: list[tuple[ChildProcess, Channel]]) -> None:
    """Hangs up, waits a moment for all processes to end, and kills those that do not.

    Args:
        processes: Each with the connection to it.
    """
    with interrupts_deferred():
        for _, channel in processes:
            channel.hang_up()
        deadline = time.monotonic() + _GRACE_SECONDS
        for process, _ in processes:
            if not process.join(max(0.0, deadline - time.monotonic())):
                process.kill()
        for process, _ in processes:
            process.join(5.0)
            process.close()


def describe_exit(code: int | None) -> str:
    """Returns how a process ended, in words, by its exit code; None for one that runs."""
    if code is None:
        return "its connection broke while it was still running"
    if code == _UNKNOWN_CODE:
        return "something else in this program, such as a handler of SIGCHLD, took its exit code"
    if code == SERVER_ENDED:
        return "the fork server that had started it ended"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}{_HINTS.get(name, '')}"
