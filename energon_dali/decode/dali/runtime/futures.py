"""Futures of blocks that are being decoded, and the CUDA streams on which their values are made and used."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.front_ends import VisionInput
from energon_dali.decode.interface import Decoded, Outcome
from energon_dali.samples.transfer import map_tensors

if TYPE_CHECKING:
    import torch


class StreamFuture(Future[list[Outcome]]):
    """The outcomes of a block. The consumer's CUDA stream waits for their values when they are taken, and not before.

    If it waited as soon as the block is decoded, it would delay what the consumer enqueues for the block before.

    Args:
        stream: torch.cuda.Stream on which the values will be used; None on the CPU.
    """

    def __init__(self, stream: Any = None) -> None:
        super().__init__()
        self._stream = stream

    def result(self, timeout: float | None = None) -> list[Outcome]:
        """Returns the outcomes. From now on the consumer's stream may use their values; the host does not wait."""
        outcomes = super().result(timeout)
        if self._stream is not None:
            events = {id(outcome.ready): outcome.ready for outcome in outcomes if isinstance(outcome, Decoded)}
            for event in events.values():
                if event is not None:
                    self._stream.wait_event(event)
        return outcomes


class FutureGroup:
    """One future for a block whose parts are decoded separately, on any threads.

    Args:
        count: Number of handles in the block; the future of an empty block is done at once.
        stream: torch.cuda.Stream on which the values will be used; None on the CPU.
    """

    def __init__(self, count: int, stream: Any = None) -> None:
        self.stream = stream
        self.future = StreamFuture(stream)
        self._outcomes: list[Outcome | None] = [None] * count
        self._missing = count
        self._lock = threading.Lock()
        if not count:
            self.future.set_result([])

    def put(self, positions: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Stores the outcomes of some positions of the block; the last ones complete the future."""
        with self._lock:
            for position, outcome in zip(positions, outcomes, strict=True):
                self._outcomes[position] = outcome
            self._missing -= len(positions)
            complete = self._missing == 0
        if complete:
            with suppress(InvalidStateError):  # cancelled, or another part failed
                self.future.set_result(self._outcomes)  # type: ignore[arg-type]

    def put_when_done(self, positions: Sequence[int], part: Future[list[Outcome]]) -> None:
        """Stores the outcomes of some positions when their future is done; if that fails, the block fails."""

        def store(done: Future[list[Outcome]]) -> None:
            try:
                # Not StreamFuture.result: no CUDA stream waits before the whole block is taken.
                outcomes: list[Outcome] = Future.result(done)
                self.put(positions, outcomes)
            except BaseException as error:  # nobody would hear of an error raised in a callback
                self.fail(error)

        part.add_done_callback(store)

    def fail(self, error: BaseException) -> None:
        """Fails the block, unless it is done already."""
        with suppress(InvalidStateError):  # cancelled, or another part failed
            self.future.set_exception(error)


def consumer_stream(device: Device) -> Any:
    """Returns the torch.cuda.Stream that is current in the calling thread; None on the CPU."""
    if device.kind == "cpu":
        return None
    import torch

    return torch.cuda.current_stream(device.ordinal)


def work_stream(device: Device) -> Any:
    """Returns a new torch.cuda.Stream for one of our threads, so that its work runs next to the consumer's.

    None on the CPU, and where torch does not use its native allocator: other allocators refuse `record_stream` for
    memory that they did not allocate, such as DALI's. All work then runs on the consumer's stream.
    """
    if device.kind == "cpu":
        return None
    import torch

    if torch.cuda.get_allocator_backend() != "native":
        return None
    stream: Any = torch.cuda.Stream
    return stream(device.ordinal)


def bring_to_device(value: Any, device: Device, stream: Any) -> Any:
    """Returns a value that PIL or PyAV decoded, moved to a device; arrays and PIL images stay on the CPU.

    The copy to a GPU runs on `stream`, from page-locked memory, and the host does not wait for it.

    Args:
        value: Torch tensor, VisionInput, numpy array or PIL image.
        device: Where the other values of the block are.
        stream: torch.cuda.Stream that copies.
    """
    if device.kind == "cpu" or not (hasattr(value, "pin_memory") or isinstance(value, VisionInput)):
        return value
    import torch

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory().to(f"cuda:{device.ordinal}", non_blocking=True)

    with torch.cuda.stream(stream):
        return map_tensors(value, move)


def seal(outcomes: Sequence[Outcome], work: Any, consumer: Any) -> None:
    """Records in outcomes when their values are ready, and keeps the values' memory until the consumer has used it.

    Args:
        outcomes: Outcomes whose values were made on `work`.
        work: torch.cuda.Stream that made the values; None where that was the consumer's, which has nothing to wait for.
        consumer: torch.cuda.Stream on which the values will be used.
    """
    if work is None:
        return
    import torch

    decoded = [outcome for outcome in outcomes if isinstance(outcome, Decoded)]
    kept: set[int] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # Once per memory: each call releases the interpreter lock, and the images of a block are views of one memory.
        memory = tensor if tensor._base is None else tensor._base
        if tensor.is_cuda and id(memory) not in kept:
            kept.add(id(memory))
            memory.record_stream(consumer)
        return tensor

    for outcome in decoded:
        map_tensors(outcome.value, keep)
    make_event: Any = torch.cuda.Event
    event = make_event()
    event.record(work)
    for outcome in decoded:
        outcome.ready = event
