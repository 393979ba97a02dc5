"""The engine: order, threads, lifetime of values, splitting, memory, closing."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode import DaliDecoder, Decoded, MediaHandle, SampleDecoder
from energon_dali.decode.dali import close_engines, memory_use, release_memory
from energon_dali.decode.dali.images.engine import DaliImageEngine, split_memory
from energon_dali.decode.dali.images.graph import ImageGraph
from energon_dali.decode.dali.runtime.blocks import DeviceMemory, split_block
from energon_dali.decode.dali.runtime.device import Device, load_backend
from energon_dali.decode.dali.runtime.engine import engine_for
from energon_dali.decode.dali.runtime.pipeline import PipelineOptions
from tests.decode.sample_images import sample_images
from tests.running_time import wait_until

DECODER = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
SAME_SIZE = ("jpeg-420", "jpeg-444", "png-rgb", "tiff-raw", "bmp-rgb")
SIZES = ("jpeg-420", "jpeg-411", "jpeg-1x1", "jpeg-440")


def handles(*names: str) -> list[MediaHandle]:
    return [DECODER.stage("jpg", sample_images()[name]) for name in names]


def values(block: list[MediaHandle]) -> list[torch.Tensor]:
    outcomes = DECODER.decode_block(block)
    assert all(isinstance(outcome, Decoded) for outcome in outcomes)
    return [outcome.value for outcome in outcomes]  # type: ignore[union-attr]


def expected(name: str) -> torch.Tensor:
    value: torch.Tensor = SampleDecoder(image_decode="torchrgb8").decode("jpg", sample_images()[name])
    return value


@pytest.mark.parametrize("names", [SAME_SIZE, SIZES], ids=["uniform", "ragged"])
def test_held_tensors_are_never_overwritten(names: tuple[str, ...]) -> None:
    held = values(handles(*names))
    copies = [tensor.clone() for tensor in held]
    for _ in range(50):
        values(handles(*reversed(names)))
    for tensor, copy, name in zip(held, copies, names, strict=True):
        assert torch.equal(tensor, copy)
        assert torch.equal(tensor, expected(name))
        tensor.zero_()  # and they are the user's to write to
    assert torch.equal(values(handles(names[0]))[0], expected(names[0]))


def test_tensors_of_one_size_are_consecutive_views_of_one_memory() -> None:
    rows = values(handles(*SAME_SIZE))
    step = rows[0].numel() * rows[0].element_size()
    assert [row.data_ptr() - rows[0].data_ptr() for row in rows] == [step * i for i in range(len(rows))]
    assert len({row.untyped_storage().data_ptr() for row in rows}) == 1
    assert all(row.is_contiguous() for row in rows)


def test_the_encoded_bytes_may_go_once_the_future_is_done() -> None:
    futures = [
        DECODER.submit_block([DECODER.stage("jpg", bytes(bytearray(sample_images()[name]))) for name in SAME_SIZE])
        for _ in range(5)
    ]
    gc.collect()
    for future in futures:
        for outcome, name in zip(future.result(60), SAME_SIZE, strict=True):
            assert isinstance(outcome, Decoded)
            assert torch.equal(outcome.value, expected(name))


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_data_may_lie_in_a_shared_block(kind: Any) -> None:
    block = b"".join(sample_images()[name] for name in SAME_SIZE)
    views, start = [], 0
    for handle in handles(*SAME_SIZE):
        size = len(handle.data)
        handle.data = (
            memoryview(bytearray(block))[start : start + size] if kind is memoryview else bytearray(handle.data)
        )
        views.append(handle)
        start += size
    for value, name in zip(values(views), SAME_SIZE, strict=True):
        assert torch.equal(value, expected(name))


def test_blocks_from_many_threads() -> None:
    """Two threads in one DALI pipeline lock up; the engine's own thread is the only one."""
    wrong: list[str] = []

    def work(first: int) -> None:
        for turn in range(10):
            names = [SIZES[(first + turn + i) % len(SIZES)] for i in range(5)]
            for value, name in zip(values(handles(*names)), names, strict=True):
                if not torch.equal(value, expected(name)):
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_pipelines_are_shared_by_what_they_produce() -> None:
    close_engines()
    for name in ("rgb8", "pil", "pilrgb"):
        decoder = DaliDecoder(image_decode=name, image_decode_device="cpu")  # type: ignore[arg-type]
        decoder.decode_block([decoder.stage("jpg", sample_images()["jpeg-420"])])
    assert sum(thread.name == "energon-dali-cpu" for thread in threading.enumerate()) == 1
    close_engines()
    assert not any(thread.name == "energon-dali-cpu" for thread in threading.enumerate())
    assert torch.equal(values(handles("jpeg-420"))[0], expected("jpeg-420"))  # and starts again


def test_splits_large_blocks() -> None:
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu", max_batch_size=3)
    names = [SAME_SIZE[i % 5] for i in range(11)]
    outcomes = decoder.decode_block([decoder.stage("jpg", sample_images()[name]) for name in names])
    for outcome, name in zip(outcomes, names, strict=True):
        assert isinstance(outcome, Decoded)
        assert torch.equal(outcome.value, expected(name))
    assert decoder.decode_block([]) == []


def test_splits_by_memory() -> None:
    block = handles("jpeg-420", "jpeg-1x1", "jpeg-420", "jpeg-420", "jpeg-1x1")
    sizes = [(position, handle.width * handle.height * 3) for position, handle in enumerate(block)]
    large = 157 * 118 * 3
    runs = split_block(sizes, most_samples=64, most_bytes=2 * large + 6)
    assert list(runs) == [([0, 1, 2], 2 * large + 3), ([3, 4], large + 3)]
    assert list(split_block(sizes[:3:2], most_samples=64, most_bytes=1)) == [([0], large), ([2], large)]
    assert [run for run, _ in split_block(sizes, most_samples=2, most_bytes=9 * large)] == [[0, 1], [2, 3], [4]]


