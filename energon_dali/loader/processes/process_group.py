"""The parent's side of a process border: child processes that serve blocks, from their start to their end."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, closing

from energon_dali.datasets.metrics import Metrics, WorkReport
from energon_dali.errors import WorkerDiedError, WorkerError
from energon_dali.loader.processes.class_pickling import pickle_task
from energon_dali.loader.processes.fork_server import start_process
from energon_dali.loader.processes.launch import (
    ChildProcess,
    StartMethod,
    describe_exit,
    end_processes,
    resolve_start_method,
)
from energon_dali.loader.processes.messages import BlockSent, Credits, Message, StartStream, decode, encode
from energon_dali.loader.processes.server import ReportingTask
from energon_dali.loader.processes.shared_memory import ArenaViews, Channel
from energon_dali.loader.processes.signals import interrupts_deferred
from energon_dali.loader.processes.work_board import WorkBoard
from energon_dali.shards.storage.forks import drop_in_child

WAKE_MS = 1000
"""A waiting thread wakes up this often: for the watchdog, and for processes that died where the kernel has no pidfd."""

_ONE = (1).to_bytes(8, sys.byteorder)
"""What adds one to an eventfd."""

_EXIT_SECONDS = 2.0
"""How long the exit code of a process may take after its connection broke."""


class ServedProcess:
    """A process that serves blocks, with the messages that are still to be sent to it.

    Args:
        name: For messages, such as "Worker 0 of rank 1".
        channel: The connection to it.
        parent_pipe_end: Write end of its parent pipe, see `signals.exit_with_parent`.
    """

    process: ChildProcess
    """The process, as soon as it was started."""

    def __init__(self, name: str, channel: Channel, parent_pipe_end: io.FileIO) -> None:
        self.name = name
        self.channel = channel
        self._parent_pipe_end = parent_pipe_end
        self._sentinel: io.FileIO | None = None
        self.views = ArenaViews()
        self.starts: list[StartStream] = []
        """Streams to start, which are still to be sent to it."""
        self.credits = Credits()
        """Blocks that were taken, which are still to be reported to it."""
        self.failure: Exception | None = None
        """Why it serves nothing after what has already arrived."""
        self.at_end = False
        """Whether it ended and all its messages were received."""
        drop_in_child(self)

    def started(self, process: ChildProcess) -> None:
        """Notes that it was started."""
        self.process = process
        sentinel = process.open_sentinel()
        self._sentinel = None if sentinel is None else io.FileIO(sentinel)

    @property
    def has_sentinel(self) -> bool:
        """Whether a descriptor becomes readable when the process ends; not every kernel has that."""
        return self._sentinel is not None

    @property
    def descriptors(self) -> list[int]:
        """Descriptors to poll."""
        return [self.channel.fileno(), *([] if self._sentinel is None else [self._sentinel.fileno()])]

    def close(self) -> None:
        """Closes this process's ends of the connections to it; may be called again."""
        for end in (self.channel, self._sentinel, self._parent_pipe_end):
            if end is not None:
                end.close()

    def after_fork(self) -> None:
        """Closes the copies that a forked child has: they would keep the process from noticing the parent's end."""
        self.close()

    def flush(self) -> None:
        """Sends what the process has not received yet, as far as there is room."""
        if self.at_end:
            return
        with contextlib.suppress(OSError):  # it is gone: receiving finds its last messages, and how it ended
            while self.starts:
                if not self.channel.send(encode(self.starts[0]), wait=False):
                    return
                self.starts.pop(0)
            self.credits.released_arenas += self.views.take_released()
            if self.credits:
                # Exchanged first: a signal handler may ask for a block here as well.
                credits, self.credits = self.credits, Credits()
                if not self.channel.send(encode(credits), wait=False):
                    self.credits.add(credits)

    def receive(self) -> tuple[Message, memoryview] | None:
        """Returns (message, payload) if a message has arrived, else None.

        Raises:
            EOFError: The process is gone, and all its messages were received.
        """
        received = self.channel.receive(wait=False)
        if received is None:
            return None
        message, payload = decode(received[0])
        if isinstance(message, BlockSent):
            for descriptor in received[1]:
                self.views.add(message.arena, descriptor, message.new_capacity)
            self.views.drop(message.dropped_arenas)
        return message, payload


def end_members(members: list[ServedProcess], wake: io.FileIO, owner: int) -> None:
    """Ends all processes of a group and closes what is open.

    Args:
        members: The processes; the list is empty afterwards.
        wake: What wakes the thread that waits for them.
        owner: The process that started them. A forked copy of it leaves them alone.
    """
    with interrupts_deferred():
        if os.getpid() == owner:
            end_processes([(member.process, member.channel) for member in members])
        for member in members:
            member.close()
            member.views.drop_all()
        wake.close()
        members.clear()


