"""How a process that was started here lives beside its parent: it ends with it, leaves signals to it, and has seeds."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache

_PR_SET_PDEATHSIG = 1


def die_with(lifeline: int, parent_pid: int) -> None:
    """Makes the kernel end this process when its parent ends, even while it is inside a long C call.

    Two ways, because each has a hole: SIGIO when the pipe's last writer is gone (a process that the trainer forked may
    hold it open), and the parent-death signal (sent also when only the *thread* that started this process ends, so it
    makes us look, not die).

    Args:
        lifeline: Read end of a pipe whose write end only the parent holds.
        parent_pid: Process id of the parent.
    """

    def look(*_: object) -> None:
        if os.getppid() != parent_pid:
            os._exit(1)

    signal.signal(signal.SIGUSR2, look)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR2)
    look()  # it may have ended before the signal was asked for
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(lifeline, 1) == b"":  # it ended before we listened
            os._exit(1)
    except BlockingIOError:
        pass


def leave_termination() -> None:
    """Leaves SIGTERM to the parent, with which this process ends: a trainer may want to save, or to end its step.

    It reaches whole groups of processes where torchrun or a scheduler sends it. Processes that hooks start end by it as
    ever.
    """
    # Not SIG_IGN: programs that hooks start would ignore it too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    _let_copies_hear_termination()


_forking = threading.local()


@cache
def _let_copies_hear_termination() -> None:
    """Is called once: a forked copy has what was registered here."""
    os.register_at_fork(
        before=_hold_termination, after_in_parent=_release_termination, after_in_child=_hear_termination
    )


def _hold_termination() -> None:
    # Else one that is sent to the new process before it hears it would be lost.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_termination() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _hear_termination() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_termination()


def calm_down(*, on_stacks: Callable[[], None] | None = None) -> None:
    """Leaves Ctrl-C to the parent, SIGUSR1 to the watchdog, and the cores to the other processes.

    Args:
        on_stacks: Called, in the main thread, behind the stacks that SIGUSR1 prints.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.unregister(signal.SIGUSR1)  # of the process that this one is a copy of: register would do nothing
    signal.signal(signal.SIGUSR1, signal.SIG_IGN if on_stacks is None else lambda *_: on_stacks())
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a stderr without a descriptor
            faulthandler.register(signal.SIGUSR1, all_threads=True, chain=on_stacks is not None)
    # They were blocked when this process was started, so that none could end it before.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGUSR1, signal.SIGTERM})
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # read by libraries that are imported later
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def seed_generators(seed_offset: int, rank: int, number: int) -> None:
    """Seeds the global random generators for hooks that use them; nothing of ours does.

    Args:
        seed_offset: The job's.
        rank: The rank.
        number: Number of the process inside the rank.
    """
    from energon_dali.plan import mix

    seed = mix(seed_offset, rank, number) % 2**32
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed)
    if torch is not None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also ask about CUDA
