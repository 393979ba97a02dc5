"""Runs pipelines: the engine that keeps one busy on its own thread, and the table of the engines of this process."""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from energon_dali.decode.dali.runtime.blocks import (
    DeviceMemory,
    FutureGroup,
    MemoryUse,
    count_bytes,
    release_unused,
    seal,
    work_stream,
)
from energon_dali.decode.dali.runtime.device import Device, Media, call_before_dali_exits, use_device
from energon_dali.decode.dali.runtime.failure import raise_if_device_failed
from energon_dali.decode.dali.runtime.pipeline import Pipeline, PipelineOptions, build_pipeline
from energon_dali.decode.interface import Decoded, MediaHandle, Outcome, Route
from energon_dali.errors import DeviceFailedError

_LOG = logging.getLogger(__name__)

GraphT = TypeVar("GraphT", bound=Hashable)
BatchT = TypeVar("BatchT")

_CLOSE_SECONDS = 10.0
_MOST_AWAKE = 16
"""This many engines, the last used ones, keep a thread and a pipeline; those of sizes no longer used rest."""
_engines: dict[tuple[Hashable, PipelineOptions, int | None], DaliEngine[Any, Any]] = {}
"""The engines of this process by graph, options and budget, the last used ones last. All decoders share them."""
_memories: dict[tuple[Device, int | None], DeviceMemory] = {}
_table_lock = threading.Lock()
_is_exiting = False


@dataclass(slots=True, eq=False)
class Run(Generic[BatchT]):
    """A part of a block that goes through the pipeline at once."""

    block: FutureGroup
    """The block that it is a part of."""
    positions: list[int]
    """Which handles of the block."""
    batch: BatchT
    """What goes through the pipeline."""
    source_bytes: int
    """Memory that it takes, as estimated from the sizes of its media."""
    pipeline: Pipeline | None = None
    """Where it was started."""
    error: BaseException | None = None
    """Why it failed."""


class EngineClosedError(RuntimeError):
    """An engine was closed before it was given a block."""


class _Rested(Exception):  # noqa: N818 - not an error
    """Ends the thread of an engine that rests; the next block starts another."""


class _Rest:
    """An entry of the queue that asks the thread to end if nothing follows."""