class ProcessGroup(ABC):
    """Processes that are started, waited for and ended together.

    Only one thread at a time may receive; `interrupt` and `close` may be called from any thread.

    Args:
        metrics: Takes what the processes count.
        start_method: How they start.
        uses_device: Whether they may use a GPU.
        board: Where they report what they work on.
        subject: For the message after close, such as "The worker processes were".
        end: Ends the members, see `end_members`.
    """

    def __init__(
        self,
        metrics: Metrics,
        start_method: StartMethod,
        subject: str,
        *,
        uses_device: bool,
        board: WorkBoard,
        end: Callable[[list[ServedProcess], io.FileIO, int], None] = end_members,
    ) -> None:
        self._metrics = metrics
        self._uses_device = uses_device
        self._board = board
        metrics.read_others(board)
        self._method: StartMethod = resolve_start_method(start_method, uses_device=uses_device)
        self._subject = subject
        self._members: list[ServedProcess] = []
        self._by_fd: dict[int, ServedProcess] = {}
        self._interrupted = False
        self._owner = os.getpid()
        self._poll = select.poll()
        self._wake = io.FileIO(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), "r+")
        self._poll.register(self._wake, select.POLLIN)
        self._end = weakref.finalize(self, end, self._members, self._wake, self._owner)

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that were started."""
        return [member.process.pid for member in self._members]

    def _pickle(self, task: ReportingTask, where: str, remedy: str) -> bytes | None:
        """Returns a task, pickled; None if it cannot be, and does not need to be.

        Raises:
            WorkerError: It cannot be pickled.
        """
        try:
            # For "fork" too: cloudpickle then recognises the script's classes when their instances come back.
            return pickle_task(task)
        except Exception as error:
            if self._method == "fork":
                return None
            raise WorkerError(
                f"The dataset cannot travel to {where}, because something in it cannot be pickled: {error}. Keep open "
                "files, locks, generators and the like out of the task encoder's attributes (open them when they are "
                f"first used), or use {remedy}."
            ) from error

    def _start(self, name: str, task: ReportingTask, pickled: bytes | None) -> ServedProcess:
        """Starts a process."""
        started = time.perf_counter()
        with interrupts_deferred():  # a process that is not among the members would never be waited for
            pipe, pipe_end = os.pipe2(os.O_CLOEXEC)
            with open(pipe, "rb", buffering=0), ExitStack() as on_failure:
                parent_pipe_end = on_failure.enter_context(open(pipe_end, "wb", buffering=0))
                ours, theirs = Channel.pair()
                member = ServedProcess(name, ours, parent_pipe_end)
                on_failure.callback(member.close)
                with closing(theirs):
                    member.started(start_process(self._method, theirs, pipe, task, may_use_device=self._uses_device))
                on_failure.pop_all()
            self._members.append(member)
            report = WorkReport(task.process_name, started, "start", started, "", {}, {}, 0.0, [])
            self._board.write(task.board_region, report)
            for descriptor in member.descriptors:
                self._poll.register(descriptor, select.POLLIN)
                self._by_fd[descriptor] = member
            with contextlib.suppress(OSError):  # it is gone already: receiving finds out how it ended
                ours.send((self._method != "fork" and pickled) or b"", [self._board.fileno()])
        return member

    @abstractmethod
    def _handle(self, member: ServedProcess, message: Message, payload: memoryview) -> None:
        """Handles a message of a process."""

    def _receive(self, member: ServedProcess) -> bool:
        """Handles one message of a process; returns whether there was one.

        One only: each look releases the interpreter lock, even if nothing has arrived.
        """
        if member.at_end:
            return False
        try:
            received = member.receive()
        except EOFError:
            member.process.join(_EXIT_SECONDS)
            self._reap(member)
            return False
        if received is None:
            return False
        self._handle(member, *received)
        return True

    def _wait(self) -> None:
        """Waits until something happens in any process, and handles it."""
        events = self._poll.poll(WAKE_MS)
        self._check_open()
        active = {id(self._by_fd[fd]): self._by_fd[fd] for fd, _ in events if fd in self._by_fd}
        for member in active.values() or [member for member in self._members if not member.has_sentinel]:
            if not self._receive(member) and member.process.poll() is not None:
                while self._receive(member):  # its last messages arrived in between
                    pass
                self._reap(member)

    def _reap(self, member: ServedProcess) -> None:
        """Notes that a process ended."""
        if member.at_end:
            return
        member.at_end = True
        for descriptor in member.descriptors:
            self._poll.unregister(descriptor)
        member.failure = member.failure or WorkerDiedError(
            f"{member.name} (process {member.process.pid}) ended unexpectedly: "
            f"{describe_exit(member.process.poll())}. Its last output is on its standard error. Restore the last state "
            "to continue."
        )

    def show_stacks(self) -> None:
        """Asks all processes to print the stacks of their threads to their standard error."""
        for member in self._members:
            member.process.signal(signal.SIGUSR1)

    def _check_open(self) -> None:
        if self._interrupted or not self._end.alive:
            raise WorkerError(f"{self._subject} ended with close(); make a new iterator to go on.")

    def interrupt(self) -> None:
        """Makes a thread that waits for a block, or asks for the next, give up with a WorkerError."""
        self._interrupted = True
        # A forked copy shares the counter with the process that waits, and must not wake that one.
        if self._end.alive and os.getpid() == self._owner:
            with contextlib.suppress(ValueError):  # another thread closes it
                self._wake.write(_ONE)

    def close(self) -> None:
        """Ends all processes and closes all descriptors; may be called again. Elements that are held stay valid."""
        with interrupts_deferred():
            self._end()
            self._board.close_file()
            self._metrics.note_end_of(self._board)
