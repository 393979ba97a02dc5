"""A worker as the rank knows it: its process, the line to it, what it must still be told, and how it ended."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass, field

from energon_dali.errors import WorkerError
from energon_dali.loader.workers import messages
from energon_dali.loader.workers.arena import ArenaViews
from energon_dali.loader.workers.channel import Channel
from energon_dali.loader.workers.interrupts import interrupts_deferred
from energon_dali.loader.workers.launch import WorkerProcess
from energon_dali.loader.workers.messages import BlockSent, Message, Progress, StartStream

_GRACE_SECONDS = 0.5
"""How long a worker may take to end by itself when the rank hangs up."""

_HINTS = {
    "SIGKILL": " (often the kernel's out-of-memory killer: see dmesg, and lower num_workers, prefetch_factor or "
    "batch_size)",
    "SIGSEGV": " (a crash inside a native library)",
    "SIGBUS": " (memory or a mapped file went away)",
}


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """One worker of a pool."""

    number: int
    """Its number inside the rank."""
    process: WorkerProcess
    channel: Channel
    sentinel: int | None
    """Becomes readable when the process ends; None where the kernel cannot tell."""
    views: ArenaViews = field(default_factory=ArenaViews)
    starts: list[StartStream] = field(default_factory=list)
    """Streams that it must still be told to start."""
    progress: Progress = field(default_factory=Progress)
    """What it must still be told about blocks that were taken."""
    failure: WorkerError | None = None
    """Why it delivers nothing more, after what has come already."""
    at_end: bool = False
    """Whether it ended and everything it said was heard."""

    @property
    def descriptors(self) -> list[int]:
        """What to poll."""
        return [fd for fd in (self.channel.fileno(), self.sentinel) if fd is not None]

    def tell(self) -> None:
        """Sends what the worker does not know yet, as far as that is possible without waiting."""
        if self.at_end:
            return
        try:
            while self.starts:
                if not self.channel.send(messages.encode(self.starts[0]), wait=False):
                    return
                self.starts.pop(0)
            self.progress.unseen_arenas += self.views.take_unseen()
            if self.progress and self.channel.send(messages.encode(self.progress), wait=False):
                self.progress = Progress()
        except OSError:
            return  # it is gone; reading finds out what it said last, and how it ended

    def receive(self) -> tuple[Message, memoryview] | None:
        """Returns a message that has come, with its payload; None if there is none.

        Raises:
            EOFError: The worker is gone, and everything it said was heard.
        """
        received = self.channel.receive(wait=False)
        if received is None:
            return None
        message, payload = messages.decode(received[0])
        if isinstance(message, BlockSent):
            for descriptor in received[1]:
                self.views.add(message.arena, descriptor, message.new_capacity)
            self.views.drop(message.dropped_arenas)
        return message, payload

    def bury(self, poll: select.poll) -> str:
        """Takes a worker that ended out of the poll; returns how it ended, in words."""
        self.at_end = True
        for descriptor in self.descriptors:
            poll.unregister(descriptor)
        return how_it_ended(self.process.poll())


def end_workers(workers: list[WorkerHandle], descriptors: list[int], owner: int) -> None:
    """Hangs up, waits a moment, kills who is still there, and closes what is open.

    Args:
        workers: All workers of a pool; the list is empty afterwards.
        descriptors: What else is to be closed.
        owner: The process that started the workers. A forked copy of it ends without ending them.
    """
    with interrupts_deferred():
        _end_workers(workers, descriptors, owner)


def _end_workers(workers: list[WorkerHandle], descriptors: list[int], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            worker.channel.hang_up()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in workers:
            if not worker.process.join(max(0.0, deadline - time.monotonic())):
                worker.process.kill()
        for worker in workers:
            worker.process.join(5.0)
            worker.process.close()
    for worker in workers:
        if worker.sentinel is not None:
            os.close(worker.sentinel)
        worker.channel.close()
        worker.views.forget()
    for descriptor in descriptors:
        os.close(descriptor)
    workers.clear()


def end_process(process: WorkerProcess, channel: Channel) -> None:
    """Hangs up, waits a moment for a process to end, and kills it if it does not."""
    with interrupts_deferred():
        channel.hang_up()
        if not process.join(_GRACE_SECONDS):
            process.kill()
            process.join(5.0)
        process.close()


def how_it_ended(code: int | None) -> str:
    """Returns how a process ended, in words, by its exit code; None for one that runs."""
    if code is None:
        return "its connection broke while it was still running"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}{_HINTS.get(name, '')}"