def test_a_budget_holds_back_runs_and_is_given_back() -> None:
    memory = DeviceMemory(Device("cpu"), budget_bytes=157 * 118 * 6 * 8)  # two images per run
    options = PipelineOptions(device=Device("cpu"), num_threads=2, max_batch_size=64)
    engine = DaliImageEngine(ImageGraph.from_spec(DECODER.spec), options, memory)
    futures = [engine.submit(handles(*SAME_SIZE)) for _ in range(4)]
    for future in futures:
        assert len(future.result(60)) == 5
    use = memory.use()
    assert use.budget_bytes is not None
    assert use.in_flight_bytes == 0 < use.in_flight_peak_bytes <= use.budget_bytes
    assert use.largest_output_bytes == 2 * 157 * 118 * 3
    engine.close(60)
    with pytest.raises(RuntimeError, match="engine is closed"):
        engine.submit(handles("jpeg-420"))


def test_memory_is_reported_and_released() -> None:
    held = values(handles("jpeg-420"))[0]
    assert dict(memory_use())["cpu"].in_flight_peak_bytes > 0
    release_memory()
    assert torch.equal(held, expected("jpeg-420"))


def test_close_finishes_what_was_submitted() -> None:
    graph = ImageGraph.from_spec(DECODER.spec)
    engine = engine_for(DaliImageEngine, graph, PipelineOptions(device=Device("cpu"), num_threads=1, max_batch_size=2))
    futures = [engine.submit(handles(*SAME_SIZE)) for _ in range(3)]
    close_engines()
    assert all(future.done() and len(future.result()) == 5 for future in futures)


def test_a_process_ends_by_itself_with_blocks_in_flight() -> None:
    code = """
from energon_dali.decode import DaliDecoder
from tests.decode.sample_images import sample_images
from tests.running_time import wait_until
decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
futures = [decoder.submit_block([decoder.stage("jpg", sample_images()["jpeg-420"])] * 64) for _ in range(8)]
futures[0].result()
print("end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_a_forked_child_builds_its_own(warm_python: str) -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore")
from energon_dali.decode import DaliDecoder
from tests.decode.sample_images import sample_images
from tests.running_time import wait_until
decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
block = [decoder.stage("jpg", sample_images()["jpeg-420"])]
total = int(decoder.decode_block(block)[0].value.sum())
child = os.fork()
if child == 0:
    os._exit(0 if int(decoder.decode_block(block)[0].value.numpy().sum()) == total else 1)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([warm_python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_a_crop_that_does_not_fit_fails_alone() -> None:
    from energon_dali.decode import CenterCrop, DecodeFailure

    decoder = DaliDecoder(image_decode="rgb8", image_decode_device="cpu", operations=[CenterCrop(100)])
    good, small = (decoder.stage("jpg", sample_images()[name]) for name in ("jpeg-420", "jpeg-1x1"))
    first, second, third = decoder.decode_block([good, small, good])
    assert isinstance(first, Decoded)
    assert isinstance(third, Decoded)
    assert isinstance(second, DecodeFailure)
    assert "wants 100 x 100" in second.reason
    np.testing.assert_array_equal(first.value, third.value)


@pytest.mark.parametrize("contiguous", [True, False])
def test_ragged_results_of_a_gpu_are_views_of_one_memory(contiguous: bool) -> None:
    """Without a GPU: a TensorList of the CPU, under the name that the code looks for."""
    backend = load_backend()
    arrays = [np.random.default_rng(n).integers(0, 256, (3, 5 + n, 7), dtype=np.uint8) for n in range(4)]
    images = backend.TensorListCPU([backend.TensorCPU(array, "CHW") for array in arrays], contiguous=contiguous)
    tensors = split_memory(images)
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == (1 if contiguous else 4)


def test_a_block_of_which_nothing_can_be_decoded() -> None:
    """Refused where it is submitted, so that no run of the pipeline ends the block."""
    from energon_dali.decode import CenterCrop, DecodeFailure

    decoder = DaliDecoder(image_decode="rgb8", image_decode_device="cpu", operations=[CenterCrop(1000)])
    outcomes = decoder.submit_block([decoder.stage("jpg", sample_images()["jpeg-420"])] * 3).result(60)
    assert all(isinstance(outcome, DecodeFailure) for outcome in outcomes)


def test_cancelled_blocks_do_no_harm() -> None:
    futures = [DECODER.submit_block(handles(*SIZES)) for _ in range(20)]
    for future in futures[::2]:
        future.cancel()
    for future in futures:
        assert future.cancelled() or len(future.result(60)) == len(SIZES)
    assert torch.equal(values(handles("jpeg-420"))[0], expected("jpeg-420"))


def test_values_are_freed_as_soon_as_nobody_holds_them() -> None:
    """A reference cycle would keep the memory of whole blocks until the garbage collector runs."""
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    for _ in range(2):  # the first block also makes the pipeline
        outcomes = decoder.decode_block([decoder.stage("jpg", sample_images()["jpeg-420"]) for _ in range(9)])
    kept = [weakref.ref(outcome.value) for outcome in outcomes if isinstance(outcome, Decoded)]
    assert len(kept) == 9
    gc.disable()
    try:
        del outcomes
        assert wait_until(lambda: all(value() is None for value in kept), 10)
    finally:
        gc.enable()