class DaliEngine(ABC, Generic[GraphT, BatchT]):
    """One pipeline, and the only thread that touches it: two threads in one DALI pipeline deadlock.

    The thread starts with the first block and ends with `close`. Blocks may be submitted from any thread and are
    decoded in the order in which they were submitted.

    Args:
        graph: What the pipeline produces.
        options: Where and how it runs; blocks larger than its batch size are split.
        memory: Budget that the runs of all engines of a device share.
    """

    media: Media
    """Images or videos."""

    def __init__(self, graph: GraphT, options: PipelineOptions, memory: DeviceMemory) -> None:
        self.graph = graph
        self.options = options
        self.device = options.device
        self._memory = memory
        self._queue: queue.SimpleQueue[Run[BatchT] | _Rest | None] = queue.SimpleQueue()
        self._flying: deque[Run[BatchT]] = deque()
        self._held: Run[BatchT] | None = None
        # Changed without a lock, which dicts allow: a finaliser may do it in a thread that holds the lock.
        self._open_blocks: dict[int, FutureGroup] = {}
        self._numbers = itertools.count()
        self._booked: set[Run[BatchT]] = set()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abandoned = False
        self._pipeline: Pipeline | None = None
        self._suspended: list[Pipeline] = []
        self._stream: Any = None

    @abstractmethod
    def submit(self, handles: Sequence[MediaHandle], *, stream: Any = None) -> Future[list[Outcome]]:
        """Starts to decode a block and returns a future of one outcome per handle.

        Args:
            handles: Media that DALI may decode, all of one spec. Their data must not change until the future is done.
            stream: torch.cuda.Stream on which the values will be used, on a GPU. It waits for them when the future's
                result is taken; the host does not wait.

        Returns:
            A future that fails only with DeviceFailedError or MemoryError, never because of a file.

        Raises:
            EngineClosedError: The engine is closed.
        """

    @abstractmethod
    def define(self) -> Any:
        """Returns the output node of a new pipeline. Called on the engine's thread inside the pipeline's scope."""

    @abstractmethod
    def set_inputs(self, pipeline: Pipeline, batch: BatchT) -> None:
        """Sets the inputs of a pipeline to a batch, which keeps alive what the pipeline reads."""

    @abstractmethod
    def take(self, outputs: Any, batch: BatchT, stream: Any) -> list[Any]:
        """Returns one value per sample of a TensorList; an Outcome where DALI did not make the value."""

    @property
    def kept_bytes(self) -> int:
        """Memory that its pipeline keeps on a GPU between runs, estimated."""
        return 0

    def route_of(self, batch: BatchT, position: int) -> Route:
        """Returns which decoder made a value of a batch."""
        return "dali-gpu" if self.device.kind == "gpu" else "dali-cpu"

    @abstractmethod
    def rescue(self, run: Run[BatchT], run_alone: Callable[[BatchT], list[Outcome]], stream: Any) -> list[Outcome]:
        """Returns the outcomes of a run that failed (`run.error` says why).

        Args:
            run: The run.
            run_alone: Runs a batch through the pipeline and returns its outcomes; raises DALI's errors.
            stream: torch.cuda.Stream on which values are made, on a GPU.

        Raises:
            DeviceFailedError: The device failed.
        """

    def enqueue(self, runs: Sequence[Run[BatchT]]) -> None:
        """Queues runs for the engine's thread, and starts the thread if there is none.

        Raises:
            DeviceFailedError: An error ended the engine's thread earlier.
            EngineClosedError: The engine is closed.
        """
        with self._lock:
            if self._failure is not None:
                raise self._dead_error(self._failure)
            if self._closing:
                raise EngineClosedError("This engine is closed and takes no more blocks. Make or use another decoder.")
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=f"energon-dali-{self.device}", daemon=True)
                thread.start()  # first: if the system allows no more threads, the next block tries again
                self._thread = thread
            for block in {run.block for run in runs}:
                number = next(self._numbers)
                self._open_blocks[number] = block
                # By its number: a reference to the block would be a cycle, which keeps its values until the garbage
                # collector runs.
                block.future.add_done_callback(partial(self._forget, number))
            for run in runs:
                self._queue.put(run)

    def _forget(self, number: int, done: Future[list[Outcome]]) -> None:
        self._open_blocks.pop(number, None)

    @property
    def awake(self) -> bool:
        """Whether it has a thread, and after its first block a pipeline."""
        return self._thread is not None

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more blocks."""
        return self._closing

    def rest(self) -> None:
        """Ends the thread and the pipeline after all submitted blocks; the next block makes new ones."""
        with self._lock:
            if self._thread is not None and not self._closing:
                self._queue.put(_Rest())

    def close(self, timeout_seconds: float | None = None, *, abandon: bool = False) -> None:
        """Ends the thread and the pipeline.

        Args:
            timeout_seconds: Longest wait; None waits as long as it takes.
            abandon: Whether to cancel blocks that wait; False finishes all that was submitted.
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

    def suspend_pipeline(self) -> None:
        """Lets the next run build a new pipeline.

        On the CPU the last four pipelines are kept: destroying one right after a parser's failure can end the process.
        On a GPU each would keep the memory of its decoders, and files that a parser refuses do not get there.
        """
        if self._pipeline is not None and self.device.kind == "cpu":
            self._suspended.append(self._pipeline)
            del self._suspended[:-4]
        self._drop_pipeline()

    def _drop_pipeline(self) -> None:
        self._pipeline = None
        self._memory.keep(id(self), 0)

    def _work(self) -> None:
        """Thread body. An error that ends the thread fails all blocks that wait for it, and every later one."""
        try:
            self._serve()
        except _Rested:
            return
        except BaseException as error:
            _LOG.exception("An error ended the thread that decodes on %s.", self.device)
            with self._lock:
                self._failure = error
            for run in list(self._booked):
                self._unbook(run)
            for block in list(self._open_blocks.values()):
                block.fail(self._dead_error(error))

    def _dead_error(self, error: BaseException) -> DeviceFailedError:
        failed = DeviceFailedError(
            f"The thread that decodes on {self.device} ended with {type(error).__name__}: {error}. Nothing was "
            "skipped. The log has its traceback. Start the process again, or call "
            "energon_dali.decode.dali.release_memory() to continue with a new thread."
        )
        failed.__cause__ = error
        return failed

    def _serve(self) -> None:
        use_device(self.device)
        self._stream = work_stream(self.device)
        more = True
        while more or self._flying:
            while more and len(self._flying) < self.options.tuning.runs_in_flight and self._held is None:
                before = len(self._flying)
                more = self._launch_next(wait=not self._flying)
                if len(self._flying) == before:
                    break
            if not self._flying:
                if self._held is not None:
                    more = self._launch_next(wait=True)
                continue
            run = self._flying.popleft()
            outputs = self._outputs_of(run)
            if outputs is None:
                self._recover(run)
                continue
            if more:  # DALI decodes the next run while Python takes these outputs
                more = self._launch_next(wait=False)
            self._deliver(run, outputs)
            del run, outputs  # else the values of the last block would live until the next one
        self._drop_pipeline()
        self._suspended.clear()

    def _launch_next(self, *, wait: bool) -> bool:
        """Starts the next run, if there is one and the budget allows it; returns False after the last one."""
        run = self._held
        if run is None:
            try:
                asked = self._queue.get(wait)
            except queue.Empty:
                return True
            if asked is None:
                return False
            if isinstance(asked, _Rest):
                self._rest_if_idle()
                return True
            run = asked
        self._held = None
        if self._abandoned:
            run.block.future.cancel()
        if run.block.future.done():  # cancelled, or failed in another run
            return True
        if not self._memory.acquire(run.source_bytes, wait=not self._flying):
            self._held = run
            return True
        self._booked.add(run)
        try:
            run.pipeline = self._launch(run.batch)
            self._flying.append(run)
        except BaseException as error:  # the block must fail, or its consumer would wait forever
            self._unbook(run)
            run.block.fail(self._launch_error(error))
        return True

    def _rest_if_idle(self) -> None:
        """Drops the pipeline and ends the thread, unless there is work.

        Raises:
            _Rested: There is no work.
        """
        with self._lock:  # `enqueue` holds it too
            if self._open_blocks or not self._queue.empty():
                return
            self._thread = None
            self._drop_pipeline()
            self._suspended.clear()
            raise _Rested

    def _unbook(self, run: Run[BatchT]) -> None:
        if run in self._booked:
            self._booked.remove(run)
            self._memory.release_run(run.source_bytes)

    def _launch(self, batch: BatchT) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = build_pipeline(self.options, lambda: (self.define(),))
            self._memory.keep(id(self), self.kept_bytes if self.device.kind == "gpu" else 0)
        self.set_inputs(self._pipeline, batch)
        self._pipeline.schedule_run()
        return self._pipeline

    def _outputs_of(self, run: Run[BatchT]) -> Any | None:
        """Waits for a run and returns its TensorList; if it failed, stores the error in the run and returns None."""
        assert run.pipeline is not None
        try:
            # The run's own pipeline: `self._pipeline` is another one if a later launch failed.
            (outputs,) = run.pipeline.outputs(cuda_stream=self._stream_for(run))
        except Exception as error:  # DALI raises RuntimeError, but no error may be lost
            run.error = error
            return None  # its memory stays reserved: it is decoded again
        self._unbook(run)
        return outputs

    def _deliver(self, run: Run[BatchT], outputs: Any) -> None:
        try:
            self._memory.count(count_bytes(outputs))
            outcomes = self._outcomes(run.batch, self.take(outputs, run.batch, self._stream_for(run)))
            seal(outcomes, self._stream, run.block.stream)
            run.block.put(run.positions, outcomes)
        except Exception as error:
            run.block.fail(error)

    def _outcomes(self, batch: BatchT, values: Sequence[Any]) -> list[Outcome]:
        return [
            value if isinstance(value, Outcome) else Decoded(value, self.route_of(batch, position))
            for position, value in enumerate(values)
        ]

    def _stream_for(self, run: Run[BatchT]) -> Any:
        """Returns the CUDA stream on which the values of a run are made: the engine's own where it has one.

        On the consumer's stream, work on the block before would have to wait for this block.
        """
        return run.block.stream if self._stream is None else self._stream

    def _recover(self, run: Run[BatchT]) -> None:
        """Waits for the other runs in flight, then decodes the failed ones again, in parts as far as needed."""
        failed = [run]
        while self._flying:
            other = self._flying.popleft()
            outputs = self._outputs_of(other)
            if outputs is None:
                failed.append(other)
            else:
                self._deliver(other, outputs)
        for suspect in failed:
            self._isolate(suspect)

    def _isolate(self, run: Run[BatchT]) -> None:
        stream = self._stream_for(run)

        def run_alone(batch: BatchT) -> list[Outcome]:
            (outputs,) = self._launch(batch).outputs(cuda_stream=stream)
            return self._outcomes(batch, self.take(outputs, batch, stream))

        try:
            outcomes = self.rescue(run, run_alone, stream)
            seal(outcomes, self._stream, run.block.stream)
            run.block.put(run.positions, outcomes)
        except BaseException as error:  # the device failed, or there is no memory
            self.suspend_pipeline()
            # Logged now: after a CUDA error DALI's own threads may end the process before anybody raises it.
            _LOG.error("%s", error)
            run.block.fail(error)
        finally:
            self._unbook(run)

    def _launch_error(self, error: BaseException) -> BaseException:
        """Returns the error of a block whose run could not be started."""
        self.suspend_pipeline()
        try:
            raise_if_device_failed(error, self.device, self.media)
        except DeviceFailedError as failed:
            return failed
        wrapped = DeviceFailedError(
            f"DALI could not start a run on {self.device}: {error}. The next block gets a new pipeline."
        )
        wrapped.__cause__ = error
        return wrapped


