"""What a block takes while it is decoded: its future, CUDA streams, and a share of a device's memory."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.decode.dali.runtime.device import Device, load_backend, refuse_capture
from energon_dali.decode.front_ends import VisionInput
from energon_dali.decode.interface import Decoded, Outcome
from energon_dali.errors import DeviceFailedError
from energon_dali.samples.transfer import map_tensors
from energon_dali.shards.storage.local import ReusedBuffers

if TYPE_CHECKING:
    import torch

_CPU_RUN_BYTES = 1 << 30
"""Largest run on the CPU: 64 images of 5 megapixels as RGB."""
_RUNS_PER_BUDGET = 4
"""A run takes at most this part of a budget, so that two runs of two engines fit."""
GPU_BUDGET_BYTES = 8 << 30
"""Default budget of a GPU."""
_WORKSPACE_BYTES = 32 << 20
"""Memory of the decoders themselves when `has_room` looks for room; a low guess, as it was not measured."""
_LOOK_SECONDS = 5.0
"""A consumer that waits for a block looks this often whether the GPU still works."""
RESULT_BYTES = 256 << 20
"""Most memory of results on the CPU that is used again."""
RESULTS = ReusedBuffers(RESULT_BYTES)
"""That memory."""


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
        """Returns the outcomes. From now on the consumer's stream may use their values; the host does not wait.

        Raises:
            DeviceFailedError: The GPU failed. Threads of nvImageCodec that meet a lost CUDA context stop without
                completing their images, and DALI waits for those indefinitely (seen with 0.9 on an H200).
        """
        if self._stream is not None and timeout is None:
            while not wait([self], _LOOK_SECONDS).done:
                self._check_gpu()
        outcomes = super().result(timeout)
        if self._stream is not None:
            events = {id(outcome.ready): outcome.ready for outcome in outcomes if isinstance(outcome, Decoded)}
            for event in events.values():
                if event is not None:
                    self._stream.wait_event(event)
        return outcomes

    def _check_gpu(self) -> None:
        try:
            self._stream.query()
        except RuntimeError as error:
            cause = str(error).partition("\n")[0]
            raise DeviceFailedError(
                f"The GPU failed while it decoded a block: {cause}. No sample caused this, so nothing was skipped. "
                "Start the process again; CUDA_LAUNCH_BLOCKING=1 shows which operation fails."
            ) from error


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


def split_block(
    sizes: Iterable[tuple[int, int]], *, most_samples: int, most_bytes: int
) -> Iterator[tuple[list[int], int]]:
    """Yields (positions, bytes) of each run of a pipeline, in order; one that is larger than a run is alone in its own.

    Args:
        sizes: (position in the block, bytes that it takes while it is decoded) of each image or video.
        most_samples: Most of them per run.
        most_bytes: Most memory per run, in bytes.
    """
    run: list[int] = []
    total = 0
    for position, size in sizes:
        if run and (len(run) == most_samples or total + size > most_bytes):
            yield run, total
            run, total = [], 0
        run.append(position)
        total += size
    if run:
        yield run, total


def consumer_stream(device: Device) -> Any:
    """Returns the torch.cuda.Stream that is current in the calling thread; None on the CPU.

    Args:
        device: Where a block is decoded.

    Raises:
        ConfigError: That stream is being captured for a CUDA graph.
    """
    if device.kind == "cpu":
        return None
    import torch

    refuse_capture("Media were to be decoded")

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


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory that decoding takes on one device, estimated."""

    budget_bytes: int | None
    """Limit of all runs in flight together; None means no limit."""
    in_flight_bytes: int
    """Memory of the runs in flight now."""
    in_flight_peak_bytes: int
    """The most memory that runs in flight took together."""
    largest_output_bytes: int
    """The largest output of one run."""
    kept_bytes: int = 0
    """What decoders keep between runs, estimated: workspaces of pipelines, and hardware decoders of videos."""


