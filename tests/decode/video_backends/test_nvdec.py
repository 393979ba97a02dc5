"""Which way a video takes on a GPU, from the answers of a driver that is a fake; and the memory of its decoders."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from energon_dali.decode import DaliDecoder, Decoded
from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali import close_engines
from energon_dali.decode.dali.runtime import device as devices
from energon_dali.decode.dali.runtime.blocks import DeviceMemory
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.pyav import stage_clips
from energon_dali.decode.video_backends import nvdec
from energon_dali.decode.video_backends.choice import choose_backend, device_of_rank
from energon_dali.decode.video_backends.dali_backend import DaliBackend
from energon_dali.decode.video_backends.nvdec import DecoderCache, ask_nvdec, decoder_bytes
from tests.av.corpus import VideoRecipe, encode_video
from tests.fake_cuda import FakeCuda

GPU = Device("gpu", 0)
HOPPER = {"h264": (4096, 4096), "hevc": (8192, 8192), "vp9": (8192, 8192), "mpeg4": (2032, 2032)}
"""Largest frames; there is no AV1."""
NUMBERS = {number: name for name, number in nvdec._CODECS.items()}


class FakeDriver:
    """The video library of a driver.

    Args:
        largest: Largest frames, by codec that the GPU decodes.
        status: What CUDA returns; 302 where a container lacks the library's other parts.
    """

    def __init__(self, largest: dict[str, tuple[int, int]], status: int = 0) -> None:
        self.largest, self.status, self.asked = largest, status, 0

    def cuvidGetDecoderCaps(self, pointer: Any) -> int:
        self.asked += 1
        asked = ctypes.cast(pointer, ctypes.POINTER(nvdec._Capabilities)).contents
        size = self.largest.get(NUMBERS[asked.codec])
        if size is not None:
            asked.supported, asked.engines = 1, 7
            asked.least_width, asked.least_height = 48, 16
            asked.most_width, asked.most_height = size
            asked.most_blocks = size[0] * size[1] // 256
        return self.status


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeCuda]]:
    """Returns a function that installs a GPU with a driver, or with one that lacks the library."""

    def set_up(driver: FakeDriver | None) -> FakeCuda:
        cuda = FakeCuda(gpus=1).install(monkeypatch)
        found = (driver, "") if driver is not None else (None, "libnvcuvid.so.1 is missing")
        monkeypatch.setattr(nvdec, "_load", lambda: found)
        monkeypatch.setattr(devices, "_said", set())
        ask_nvdec.cache_clear()
        return cuda

    yield set_up
    ask_nvdec.cache_clear()
    close_engines()


def handle_of(codec: str = "h264", size: tuple[int, int] = (320, 240)) -> ClipsHandle:
    container = {"vp9": "webm", "mpeg4": "mkv"}.get(codec, "mp4")
    data = encode_video(VideoRecipe(codec, container, frames=2, size=size, gop=1000))
    handle, file = stage_clips(container, data, VideoClips(1, 2))
    file.close()
    return handle


def goes_to_dali(handle: ClipsHandle) -> bool:
    options = DaliDecoder(av_decode=handle.spec, video_decode_device="gpu").engine_options
    return choose_backend(handle, options, device_of_rank(GPU)).name == "dali"


def test_the_layout_of_the_drivers_structure() -> None:
    """As in cuviddec.h: sizes and offsets that a C compiler gives."""
    caps = nvdec._Capabilities
    assert ctypes.sizeof(caps) == 88
    assert (caps.supported.offset, caps.engines.offset, caps.output_formats.offset) == (24, 25, 26)
    assert (caps.most_width.offset, caps.most_blocks.offset, caps.least_width.offset) == (28, 36, 40)


@pytest.mark.parametrize(
    ("driver", "warning"),
    [(None, "libnvcuvid.so.1 is missing"), (FakeDriver({}, 302), "CUDA error 302"), (FakeDriver({}), "it has none")],
    ids=["no library", "no capability", "no NVDEC"],
)
def test_without_nvdec_no_video_goes_to_dali_and_one_warning_says_why(
    driver: Any, warning: str, install: Callable[..., FakeCuda], caplog: pytest.LogCaptureFixture
) -> None:
    """Images of CUDA default to the capabilities compute and utility, which lack the video library."""
    install(driver)
    handle = handle_of()
    assert not goes_to_dali(handle)
    decoder = DaliDecoder(av_decode=handle.spec, video_decode_device="gpu")
    for _ in range(2):
        (outcome,) = decoder.decode_block([handle])
        assert isinstance(outcome, Decoded)
        assert outcome.route == "pyav"
        assert outcome.value.frames.is_cuda
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning in record.message
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in record.message


def test_workers_decode_videos_themselves_where_the_library_is_missing(install: Callable[..., FakeCuda]) -> None:
    """They may not ask the GPU, but they see that."""
    spec = VideoClips(1, 2)
    data = encode_video(VideoRecipe("h264", "mp4", frames=2, size=(320, 240), gop=1000))
    for driver, decoded in ((None, True), (FakeDriver(HOPPER), False)):
        cuda = install(driver)
        worker = DaliDecoder(av_decode=spec, video_decode_device="gpu")
        handle = worker.stage("mp4", data)
        assert isinstance(handle, ClipsHandle)
        assert (handle.decoded is not None) == decoded
        assert cuda.contexts == set()


def test_the_gpus_answer_decides_and_is_asked_once(install: Callable[..., FakeCuda]) -> None:
    driver = FakeDriver({**HOPPER, "hevc": (300, 300)})
    cuda = install(driver)
    routes = {codec: goes_to_dali(handle_of(codec)) for codec in ("h264", "hevc", "vp9", "mpeg4", "av1")}
    assert routes == {"h264": True, "hevc": False, "vp9": True, "mpeg4": True, "av1": False}
    assert driver.asked == len(nvdec._CODECS)
    assert cuda.contexts == {0}
    assert ask_nvdec(0).codecs["h264"].engines == 7


def test_decoders_of_many_sizes_are_bounded_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """DALI keeps 100 of any sizes; a budget must not be exceeded by what nothing counts."""
    memory = DeviceMemory(GPU, 8 << 30)
    cache = DecoderCache(memory)
    sizes = [(1280, 16 * height) for height in range(20, 68)]
    admitted = [size for size in sizes if cache.admit("h264", *size, 8)]
    assert 0 < len(admitted) < len(sizes)
    kept = memory.use().kept_bytes
    assert kept <= 2 << 30
    # Up to 100 decoders of any sizes are kept, so small ones that do not fit into those cost nothing.
    assert kept <= 100 * max(decoder_bytes(*size) for size in admitted)
    assert all(cache.admit("h264", *size, 8) for size in admitted)
    assert memory.use().kept_bytes == kept
    assert cache.admit("h264", 64, 64, 8)


def test_the_first_size_is_always_decoded() -> None:
    cache = DecoderCache(DeviceMemory(GPU, 1 << 20))
    assert cache.admit("h264", 1920, 1088, 8)
    assert not cache.admit("h264", 1280, 720, 8)
    assert cache.admit("h264", 1920, 1088, 8)


def test_what_is_kept_leaves_less_room_for_runs() -> None:
    memory = DeviceMemory(GPU, 100)
    assert memory.acquire(40, wait=False)
    assert memory.acquire(40, wait=False)
    memory.release_run(40)
    memory.keep("decoders", 30)
    assert not memory.acquire(40, wait=False)
    assert memory.use().kept_bytes == 30
    memory.keep("decoders", 0)
    assert memory.acquire(40, wait=False)


def test_a_size_without_room_is_pyavs(install: Callable[..., FakeCuda], monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeDriver(HOPPER))
    monkeypatch.setattr(DaliBackend, "has_room", lambda *_: False)
    handle = handle_of()
    (outcome,) = DaliDecoder(av_decode=handle.spec, video_decode_device="gpu").decode_block([handle])
    assert isinstance(outcome, Decoded)
    assert outcome.route == "pyav"