# --- the engines of this process -----------------------------------------------------------------------------------


def submit_to_engine(
    make: Callable[[GraphT, PipelineOptions, DeviceMemory], DaliEngine[GraphT, Any]],
    graph: GraphT,
    options: PipelineOptions,
    handles: Sequence[MediaHandle],
    *,
    stream: Any = None,
    gpu_memory_budget_bytes: int | None = None,
) -> Future[list[Outcome]]:
    """Submits a block to the engine of this process for a graph; see `engine_for` and `DaliEngine.submit`."""
    while True:
        engine = engine_for(make, graph, options, gpu_memory_budget_bytes=gpu_memory_budget_bytes)
        try:
            return engine.submit(handles, stream=stream)
        except EngineClosedError:  # by `release_memory` in another thread, a moment ago
            continue


def engine_for(
    make: Callable[[GraphT, PipelineOptions, DeviceMemory], DaliEngine[GraphT, Any]],
    graph: GraphT,
    options: PipelineOptions,
    *,
    gpu_memory_budget_bytes: int | None = None,
) -> DaliEngine[GraphT, Any]:
    """Returns the engine of this process for a graph, and makes it if there is none; its first block builds a pipeline.

    If more than 16 engines are in use, those that were not used for the longest time are put to rest.

    Args:
        make: The class of engines that the graph is for.
        graph: What to produce.
        options: Where and how the pipeline runs.
        gpu_memory_budget_bytes: Budget of the runs in flight on a GPU; ignored on the CPU.

    Raises:
        RuntimeError: The process is about to end.
    """
    device = options.device
    budget = gpu_memory_budget_bytes if device.kind == "gpu" else None
    key = (graph, options, budget)
    with _table_lock:
        if _is_exiting:
            # A thread that decodes ahead may still run. DALI ends the process if a pipeline is made while it exits.
            raise RuntimeError("No new pipeline is made: the process is about to end.")
        engine = _engines.get(key)
        if engine is None or engine.is_closed:
            engine = make(graph, options, _memory_of(device, budget))
        _engines.pop(key, None)
        _engines[key] = engine  # at the end, as the last one used
        if not engine.awake:
            for other in list(_engines.values())[:-_MOST_AWAKE]:
                other.rest()
        return engine


