"""The engine's thread: a failure in it becomes an error of the block, and nobody waits forever."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
import torch

from energon_dali.decode import DaliDecoder, Decoded, MediaHandle, Resize
from energon_dali.decode.dali import close_engines, release_memory
from energon_dali.decode.dali.images.engine import DaliImageEngine
from energon_dali.decode.dali.images.graph import ImageGraph
from energon_dali.decode.dali.runtime import engine as table
from energon_dali.decode.dali.runtime.blocks import DeviceMemory, FutureGroup
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.pipeline import PipelineOptions
from energon_dali.decode.interface import Outcome
from energon_dali.errors import DeviceFailedError
from tests.decode.sample_images import sample_images
from tests.running_time import wait_until

DECODER = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")


class FaultyEngine(DaliImageEngine):
    """Waits in its first launch for `go`, and fails in the chosen launch or delivery."""

    def __init__(self, *, failing_launch: int = -1, failing_take: int = -1) -> None:
        options = PipelineOptions(device=Device("cpu", None), num_threads=1, max_batch_size=2)
        self.memory = DeviceMemory(options.device)
        super().__init__(ImageGraph.from_spec(DECODER.spec), options, self.memory)
        self.go = threading.Event()
        self.launches = self.takes = 0
        self.failing_launch, self.failing_take = failing_launch, failing_take

    def set_inputs(self, pipeline: Any, batch: Any) -> None:
        assert self.go.wait(60)
        self.launches += 1
        if self.launches == self.failing_launch:
            raise RuntimeError("the input is not there")
        super().set_inputs(pipeline, batch)

    def take(self, outputs: Any, batch: Any, stream: Any) -> list[Any]:
        self.takes += 1
        if self.takes == self.failing_take:
            raise SystemExit("a library gave up")
        return super().take(outputs, batch, stream)

    def submit_images(self, count: int) -> list[Future[list[Outcome]]]:
        """Submits blocks of one image each, all of them before the first one starts."""
        futures = [self.submit([handle()]) for _ in range(count)]
        self.go.set()
        return futures


def handle() -> MediaHandle:
    return DECODER.stage("jpg", sample_images()["jpeg-420"])


def error_of(future: Future[Any]) -> BaseException | None:
    return future.exception(timeout=60)


def test_a_launch_that_fails_while_a_run_is_in_flight_fails_its_own_block_alone() -> None:
    engine = FaultyEngine(failing_launch=2)
    first, second, third = engine.submit_images(3)
    assert isinstance(first.result(60)[0], Decoded)
    assert isinstance(error_of(second), DeviceFailedError)
    assert isinstance(third.result(60)[0], Decoded)
    assert isinstance(engine.submit([handle()]).result(60)[0], Decoded)
    assert engine.memory.use().in_flight_bytes == 0
    engine.close(60)


def test_whatever_ends_the_thread_fails_all_blocks_and_every_later_one() -> None:
    engine = FaultyEngine(failing_take=2)
    futures = engine.submit_images(5)
    assert isinstance(futures[0].result(60)[0], Decoded)
    for future in futures[1:]:
        error = error_of(future)
        assert isinstance(error, DeviceFailedError)
        assert "SystemExit: a library gave up" in str(error)
    assert engine.memory.use().in_flight_bytes == 0  # or the other engines of the device would wait for it
    with pytest.raises(DeviceFailedError, match="a library gave up"):
        engine.submit([handle()])
    engine.close(60)


@pytest.mark.parametrize("fault", ["cancelled", "too few"])
def test_a_part_that_is_cancelled_or_short_fails_the_whole_block(fault: str) -> None:
    group, part = FutureGroup(2), Future[list[Outcome]]()
    group.put_when_done([0, 1], part)
    if fault == "cancelled":
        assert part.cancel()
    else:
        part.set_result([Decoded(1, "pil")])
    assert isinstance(group.future.exception(0), CancelledError if fault == "cancelled" else ValueError)


def test_engines_that_are_not_used_any_more_rest_and_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_MOST_AWAKE", 2)
    close_engines()
    raw = sample_images()["jpeg-420"]
    sizes = [[Resize((8, size))] for size in (8, 9, 10, 11)]
    decoders = [DaliDecoder(image_decode="torchl8", operations=size, image_decode_device="cpu") for size in sizes]
    first = [decoder.decode_block([decoder.stage("jpg", raw)])[0] for decoder in decoders]
    engines = list(table._engines.values())
    assert wait_until(lambda: [engine.awake for engine in engines] == [False, False, True, True], 60)
    assert [engine._pipeline is None for engine in engines] == [True, True, False, False]
    again = [decoder.decode_block([decoder.stage("jpg", raw)])[0] for decoder in decoders]
    for before, after in zip(first, again, strict=True):
        assert isinstance(before, Decoded)
        assert isinstance(after, Decoded)
        assert torch.equal(before.value, after.value)
    assert wait_until(lambda: sum(engine.awake for engine in engines) == 2, 60)
    close_engines()


def test_an_engine_that_is_asked_to_rest_does_its_work_first() -> None:
    engine = FaultyEngine()
    futures = [engine.submit([handle()]) for _ in range(3)]
    engine.rest()
    futures.append(engine.submit([handle()]))
    engine.go.set()
    assert all(isinstance(future.result(60)[0], Decoded) for future in futures)
    engine.rest()
    assert wait_until(lambda: not engine.awake, 60)
    assert isinstance(engine.submit([handle()]).result(60)[0], Decoded)
    engine.close(60)


class RestingEngine(FaultyEngine):
    """Is asked to rest while it waits for the outputs of its last run."""

    def _outputs_of(self, run: Any) -> Any:
        outputs = super()._outputs_of(run)
        self.rest()
        return outputs


def test_an_engine_that_is_asked_to_rest_while_dali_decodes_delivers_first() -> None:
    engine = RestingEngine()
    (future,) = engine.submit_images(1)
    assert isinstance(future.result(60)[0], Decoded)
    assert isinstance(engine.submit([handle()]).result(60)[0], Decoded)
    engine.close(60)


def test_an_engine_whose_thread_could_not_start_starts_it_for_the_next_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = FaultyEngine()
    engine.go.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            engine.submit([handle()])
    assert isinstance(engine.submit([handle()]).result(60)[0], Decoded)
    engine.close(60)


def test_memory_may_be_released_while_a_block_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = DaliImageEngine.submit, 0

    def submit(self: DaliImageEngine, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            release_memory()
        return real(self, *arguments, **options)

    monkeypatch.setattr(DaliImageEngine, "submit", submit)
    assert isinstance(DECODER.submit_block([handle()]).result(60)[0], Decoded)
    assert calls == 2
    close_engines()