class DeviceMemory:
    """The memory budget that the runs of all engines of a device share; engines' threads wait for it.

    Args:
        device: The device.
        budget_bytes: Most memory of all runs in flight together. None is 8 GiB on a GPU. On the CPU it means no limit,
            but a run takes 1 GiB at most. A single image that needs more runs alone.
    """

    def __init__(self, device: Device, budget_bytes: int | None = None) -> None:
        if budget_bytes is None and device.kind == "gpu":
            budget_bytes = GPU_BUDGET_BYTES
        self.device = device
        self.budget_bytes = budget_bytes
        self.run_bytes = _CPU_RUN_BYTES if budget_bytes is None else max(1, budget_bytes // _RUNS_PER_BUDGET)
        self._free = threading.Condition()
        self._in_flight = 0
        self._kept: dict[Hashable, int] = {}
        self._in_flight_peak = 0
        self._largest_output = 0

    def acquire(self, run_bytes: int, *, wait: bool) -> bool:
        """Reserves memory for a run and returns True if it fits into the budget, or if nothing is in flight.

        Args:
            run_bytes: Memory of the run.
            wait: Whether to wait until it fits. An engine with runs in flight must not: it has to take their outputs
                first.
        """
        with self._free:
            if self.budget_bytes is not None and not self._fits(run_bytes):
                if not wait:
                    return False
                self._free.wait_for(lambda: self._fits(run_bytes))
            self._in_flight += run_bytes
            self._in_flight_peak = max(self._in_flight_peak, self._in_flight)
            return True

    def _fits(self, run_bytes: int) -> bool:
        assert self.budget_bytes is not None
        return self._in_flight == 0 or self._in_flight + run_bytes + sum(self._kept.values()) <= self.budget_bytes

    def keep(self, owner: Hashable, kept_bytes: int) -> None:
        """Counts what stays allocated between runs in the budget, in place of what the owner kept before.

        Args:
            owner: Whose memory it is.
            kept_bytes: All of it; 0 when it is freed.
        """
        with self._free:
            self._kept.pop(owner, None)
            if kept_bytes:
                self._kept[owner] = kept_bytes
            self._free.notify_all()

    def release_run(self, run_bytes: int) -> None:
        """Releases the memory of a run that ended."""
        with self._free:
            self._in_flight -= run_bytes
            self._free.notify_all()

    def count(self, output_bytes: int) -> None:
        """Records the size of a run's output."""
        if output_bytes > self._largest_output:
            self._largest_output = output_bytes

    def use(self) -> MemoryUse:
        """Returns the current use and the peaks."""
        with self._free:
            kept = sum(self._kept.values())
            return MemoryUse(self.budget_bytes, self._in_flight, self._in_flight_peak, self._largest_output, kept)


def count_bytes(images: Any) -> int:
    """Returns the number of bytes that a TensorList holds."""
    itemsize = {"UINT8": 1, "FLOAT16": 2, "FLOAT": 4}[images.dtype.name]
    shapes: list[tuple[int, ...]] = images.shape()
    if images.is_dense_tensor():
        return len(shapes) * math.prod(shapes[0]) * itemsize
    return sum(map(math.prod, shapes)) * itemsize


def copy_to_torch(outputs: Any, device: Device, stream: Any) -> list[torch.Tensor]:
    """Returns the samples of a TensorListGPU as views of new memory of torch's allocator; the host does not wait.

    DLPack would leave it to DALI to free them, which it does after it has waited for the whole device.

    Args:
        outputs: TensorListGPU.
        device: Where it is.
        stream: torch.cuda.Stream that copies, and on which DALI made the samples.
    """
    import torch

    shapes: list[tuple[int, ...]] = outputs.shape()
    sizes = [math.prod(shape) for shape in shapes]
    dtype = {"UINT8": torch.uint8, "FLOAT16": torch.float16, "FLOAT": torch.float32}[outputs.dtype.name]
    with torch.cuda.stream(stream):
        memory = torch.empty(sum(sizes), dtype=dtype, device=f"cuda:{device.ordinal}")
    if memory.numel():
        pointer, on = ctypes.c_void_p(memory.data_ptr()), ctypes.c_void_p(stream.cuda_stream)
        outputs.copy_to_external(pointer, on, non_blocking=True)
    parts: tuple[torch.Tensor, ...] = memory.split(sizes)  # type: ignore[no-untyped-call]
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def has_room(device: Device, needed_bytes: int) -> bool:
    """Returns whether DALI finds memory for a run on a GPU, in its own pool or by allocating more from the device.

    DALI keeps what it allocates for later runs. Always True on the CPU.

    Args:
        device: The device.
        needed_bytes: Memory of the run, without the decoders' own workspace.
    """
    if device.kind == "cpu":
        return True
    try:
        load_backend().PreallocateDeviceMemory(needed_bytes + _WORKSPACE_BYTES, device.ordinal)
    except (RuntimeError, MemoryError):
        return False
    return True


def release_unused() -> None:
    """Returns the memory that is kept for later runs to the devices; values that are still held stay valid."""
    RESULTS.clear()
    load_backend().ReleaseUnusedMemory()