def memory_of(device: Device, gpu_memory_budget_bytes: int | None) -> DeviceMemory:
    """Returns the budget that all engines of a device share.

    Args:
        device: The device.
        gpu_memory_budget_bytes: Ignored on the CPU.
    """
    with _table_lock:
        return _memory_of(device, gpu_memory_budget_bytes if device.kind == "gpu" else None)


def _memory_of(device: Device, budget: int | None) -> DeviceMemory:
    return _memories.setdefault((device, budget), DeviceMemory(device, budget))


def has_engines() -> bool:
    """Returns whether a pipeline of DALI may be running in this process."""
    return bool(_engines)


def close_engines(timeout_seconds: float | None = None, *, abandon: bool = False) -> None:
    """Closes all engines of this process; the next block starts new ones.

    Args:
        timeout_seconds: Longest wait per engine; None waits as long as it takes.
        abandon: Whether to cancel blocks that wait; False finishes all that was submitted.
    """
    with _table_lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.close(timeout_seconds, abandon=abandon)


def release_memory() -> None:
    """Closes all engines of this process and returns DALI's unused memory to the devices; held values stay valid."""
    close_engines()
    release_unused()


def memory_use() -> list[tuple[str, MemoryUse]]:
    """Returns (device, memory that decoding takes there) for each device ("cpu", "gpu 0", ...) and budget in use."""
    with _table_lock:
        return [(str(device), memory.use()) for (device, _), memory in _memories.items()]


def _forget_engines() -> None:
    """After a fork: the threads of the engines exist only in the parent."""
    global _table_lock
    _table_lock = threading.Lock()
    for engine in _engines.values():
        # Leaked on purpose: destroying it would wait for threads and use a CUDA context that the child does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    _engines.clear()
    _memories.clear()


def _abandon_engines() -> None:
    """At exit: finishes the runs in flight, cancels the blocks that wait, and makes no more engines."""
    global _is_exiting
    with _table_lock:
        _is_exiting = True
    close_engines(_CLOSE_SECONDS, abandon=True)


call_before_dali_exits(_abandon_engines)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_engines)
