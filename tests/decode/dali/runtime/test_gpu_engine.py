"""How blocks are decoded on a GPU: on which threads, devices and CUDA streams, and what happens after failures.

CUDA is a fake, and DALI's CPU operators run instead of a GPU's: these tests say nothing about how a GPU computes.
"""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from energon_dali import FrontEnd, SampleDecoder
from energon_dali.decode import DaliDecoder, Decoded, DecodeFailure
from energon_dali.decode.dali import close_engines, dispatch
from energon_dali.decode.dali.images import codecs, engine
from energon_dali.decode.dali.images.dali_reader import DaliReader, ReaderRow
from energon_dali.decode.dali.runtime import blocks
from energon_dali.decode.dali.runtime.host_decoding import DecodedHandle
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.errors import ConfigError, DecodeError, DeviceFailedError
from tests.decode.sample_images import sample_images
from tests.fake_cuda import FakeCuda, GpuTensor, Stream, install_dali

GPU = 1
NO_ROOM = "Error in MIXED operator,\n\nencountered:\n\nCan't allocate 3145728 bytes on device 1.\nCurrent pipeline"
UNHEARD = "Error in MIXED operator,\n\nencountered:\n\nnvImageCodec failure: '#3'\nCurrent pipeline object is no longer"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Two GPUs. The test's thread plays the trainer's, which has taken the second GPU."""
    made = FakeCuda(gpus=2).install(monkeypatch)
    monkeypatch.setattr(codecs, "nvjpeg_version", lambda: (13, 3))
    torch.cuda.set_device(GPU)
    yield made
    close_engines()


def decoder_for_gpu(**options: Any) -> DaliDecoder:
    return DaliDecoder(image_decode="torchrgb8", image_decode_device="gpu", **options)


def jpegs(decoder: DaliDecoder, count: int = 4) -> list[Any]:
    return [decoder.stage("jpg", sample_images()["jpeg-420"]) for _ in range(count)]


def for_pil(decoder: DaliDecoder) -> list[Any]:
    """Returns handles that PIL decodes: one in the rank, one that a worker decoded."""
    gif = decoder.make_handle("gif", sample_images()["gif"])
    pixels = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu").decode("gif", sample_images()["gif"])
    return [gif, DecodedHandle("gif", b"", "gif", gif.width, gif.height, decoder.spec, pixels=pixels)]


def values(outcomes: list[Any]) -> list[torch.Tensor]:
    assert all(isinstance(outcome, Decoded) for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


def test_no_thread_of_ours_opens_a_context_on_another_gpu(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    install_dali(monkeypatch, cuda)
    decoder = decoder_for_gpu()
    decoder.decode_block(jpegs(decoder) + for_pil(decoder))
    assert cuda.contexts == {GPU}
    ours = [call for call in cuda.calls if call.thread.startswith("energon-dali")]
    for thread in {call.thread for call in ours}:
        first = next(call for call in ours if call.thread == thread)
        assert (first.name, first.detail) == ("set_device", GPU), thread
    assert {call.device for call in ours} == {GPU}
    assert {call.thread.split("_")[0] for call in ours} == {"energon-dali-gpu 1", "energon-dali-pil"}


@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
def test_the_consumer_waits_for_a_block_when_it_takes_it(
    backend: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it enqueues for a block must not wait for the block that is decoded ahead."""
    install_dali(monkeypatch, cuda)
    cuda.backend = backend
    decoder = decoder_for_gpu()
    consumer = torch.cuda.current_stream()
    first, second = (decoder.submit_block(jpegs(decoder)) for _ in range(2))
    done = threading.Event()
    second.add_done_callback(lambda _: done.set())
    assert done.wait(60)
    if backend == "native":
        assert consumer.work == []  # type: ignore[attr-defined]
    first.result(60)
    consumer.work.append("hooks")  # type: ignore[attr-defined]
    second.result(60)
    words = consumer.work  # type: ignore[attr-defined]
    if backend == "native":
        assert words[: words.index("hooks")] == ["decoded"]
        assert "decoded" in words[words.index("hooks") :]
    else:  # torch's other allocators refuse to note a second stream for DALI's memory
        assert words == ["decoded", "decoded", "hooks"]
    assert {call.detail is consumer for call in cuda.named("dali.outputs")} == {backend != "native"}


