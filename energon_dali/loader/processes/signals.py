"""Signals around a process border: a child ends with its parent and leaves Ctrl-C, SIGTERM and SIGUSR1 to it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Delays Python's handlers of SIGINT and SIGTERM until the block ends: an exception inside would lose a process.

    Blocking the signals is not enough: another thread receives them, and Python still runs the handlers in the main
    thread. In other threads nothing needs to be done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):  # not the system's default, not ignored, not set by a library in C
                handlers[number] = handler
                signal.signal(number, lambda signum, frame: received.append((signum, frame)))
        yield
    finally:
        for restored, handler in handlers.items():
            signal.signal(restored, handler)
        for signum, frame in received:
            handlers[signum](signum, frame)


def exit_with_parent(parent_pipe: int, parent_pid: int) -> None:
    """Makes the kernel end this process when its parent ends, even during a long call into C.

    There are two ways, because each has a hole. SIGIO is sent when the pipe's last writer is gone, but a process that
    the trainer forked may hold the pipe open. The parent-death signal is also sent when only the *thread* that started
    this process ends, so its handler checks the parent first.

    Args:
        parent_pipe: Read end of a pipe whose write end only the parent holds.
        parent_pid: Process id of the parent.
    """

    def check_parent(*_: object) -> None:
        if os.getppid() != parent_pid:
            os._exit(1)

    signal.signal(signal.SIGUSR2, check_parent)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR2)
    check_parent()  # it may have ended before the signal was requested
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(parent_pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(parent_pipe, fcntl.F_SETFL, fcntl.fcntl(parent_pipe, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(parent_pipe, 1) == b"":  # it ended before SIGIO was requested
            os._exit(1)
    except BlockingIOError:
        pass


def leave_sigterm_to_parent() -> None:
    """Ignores SIGTERM: this process ends with its parent, and a trainer may want to save or to finish its step first.

    torchrun and schedulers send SIGTERM to whole process groups. Processes that hooks start end by it as usual.
    """
    # Not SIG_IGN: programs that hooks start would inherit it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    _restore_sigterm_in_forks()


def forget_handlers() -> None:
    """Restores the system's defaults in a forked process for signals that the trainer handles, except SIGTERM.

    A handler of the trainer's, such as one for SIGCHLD or SIGALRM, has nothing to do with the signals of a worker, and
    an event loop's would wake the trainer's.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGTERM, signal.SIGINT}:
        if callable(signal.getsignal(number)) and not isinstance(signal.getsignal(number), signal.Handlers):
            signal.signal(number, signal.SIG_DFL)


_forking = threading.local()


@cache
def _restore_sigterm_in_forks() -> None:
    """Registers the hooks once: a forked copy inherits what was registered here."""
    os.register_at_fork(before=_block_sigterm, after_in_parent=_unblock_sigterm, after_in_child=_restore_sigterm)


def _block_sigterm() -> None:
    # Otherwise a SIGTERM sent to the new process before it has its handler back would be lost.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _restore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock_sigterm()


def setup_signals() -> None:
    """Leaves Ctrl-C to the parent, prints all stacks on SIGUSR1, and limits libraries to one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _print_stacks_on_sigusr1(signal.SIG_IGN, chain=False)
    # `launch` blocked them, so that none could end this process before it was ready.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGUSR1, signal.SIGTERM})
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # read by libraries that are imported later
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def forward_stack_requests(request_stacks: Callable[[], None]) -> None:
    """Asks other processes for their stacks too, in the main thread, after SIGUSR1 printed those of this process.

    Args:
        request_stacks: Sends SIGUSR1 to the children of this process.
    """
    _print_stacks_on_sigusr1(lambda *_: request_stacks(), chain=True)


def _print_stacks_on_sigusr1(handler: Any, *, chain: bool) -> None:
    faulthandler.unregister(signal.SIGUSR1)  # a forked copy inherits it, and `register` would change nothing
    signal.signal(signal.SIGUSR1, handler)
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a stderr without a descriptor
            faulthandler.register(signal.SIGUSR1, all_threads=True, chain=chain)
