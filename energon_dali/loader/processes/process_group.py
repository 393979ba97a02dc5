"""The parent's side of a process border: child processes that serve blocks, from their start to their end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from energon_dali.errors import WorkerDiedError, WorkerError
from energon_dali.loader.processes.channel import Channel
from energon_dali.loader.processes.class_pickling import pickle_task
from energon_dali.loader.processes.launch import (
    ChildProcess,
    StartMethod,
    describe_exit,
    end_processes,
    launch,
    resolve_start_method,
)
from energon_dali.loader.processes.messages import BlockSent, Credits, Message, StartStream, decode, encode
from energon_dali.loader.processes.shared_memory import ArenaViews
from energon_dali.loader.processes.signals import interrupts_deferred

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.loader.processes.server import ProcessTask

WAKE_MS = 1000
"""A waiting thread wakes up this often: for the watchdog, and for processes that died where the kernel has no pidfd."""

_EXIT_SECONDS = 2.0
"""How long the exit code of a process may take after its connection broke."""


class ServedProcess:
    """A process that serves blocks, with what it still has to be told.

    Args:
        name: For messages, such as "Worker 0 of rank 1".
        process: The process.
        channel: The connection to it.
    """

    def __init__(self, name: str, process: ChildProcess, channel: Channel) -> None:
        self.name = name
        self.process = process
        self.channel = channel
        self.sentinel = process.open_sentinel()
        """Becomes readable when the process ends; None if the kernel cannot tell."""
        self.views = ArenaViews()
        self.starts: list[StartStream] = []
        """Streams that it still has to be told to start."""
        self.credits = Credits()
        """What it still has to be told about blocks that were taken."""
        self.failure: Exception | None = None
        """Why it serves nothing after what has already arrived."""
        self.at_end = False
        """Whether it ended and all its messages were received."""

    @property
    def descriptors(self) -> list[int]:
        """Descriptors to poll."""
        return [fd for fd in (self.channel.fileno(), self.sentinel) if fd is not None]

    def flush(self) -> None:
        """Sends what the process does not know yet, as far as there is room."""
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


def end_members(members: list[ServedProcess], descriptors: list[int], owner: int) -> None:
    """Ends all processes of a group and closes what is open.

    Args:
        members: The processes; the list is empty afterwards.
        descriptors: Further descriptors to close.
        owner: The process that started them. A forked copy of it leaves them alone.
    """
    with interrupts_deferred():
        if os.getpid() == owner:
            end_processes([(member.process, member.channel) for member in members])
        for member in members:
            if member.sentinel is not None:
                os.close(member.sentinel)
            member.channel.close()
            member.views.drop_all()
        for descriptor in descriptors:
            os.close(descriptor)
        members.clear()


class ProcessGroup(ABC):
    """Processes that are started, waited for and ended together.

    Only one thread at a time may receive; `interrupt` and `close` may be called from any thread.

    Args:
        metrics: Takes what the processes count.
        start_method: How they start.
        uses_device: Whether they may use a GPU.
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
        end: Callable[[list[ServedProcess], list[int], int], None] = end_members,
    ) -> None:
        self._metrics = metrics
        self._method: StartMethod = resolve_start_method(start_method, uses_device=uses_device)
        self._subject = subject
        self._members: list[ServedProcess] = []
        self._by_fd: dict[int, ServedProcess] = {}
        self._interrupted = False
        self._owner = os.getpid()
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.POLLIN)
        try:
            self._parent_pipe, self._parent_pipe_end = os.pipe2(os.O_CLOEXEC)
        except OSError:  # at the limit of open files: do not keep another one open
            os.close(self._wake)
            raise
        descriptors = [self._wake, self._parent_pipe, self._parent_pipe_end]
        self._end = weakref.finalize(self, end, self._members, descriptors, self._owner)

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that were started."""
        return [member.process.pid for member in self._members]

    def _pickle(self, task: ProcessTask, where: str, remedy: str) -> bytes | None:
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

    def _start(self, name: str, task: ProcessTask, pickled: bytes | None) -> ServedProcess:
        """Starts a process."""
        with interrupts_deferred():  # a process that is not among the members would never be waited for
            ours, theirs = Channel.pair()
            foreign = [self._parent_pipe_end, self._wake, ours.fileno()]
            foreign += [fd for member in self._members for fd in member.descriptors]
            try:
                process = launch(self._method, theirs, self._parent_pipe, task, foreign)
            finally:
                theirs.close()
            member = ServedProcess(name, process, ours)
            self._members.append(member)
            for descriptor in member.descriptors:
                self._poll.register(descriptor, select.POLLIN)
                self._by_fd[descriptor] = member
            if self._method != "fork" and pickled is not None:
                with contextlib.suppress(OSError):  # it is gone already: receiving finds out how it ended
                    ours.send(pickled)
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
        for member in active.values() or [member for member in self._members if member.sentinel is None]:
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
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Ends all processes and closes all descriptors; may be called again. Elements that are held stay valid."""
        with interrupts_deferred():
            self._end()