def test_a_consumer_does_not_wait_for_a_gpu_that_failed(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI never returns from a run whose CUDA context was lost; a run that only takes long is waited for."""
    monkeypatch.setattr(blocks, "_LOOK_SECONDS", 0.05)
    looks, go = threading.Semaphore(0), threading.Event()
    query = Stream.query

    def look(stream: Stream) -> bool:
        looks.release()
        return query(stream)

    def decode() -> None:
        go.wait(60)

    def end_after_three_looks() -> None:
        for _ in range(3):
            looks.acquire(timeout=60)
        go.set()

    monkeypatch.setattr(Stream, "query", look)
    install_dali(monkeypatch, cuda, fail=decode)
    decoder = decoder_for_gpu()
    busy = decoder.submit_block(jpegs(decoder))
    threading.Thread(target=end_after_three_looks, daemon=True).start()
    assert len(values(busy.result())) == 4
    go.clear()
    lost = decoder.submit_block(jpegs(decoder))
    cuda.works = False
    with pytest.raises(DeviceFailedError, match=r"assert triggered\. No sample caused this.*Start the process again"):
        lost.result()
    go.set()


def test_what_pil_decodes_is_copied_from_page_locked_memory_on_a_stream_of_its_own(cuda: FakeCuda) -> None:
    decoder = decoder_for_gpu()
    consumer = torch.cuda.current_stream()
    future = decoder.submit_block(for_pil(decoder))
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(60)
    copies = [call.detail for call in cuda.named("to")]
    assert [(copy["pinned"], copy["waits"]) for copy in copies] == [(True, False)] * 2
    assert consumer not in [copy["stream"] for copy in copies]
    assert consumer.work == []  # type: ignore[attr-defined]
    gif, moved = values(future.result())
    assert "copy" in consumer.work  # type: ignore[attr-defined]
    assert isinstance(gif, GpuTensor)
    assert gif.recorded == [consumer]
    assert torch.equal(gif, moved)


@pytest.mark.parametrize("free_bytes", [64 << 30, 0])
def test_a_full_gpu_is_not_a_bad_image(free_bytes: int, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said by DALI, or found out by looking for room, where DALI blames a file."""

    def fail() -> None:
        raise RuntimeError(UNHEARD if free_bytes == 0 else NO_ROOM)

    built = install_dali(monkeypatch, cuda, fail)
    cuda.free_bytes = free_bytes
    decoder = decoder_for_gpu()
    with pytest.raises(DeviceFailedError, match=rf"no room for a run of .* {free_bytes >> 20} of 81920 MiB are free"):
        decoder.decode_block(jpegs(decoder, 64))
    assert len(built) == 1


def test_a_gpu_that_has_room_gives_what_fails_to_pil_and_keeps_no_pipeline(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError(UNHEARD)

    install_dali(monkeypatch, cuda, fail)
    decoder = decoder_for_gpu()
    outcomes: Any = decoder.decode_block(jpegs(decoder, 3))
    assert [outcome.route for outcome in outcomes] == ["fallback"] * 3
    assert all(value.is_cuda for value in values(outcomes))
    from energon_dali.decode.dali.runtime import engine as table

    (used,) = table._engines.values()
    assert used._suspended == []


def test_formats_without_a_codec_on_the_gpu_are_counted_apart_and_have_all_threads(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_dali(monkeypatch, cuda)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(dispatch, "_image_pipeline", dispatch._image_pipeline.__wrapped__)
    decoder = decoder_for_gpu()
    names = ["jpeg-420", "png-rgb", "jpeg-444", "pnm-rgb", "bmp-rgb"]
    outcomes: Any = decoder.decode_block([decoder.make_handle("part", sample_images()[name]) for name in names])
    assert [outcome.route for outcome in outcomes] == ["dali-gpu", "dali-host", "dali-gpu", "dali-host", "dali-host"]
    padding = {call.detail.num_threads: call.detail.tuning.device_memory_padding for call in cuda.named("dali.build")}
    assert padding == {8: 16 << 20, 16: 0}
    assert sorted(call.detail.num_threads for call in cuda.named("dali.build")) == [8, 16]
    expected = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    for name, value in zip(names, values(outcomes), strict=True):
        assert torch.equal(value, expected.decode("jpg", sample_images()[name])), name


def test_an_image_that_torch_cannot_render_on_the_gpu_costs_no_other(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch refuses some arguments with a RuntimeError; the image is then PIL's, and the block goes on."""
    install_dali(monkeypatch, cuda)
    front_end = FrontEnd.from_processor({"image_processor_type": "CLIPImageProcessor"})
    decoder = DaliDecoder(front_end=front_end, image_decode_device="gpu")
    render, calls = engine.render, []

    def fail_once(handle: Any, pixels: Any) -> Any:
        calls.append(handle)
        if len(calls) == 2:
            raise RuntimeError("Provided interpolation parameters can not be handled with current algorithm")
        if len(calls) == 3:
            raise DecodeError("The processor refuses it")
        return render(handle, pixels)

    def refuse(handle: Any, pixels: Any) -> Any:
        raise RuntimeError("Provided interpolation parameters can not be handled with current algorithm")

    monkeypatch.setattr(engine, "render_alike", refuse)
    monkeypatch.setattr(engine, "render", fail_once)
    outcomes: Any = decoder.decode_block(jpegs(decoder, 4))
    assert [outcome.route for outcome in outcomes] == ["dali-gpu", "fallback", "", "dali-gpu"]
    assert isinstance(outcomes[2], DecodeFailure)
    expected = SampleDecoder(front_end=front_end).decode("jpg", sample_images()["jpeg-420"])
    assert torch.equal(outcomes[1].value.pixels.as_subclass(torch.Tensor), expected.pixels)
    assert outcomes[1].value.pixels.is_cuda


def test_images_of_one_size_are_rendered_together_and_keep_their_order(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_dali(monkeypatch, cuda)
    front_end = FrontEnd.from_processor({"image_processor_type": "CLIPImageProcessor"}, resampling="torch")
    decoder = DaliDecoder(front_end=front_end, image_decode_device="gpu")
    small = io.BytesIO()
    Image.open(io.BytesIO(sample_images()["jpeg-444"])).resize((90, 40)).save(small, "jpeg")
    files = [sample_images()[name] for name in ("jpeg-420", "jpeg-444", "jpeg-420", "jpeg-gray")]
    files.insert(1, small.getvalue())
    together: list[int] = []
    render_alike = engine.render_alike

    def count(handle: Any, pixels: Any) -> Any:
        together.append(len(pixels))
        return render_alike(handle, pixels)

    monkeypatch.setattr(engine, "render_alike", count)
    outcomes: Any = decoder.decode_block([decoder.stage("jpg", data) for data in files])
    assert together == [4]
    for outcome, data in zip(outcomes, files, strict=True):
        expected = SampleDecoder(front_end=front_end).decode("jpg", data)
        assert torch.equal(outcome.value.pixels, expected.pixels)
        assert outcome.value.layout == expected.layout


def test_a_gpu_that_fails_while_it_renders_is_not_a_bad_image(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    install_dali(monkeypatch, cuda)

    def fail(handle: Any, pixels: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(engine, "render_alike", fail)
    monkeypatch.setattr(engine, "render", fail)
    front_end = FrontEnd.from_processor({"image_processor_type": "CLIPImageProcessor"})
    decoder = DaliDecoder(front_end=front_end, image_decode_device="gpu")
    with pytest.raises(DeviceFailedError, match="CUDA out of memory"):
        decoder.decode_block(jpegs(decoder, 4))


def test_without_nvjpeg_jpegs_are_counted_as_decoded_by_cpu_threads(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_dali(monkeypatch, cuda)
    monkeypatch.setattr(codecs, "nvjpeg_version", lambda: None)
    decoder = decoder_for_gpu()
    outcomes: Any = decoder.decode_block(jpegs(decoder))
    assert {outcome.route for outcome in outcomes} == {"dali-host"}


def torchs_memory(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Lets `torch.empty` make tensors of the GPU, and nothing else come from DALI; returns (device, CUDA stream)."""

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a result went through DLPack")

    monkeypatch.setattr("torch.utils.dlpack.from_dlpack", refuse)
    empty, made = torch.empty, []

    def empty_on_gpu(*shape: Any, device: str = "cpu", **others: Any) -> torch.Tensor:
        if not device.startswith("cuda"):
            return empty(*shape, device=device, **others)
        made.append((device, torch.cuda.current_stream()))
        return GpuTensor.on(GPU, empty(*shape, **others))

    monkeypatch.setattr("torch.empty", empty_on_gpu)
    return made


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_results_can_be_copied_into_torchs_memory(dtype: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """DLPack leaves it to DALI to free them, which waits for the whole device; a CUDA graph forbids that."""
    install_dali(monkeypatch, cuda)
    small = io.BytesIO()
    Image.open(io.BytesIO(sample_images()["jpeg-444"])).resize((90, 40)).save(small, "jpeg")
    files = [sample_images()["jpeg-420"], small.getvalue()]
    options: Any = {"image_decode": "torchrgb", "image_dtype": dtype, "image_decode_device": "gpu"}
    plain = DaliDecoder(**options)
    expected = values(plain.decode_block([plain.stage("jpg", data) for data in files]))
    made = torchs_memory(monkeypatch)
    decoder = DaliDecoder(**options, tuning=DaliTuning(copies_to_torch=True))
    found = values(decoder.decode_block([decoder.stage("jpg", data) for data in files]))
    ((device, stream),) = made
    assert device == f"cuda:{GPU}"
    assert stream is not torch.cuda.current_stream()  # of the engine
    assert all(value.is_cuda for value in found)
    assert all(value.dtype == getattr(torch, dtype) for value in found)
    assert all(map(torch.equal, (value.as_subclass(torch.Tensor) for value in found), expected))


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_dalis_own_reader_copies_into_torchs_memory_too(
    dtype: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_dali(monkeypatch, cuda)
    shard, rows = str(tmp_path / "shard.tar"), []
    with tarfile.open(shard, "w") as tar:
        for number, name in enumerate(("jpeg-420", "jpeg-444", "jpeg-gray")):
            data = sample_images()[name]
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = len(data)
            offset = tar.offset + 512
            tar.addfile(member, io.BytesIO(data))
            width, height = Image.open(io.BytesIO(data)).size
            rows.append(ReaderRow(0, ((offset, len(data)),), width, height, 1, seed=0))
    options: Any = {"image_decode": "torchrgb", "image_dtype": dtype, "image_decode_device": "gpu"}

    def read(tuning: DaliTuning) -> list[torch.Tensor]:
        decoder = DaliDecoder(**options, tuning=tuning)
        with DaliReader(decoder, [shard], rows, components=["jpg"], image="jpg", batch_size=2) as reader:
            outcomes = [outcome for batch in reader for outcome in batch.images]
        assert {outcome.route for outcome in outcomes if isinstance(outcome, Decoded)} == {"dali-gpu"}
        return values(outcomes)

    expected = read(DaliTuning())
    made = torchs_memory(monkeypatch)
    found = read(DaliTuning(copies_to_torch=True))
    assert made == [(f"cuda:{GPU}", torch.cuda.current_stream())] * 2  # the consumer's, on which DALI made them
    assert all(value.is_cuda for value in found)
    assert all(map(torch.equal, (value.as_subclass(torch.Tensor) for value in found), expected))


def test_a_thread_that_captures_a_graph_is_given_no_block(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    install_dali(monkeypatch, cuda)
    decoder = decoder_for_gpu()
    cuda.captures = True
    for handles in (jpegs(decoder), for_pil(decoder)):
        with pytest.raises(ConfigError, match=r"while this thread captures a CUDA graph.*before the capture"):
            decoder.submit_block(handles)
    cuda.captures = False
    assert len(values(decoder.decode_block(jpegs(decoder)))) == 4
