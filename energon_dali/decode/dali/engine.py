"""Runs one image pipeline on a thread of its own, and keeps it busy."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from energon_dali.decode.dali.device import Device
from energon_dali.decode.dali.feed import ImageBatch, feed_batch, split_block
from energon_dali.decode.dali.graph import ImageGraph, build_pipeline
from energon_dali.decode.dali.library import Pipeline
from energon_dali.decode.dali.memory import DeviceMemory
from energon_dali.decode.dali.output import bring_to_device, count_bytes, take_values
from energon_dali.decode.dali.recovery import decode_suspects, raise_if_device_failed
from energon_dali.decode.geometry import handle_geometry
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome
from energon_dali.errors import DecodeError, DeviceFailedError

if TYPE_CHECKING:
    from energon_dali.decode.spec import ImageSpec

_IN_FLIGHT = 2
"""Runs given to DALI at a time: one that decodes, one that waits, so that Python's part costs no decoding time."""


@dataclass(slots=True, eq=False)
class _Block:
    """A submitted block, until its last image is done."""

    outcomes: list[Outcome | None]
    missing: int
    stream: Any
    future: Future[list[Outcome]] = field(default_factory=Future)

    def put(self, positions: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        for position, outcome in zip(positions, outcomes, strict=True):
            self.outcomes[position] = outcome
        self.missing -= len(positions)
        if self.missing == 0 and not self.future.done():
            self.future.set_result(self.outcomes)  # type: ignore[arg-type]

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):  # another run of the same block failed before
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class _Run:
    """A part of a block that goes through the pipeline at once."""

    block: _Block
    positions: list[int]
    batch: ImageBatch
    spec: ImageSpec
    source_bytes: int
    error: BaseException | None = None


