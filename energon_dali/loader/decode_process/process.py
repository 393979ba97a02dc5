"""The decode process as the trainer knows it: starts it, takes its batches, notices its death, and ends it."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError, WorkerDiedError, WorkerError
from energon_dali.loader.decode_process.batch import unpack_batch
from energon_dali.loader.decode_process.device_memory import DeviceViews
from energon_dali.loader.decode_process.messages import CODEC, BatchSent, DecodeTask, EpochEnded, Farewell, Wanted
from energon_dali.loader.decode_process.server import REBUILD
from energon_dali.loader.workers.arena import ArenaViews
from energon_dali.loader.workers.channel import Channel
from energon_dali.loader.workers.failure import rebuild_error, task_error
from energon_dali.loader.workers.handle import end_process, how_it_ended
from energon_dali.loader.workers.interrupts import interrupts_deferred
from energon_dali.loader.workers.launch import launch
from energon_dali.loader.workers.messages import StillAtWork, StreamFailed
from energon_dali.loader.workers.task_pickle import pickle_task

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.datasets.stream import State
    from energon_dali.loader.workers.launch import WorkerProcess

_WAKE_MS = 1000
"""A waiting thread looks up this often: for deaths where the kernel has no pidfd."""

_FAREWELL_SECONDS = 0.5
"""How long `close` waits for the last statistics."""


class DecodeProcess:
    """Takes batches from a decode process, which has been started.

    Only one thread at a time may ask for batches; `interrupt` and `close` may be called from any thread.

    Args:
        task: What it runs.
        metrics: Takes what its metrics counted, and those of its workers.

    Raises:
        ConfigError: The start method cannot work here.
        WorkerError: The dataset cannot be pickled.
    """

    def __init__(self, task: DecodeTask, metrics: Metrics) -> None:
        check_fork(task.start_method)
        pickled = _pickled(task)
        self._metrics = metrics
        self._rank = task.dataset.worker_config.rank
        self._views = ArenaViews()
        self._device_views = DeviceViews()
        self._waiting: deque[tuple[Any, memoryview]] = deque()
        self._wanted = Wanted(batches=task.prefetch)
        self._interrupted = False
        self._at_end = False
        self._owner = os.getpid()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        lifeline, lifeline_end = os.pipe2(os.O_CLOEXEC)
        self._channel, theirs = Channel.pair()
        foreign = [lifeline_end, self._wake, self._channel.fileno()]
        try:
            self._process = launch(task.start_method, theirs, lifeline, task, foreign, "decode process")
        finally:
            theirs.close()
            os.close(lifeline)
        self._sentinel = self._process.open_sentinel()
        descriptors = [self._wake, lifeline_end, *([] if self._sentinel is None else [self._sentinel])]
        self._end = weakref.finalize(
            self, _end, self._process, self._channel, self._device_views, descriptors, self._owner
        )
        self._poll = select.poll()
        for descriptor in (self._wake, self._channel.fileno(), self._sentinel):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)
        if task.start_method != "fork" and pickled is not None:
            with contextlib.suppress(OSError):  # it is gone already; reading finds out how it ended
                self._channel.send(pickled)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def note_streams(self) -> None:
        """Notes the CUDA streams that are current in the calling thread, the trainer's: it uses batches on them."""
        self._device_views.note_streams()

    def take(self) -> tuple[Any, bytes] | State:
        """Returns the next batch and the pickled state behind it; or, where the epoch is over, the state alone.

        Raises:
            WorkerDiedError: The process ended unasked.
            WorkerError: It was closed, or an exception of it cannot be shown as what it was.
            Exception: Whatever ended the iteration there.
        """
        self._tell()
        while not self._waiting:
            if self._at_end:
                raise self._died()
            self._wait()
        message, payload = self._waiting.popleft()
        if isinstance(message, StreamFailed):
            raise (task_error if message.stream == REBUILD else rebuild_error)(message, "the decode process")
        if isinstance(message, EpochEnded):
            self._wanted.next_epoch = True  # said when the next batch is asked for
            return message.state
        assert isinstance(message, BatchSent)
        self._wanted.batches += 1
        source = payload if message.arena < 0 else self._views.view(message.arena)
        first, size = message.contents
        contents = pickle.loads(source[first : first + size])
        batch = unpack_batch(source, contents, self._device_views.view(message.device_pieces))
        first, size = message.state
        return batch, bytes(source[first : first + size])

    def _tell(self) -> None:
        """Sends what the process does not know yet, as far as that is possible without waiting."""
        self._wanted.unseen_arenas += self._views.take_unseen()
        self._wanted.unseen_device_arenas += self._device_views.take_unseen()
        self._wanted.closed_device_arenas += self._device_views.take_closed()
        # Exchanged first: a signal handler in between may ask for a batch as well.
        wanted, self._wanted = self._wanted, Wanted()
        with contextlib.suppress(OSError):  # it is gone; reading finds out what it said last, and how it ended
            if wanted and not self._channel.send(CODEC.encode(wanted), wait=False):
                self._wanted.add(wanted)

    def _listen(self) -> None:
        """Takes a message if one has come. One: each look gives the interpreter lock away, a look in vain as well."""
        try:
            if not self._at_end and (received := self._channel.receive(wait=False)) is not None:
                self._note(*CODEC.decode(received[0]), received[1])
        except EOFError:
            self._at_end = True

    def _note(self, message: Any, payload: memoryview, descriptors: list[int]) -> None:
        if isinstance(message, BatchSent):
            for descriptor in descriptors:
                self._views.add(message.arena, descriptor, message.new_capacity)
            self._views.drop(message.dropped_arenas)
            self._device_views.drop(message.dropped_device_arenas)
            source = payload if message.arena < 0 else self._views.peek(message.arena)
            first, size = message.record
            self._metrics.merge(pickle.loads(source[first : first + size]))
        else:
            self._metrics.merge(message.record)
        if isinstance(message, StillAtWork):
            return
        self._waiting.append((message, payload))

    def _wait(self) -> None:
        self._check_open()
        events = self._poll.poll(_WAKE_MS)
        self._check_open()
        self._listen()
        if not self._waiting and any(fd == self._sentinel for fd, _ in events):
            self._at_end = True
        self._tell()

    def _died(self) -> WorkerDiedError:
        self._process.join(2.0)
        return WorkerDiedError(
            f"The decode process of rank {self._rank} (process {self.pid}) ended unasked: "
            f"{how_it_ended(self._process.poll())}. What it printed last stands on its standard error. Restore the "
            "last state to continue."
        )

    def show_stacks(self) -> None:
        """Asks the process and its workers to print the stacks of their threads to their standard error."""
        self._process.signal(signal.SIGUSR1)

    def _check_open(self) -> None:
        if self._interrupted or not self._end.alive:
            raise WorkerError("The decode process was ended with close(); make a new iterator to go on.")

    def interrupt(self) -> None:
        """Makes a thread that waits for a batch, or asks for the next, give up with a WorkerError."""
        self._interrupted = True
        # The counter is one with that of the process that a forked copy comes from: its wait would never be one again.
        if self._end.alive and os.getpid() == self._owner:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Ends the process and its workers; may be called again. Batches that are held stay valid."""
        if not self._end.alive:
            return
        with interrupts_deferred():
            if self._owner == os.getpid():  # else this is a forked copy of the trainer
                self._hear_farewell()
            self._views.forget()
            self._end()

    def _hear_farewell(self) -> None:
        """Asks for the last statistics and waits a moment for them; batches that come in between are not wanted."""
        deadline = time.monotonic() + _FAREWELL_SECONDS
        self._poll.unregister(self._wake)
        self._wanted.stop = True
        self._tell()
        while not self._at_end and (left := deadline - time.monotonic()) > 0:
            if self._waiting and isinstance(self._waiting[-1][0], Farewell):
                break
            self._poll.poll(1000 * left)
            self._listen()
        self._waiting.clear()


def check_fork(method: str) -> None:
    """Raises ConfigError where a decode process cannot be forked: CUDA does not work in a copy of this process."""
    torch = sys.modules.get("torch")
    if method == "fork" and torch is not None and torch.cuda.is_initialized():
        raise ConfigError(
            'start_method="fork" with a decode process copies this process, and CUDA, which is in use here, does not '
            'work in a copy. Use start_method="spawn", take the first batch before anything touches CUDA, or use '
            "decode_process=False."
        )


def _pickled(task: DecodeTask) -> bytes | None:
    try:
        # Also for "fork": cloudpickle then knows the classes of the script when their instances come back.
        return pickle_task(task)
    except Exception as error:
        if task.start_method == "fork":
            return None
        raise WorkerError(
            f"The dataset cannot travel to the decode process, because something in it cannot be pickled: {error}. "
            "Keep open files, locks, generators and the like out of the task encoder's attributes (open them when they "
            'are first used), or use decode_process=False or start_method="fork".'
        ) from error


_seen_after_end: set[DeviceViews] = set()
"""Views of processes that end when their GPU memory is not seen any more: nobody else may hold these by then."""


def _end(
    process: WorkerProcess, channel: Channel, device_views: DeviceViews, descriptors: list[int], owner: int
) -> None:
    """Ends a process; one whose GPU memory is still seen when that is over."""
    todo = [True]
    exiting = sys.is_finalizing

    def end() -> None:
        if exiting():  # the tensors go with the interpreter: its end is the process's end
            return
        try:
            todo.pop()
        except IndexError:  # the last view went in another thread, which does it
            return
        _seen_after_end.discard(device_views)
        if os.getpid() == owner:  # else this is a forked copy of the trainer: it ends without ending the trainer's
            device_views.close()  # before the process that owns the memory frees it
            end_process(process, channel)
        channel.close()
        for descriptor in descriptors:
            os.close(descriptor)  # its lifeline among them: closed before, it would kill the process

    if os.getpid() == owner and device_views.seen:
        _seen_after_end.add(device_views)
        device_views.on_nothing_seen = end
    if os.getpid() != owner or not device_views.seen:  # asked again: the last view may have gone meanwhile
        end()