class DaliImageEngine:
    """One pipeline, and the one thread that ever touches it: two threads in one DALI pipeline lock up.

    Its thread starts with the first block and ends with `close`. Blocks may be submitted from any thread; they are
    decoded in the order of submission.

    Args:
        graph: What the pipeline produces.
        device: Where it decodes.
        num_threads: CPU threads of the pipeline.
        max_batch_size: Most images per run; larger blocks are split.
        memory: Budget that the runs of all engines of a device share.
    """

    def __init__(
        self, graph: ImageGraph, device: Device, *, num_threads: int, max_batch_size: int, memory: DeviceMemory
    ) -> None:
        self.graph = graph
        self.device = device
        self._num_threads = num_threads
        self._max_batch_size = max_batch_size
        self._memory = memory
        self._queue: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()
        self._flying: deque[_Run] = deque()
        self._held: _Run | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abandoned = False
        self._pipeline: Pipeline | None = None
        self._suspended: list[Pipeline] = []
        self._route = "dali-gpu" if device.kind == "gpu" else "dali-cpu"

    def submit(self, handles: Sequence[MediaHandle], *, stream: Any = None) -> Future[list[Outcome]]:
        """Starts to decode a block and returns a future of one outcome per handle; costs about 15 us per handle.

        Args:
            handles: Screened images that DALI's parser accepts, all of one spec. Their data must stay unchanged.
            stream: torch.cuda.Stream on which the values will be used, on a GPU; the future does not wait for it.

        Returns:
            A future that fails with DeviceFailedError or MemoryError where the device or the memory failed, and never
            because of an image.

        Raises:
            RuntimeError: The engine is closed.
        """
        block = _Block([None] * len(handles), len(handles), stream)
        if not handles:
            block.future.set_result([])
            return block.future
        geometries: dict[int, Any] = {}
        refused: dict[int, Outcome] = {}
        for position, handle in enumerate(handles):
            try:
                geometries[position] = handle_geometry(handle)
            except DecodeError as error:
                refused[position] = DecodeFailure(error.reason, handle.format, "screen", handle.source)
        runs = []
        for positions in split_block(
            handles, list(geometries), max_images=self._max_batch_size, max_bytes=self._memory.run_bytes,
            bytes_per_pixel=self.graph.bytes_per_pixel,
        ):  # fmt: skip
            batch = ImageBatch([handles[i] for i in positions], [geometries[i] for i in positions])
            cost = sum(handle.width * handle.height for handle in batch.handles) * self.graph.bytes_per_pixel
            runs.append(_Run(block, positions, batch, handles[0].spec, cost))
        with self._lock:
            if self._closing:
                raise RuntimeError("This engine is closed: it takes no more blocks. Make or use another decoder.")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"energon-dali-{self.device}", daemon=True)
                self._thread.start()
            for run in runs:
                self._queue.put(run)
        if refused:
            block.put(list(refused), list(refused.values()))
        return block.future

    def close(self, timeout_seconds: float | None = None, *, abandon: bool = False) -> None:
        """Ends the thread and the pipeline.

        Args:
            timeout_seconds: Longest wait; None waits as long as it takes.
            abandon: Cancels blocks that wait, where False finishes all that was submitted.
        """
        self._abandoned = self._abandoned or abandon
        with self._lock:
            if not self._closing:
                self._closing = True
                self._queue.put(None)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_seconds)

    # --- on the engine's thread ------------------------------------------------------------------------------------

    def _work(self) -> None:
        more = True
        while more or self._flying:
            while more and len(self._flying) < _IN_FLIGHT and self._held is None:
                before = len(self._flying)
                more = self._launch_next(wait=not self._flying)
                if len(self._flying) == before:
                    break
            if not self._flying:
                if self._held is not None:
                    more = self._launch_next(wait=True)
                continue
            run = self._flying.popleft()
            images = self._outputs_of(run)
            if images is None:
                self._recover(run)
                continue
            if more:  # DALI goes on while Python packs
                more = self._launch_next(wait=False)
            self._deliver(run, images)
            del run, images  # or the values of the last block would live until the next one
        self._pipeline = None
        self._suspended.clear()

    def _launch_next(self, *, wait: bool) -> bool:
        """Starts the next run, if there is one and the budget allows it; returns whether more may come."""
        run = self._held
        if run is None:
            try:
                run = self._queue.get(wait)
            except queue.Empty:
                return True
            if run is None:
                return False
        self._held = None
        if self._abandoned:
            run.block.future.cancel()
        if run.block.future.done():  # cancelled, or failed in another run
            return True
        if not self._memory.acquire(run.source_bytes, wait=not self._flying):
            self._held = run
            return True
        try:
            self._launch(run.batch)
            self._flying.append(run)
        except BaseException as error:  # whoever waits for the block must hear of it
            self._memory.release_run(run.source_bytes)
            run.block.fail(self._launch_error(error))
        return True

    def _launch(self, batch: ImageBatch) -> None:
        if self._pipeline is None:
            self._pipeline = build_pipeline(
                self.graph, self.device, num_threads=self._num_threads, max_batch_size=self._max_batch_size
            )
        feed_batch(self._pipeline, self.graph, batch)
        self._pipeline.schedule_run()

    def _outputs_of(self, run: _Run) -> Any | None:
        """Waits for a run and returns its TensorList; None if it failed, with the reason in the run."""
        assert self._pipeline is not None
        try:
            (images,) = self._pipeline.outputs(cuda_stream=run.block.stream)
            return images
        except Exception as error:  # DALI raises RuntimeError; whoever waits must hear of all
            run.error = error
            return None
        finally:
            self._memory.release_run(run.source_bytes)

    def _deliver(self, run: _Run, images: Any) -> None:
        try:
            self._memory.count(count_bytes(images))
            values = take_values(images, run.spec, run.block.stream)
            run.block.put(run.positions, [Decoded(value, self._route) for value in values])  # type: ignore[arg-type]
        except Exception as error:
            run.block.fail(error)

    def _recover(self, run: _Run) -> None:
        """Decodes a failed run again, image by image as far as needed, after the runs behind it have come home."""
        failed = [run]
        while self._flying:
            other = self._flying.popleft()
            images = self._outputs_of(other)
            if images is None:
                failed.append(other)
            else:
                self._deliver(other, images)
        for suspect in failed:
            self._isolate(suspect)

    def _isolate(self, run: _Run) -> None:
        assert run.error is not None
        stream = run.block.stream

        def run_alone(batch: ImageBatch) -> list[Any]:
            self._launch(batch)
            assert self._pipeline is not None
            (images,) = self._pipeline.outputs(cuda_stream=stream)
            return take_values(images, run.spec, stream)

        try:
            outcomes = decode_suspects(
                run.batch, run.error, run_alone, self._suspend_pipeline,
                lambda value: bring_to_device(value, self.device, stream), str(self.device),
            )  # fmt: skip
            run.block.put(run.positions, outcomes)
        except BaseException as error:  # a device that failed, or no memory
            self._suspend_pipeline()
            run.block.fail(error)

    def _suspend_pipeline(self) -> None:
        """Lets the next run build a new pipeline.

        The last four are kept, because taking a pipeline apart right after a parser's failure can end the process.
        """
        if self._pipeline is not None:
            self._suspended.append(self._pipeline)
            del self._suspended[:-4]
        self._pipeline = None

    def _launch_error(self, error: BaseException) -> BaseException:
        """Returns what a block is told whose run could not be started."""
        self._suspend_pipeline()
        try:
            raise_if_device_failed(error, str(self.device))
        except DeviceFailedError as failed:
            return failed
        wrapped = DeviceFailedError(
            f"DALI could not start a run on {self.device}: {error}. The pipeline is made anew for the next block."
        )
        wrapped.__cause__ = error
        return wrapped
