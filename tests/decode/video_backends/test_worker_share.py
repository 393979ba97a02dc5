"""What workers do for a rank with a GPU: they decode what it would decode on few threads, and look at all headers."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from energon_dali import FrontEnd, SampleDecoder, VideoFrontEnd, VideoInput, WorkerConfig
from energon_dali.datasets.stream import StreamContext
from energon_dali.datasets.wrappers.worker_decode import WorkerDecodeDataset
from energon_dali.decode import DaliDecoder, Decoded
from energon_dali.decode.clips import ClipAudio, ClipsHandle, VideoClips
from energon_dali.decode.dali import close_engines
from energon_dali.decode.dali.dispatch import DaliHandle
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.host_decoding import DecodedHandle
from energon_dali.decode.front_ends import VisionInput
from energon_dali.decode.pyav import stage_clips
from energon_dali.decode.video_backends import nvdec
from energon_dali.decode.video_backends.choice import BACKENDS
from energon_dali.decode.video_backends.excerpt import excerpt_of
from energon_dali.decode.video_backends.nvdec import CodecLimits, Nvdec, ask_nvdec
from energon_dali.loader.processes import fork_safety
from tests.av.corpus import VideoRecipe, encode_video, video_file
from tests.av.test_sparse_media import indexed, sparse
from tests.decode.sample_images import encode, photograph, sample_images
from tests.fake_cuda import FakeCuda
from tests.loader.dataset_folder import prepare, write_shards

SIDES = CodecLimits((48, 4096), (16, 4096), 65_536, 7)
HOPPER = Nvdec(dict.fromkeys(("h264", "hevc", "vp9", "mpeg4"), SIDES))
ADA = Nvdec({**HOPPER.codecs, "av1": SIDES})
IMAGES = FrontEnd.from_processor({"image_processor_type": "CLIPImageProcessor"})
VIDEOS = VideoFrontEnd.from_processor(
    {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "do_sample_frames": True,
        "num_frames": 4,
        "size": {"shortest_edge": 28 * 28, "longest_edge": 6000},
    }
)
WITH_FRONT_END = VideoClips(front_end=VIDEOS)
TWO_CLIPS = VideoClips(2, 2, stride=1)
SIZE = (320, 240)
WEBP = encode(photograph(), "WEBP")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield FakeCuda(gpus=1).install(monkeypatch)
    close_engines()


def worker(answer: Nvdec | None = HOPPER, **options: Any) -> DaliDecoder:
    """Returns a decoder as it arrives in a worker."""
    decoder = DaliDecoder(image_decode_device="gpu", video_decode_device="gpu", **options)
    decoder.nvdec = answer
    arrived: DaliDecoder = pickle.loads(pickle.dumps(decoder))
    return arrived


def video(codec: str = "h264", container: str = "mp4", **recipe: Any) -> bytes:
    return encode_video(VideoRecipe(codec, container, frames=8, size=SIZE, gop=1000, **recipe))


# --- images -----------------------------------------------------------------------------------------------------------


def test_workers_render_images_that_no_gpu_takes(cuda: FakeCuda) -> None:
    decoder = worker(front_end=IMAGES)
    assert decoder.finishes_in_worker
    files = {"webp": WEBP, "png-rgba": sample_images()["png-rgba"], "jpeg": sample_images()["jpeg-420"]}
    for name, data in files.items():
        on_gpu = name == "jpeg"
        staged = decoder.stage("png", data)
        finished = decoder.finish_in_worker(staged)
        assert type(finished) is (DaliHandle if on_gpu else DecodedHandle), name
        if not on_gpu:
            assert isinstance(finished, DecodedHandle)
            assert finished.data == b""
            assert finished.layout == staged.layout
            assert isinstance(finished.pixels, VisionInput)
            assert decoder.finish_in_worker(finished) is finished
    assert cuda.contexts == set()


def test_the_rank_only_moves_what_workers_rendered(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    data = WEBP
    handle = worker(front_end=IMAGES).finish_in_worker(worker(front_end=IMAGES).stage("webp", data))
    monkeypatch.setattr("energon_dali.decode.media_decoder.decode_image", None)
    (outcome,) = DaliDecoder(front_end=IMAGES, image_decode_device="gpu").decode_block(
        [pickle.loads(pickle.dumps(handle))]
    )
    assert isinstance(outcome, Decoded)
    assert outcome.route == "pil"
    assert outcome.value.pixels.is_cuda
    assert torch.equal(outcome.value.pixels, SampleDecoder(front_end=IMAGES).decode("webp", data).pixels)


def test_a_bad_image_is_left_for_the_rank_to_report(cuda: FakeCuda) -> None:
    decoder = worker(front_end=IMAGES)
    staged = decoder.stage("webp", WEBP)
    staged.data = staged.data[: len(staged.data) // 2]
    assert decoder.finish_in_worker(staged) is staged


# --- videos -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [TWO_CLIPS, WITH_FRONT_END], ids=["clips", "front end"])
def test_workers_decode_videos_that_no_gpu_takes(
    spec: VideoClips, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvdec, "_load", lambda: (FakeDriver(), ""))
    cases = {
        "10 bit": (video("hevc", "mkv", pixel_format="yuv420p10le"), HOPPER, True),
        "vp8": (video("vp8", "webm"), HOPPER, True),
        "av1": (video("av1", "mp4"), HOPPER, True),
        "h264": (video(), HOPPER, False),
        "h264, nobody asked": (video(), None, False),
        "h264, no NVDEC": (video(), Nvdec({}, "it has none"), True),
    }
    for name, (data, answer, decodes) in cases.items():
        decoder = worker(answer, av_decode=spec)
        handle = decoder.finish_in_worker(decoder.stage("mp4", data, seed=2))
        assert isinstance(handle, ClipsHandle)
        assert (handle.decoded is not None) == decodes, name
        if decodes:
            assert handle.data == b""
            (outcome,) = decoder.decode_block([pickle.loads(pickle.dumps(handle))])
            assert isinstance(outcome, Decoded)
            assert outcome.route == "pyav"
            theirs = SampleDecoder(av_decode=spec).stage("mp4", data, seed=2)
            if spec.front_end is None:
                assert torch.equal(outcome.value.frames, theirs.frames)
            else:
                assert isinstance(outcome.value, VideoInput)
                assert torch.equal(outcome.value.pixels, theirs.decode().pixels)
        else:
            assert handle.backend == ("dali", "gpu")
            assert cuda.contexts == set()
        cuda.contexts.clear()


def test_rotated_videos_and_av1_follow_the_gpu(cuda: FakeCuda) -> None:
    spec = VideoClips(1, 2, apply_rotation=True)
    rotated = worker(av_decode=spec).stage("mp4", video(rotation=90))
    assert rotated.decoded is not None
    handle = worker(av_decode=WITH_FRONT_END).stage("mp4", video("av1", "mp4"))
    for answer, backend in ((HOPPER, "pyav"), (ADA, "dali")):
        handle.backend = None
        worker(answer, av_decode=WITH_FRONT_END).finish_in_worker(handle, decodes=False)
        assert handle.backend == (backend, "gpu")
        assert handle.decoded is None


def test_without_decoding_only_the_choice_is_made(cuda: FakeCuda) -> None:
    """For packing buffers, which hold encoded media."""
    decoder = worker(av_decode=WITH_FRONT_END)
    data = video("vp8", "webm")
    handle = decoder.finish_in_worker(decoder.stage("webm", data), decodes=False)
    assert isinstance(handle, ClipsHandle)
    assert (handle.decoded, handle.data, handle.backend) == (None, data, ("pyav", "gpu"))
    image = worker(front_end=IMAGES).stage("webp", WEBP)
    assert worker(front_end=IMAGES).finish_in_worker(image, decodes=False) is image


def test_the_rank_neither_demuxes_nor_decodes_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With DALI on the CPU, which a rank uses as it uses a GPU."""
    spec = VideoClips(2, 4, clip_duration_seconds=0.5, audio=ClipAudio(sample_rate=16_000, channels=1))
    data = video_file("vp9-opus-webm")
    handle = DaliDecoder(av_decode=spec, video_decode_device="cpu").stage("webm", data)
    assert isinstance(handle, ClipsHandle)
    assert handle.sound is not None
    arrived = pickle.loads(pickle.dumps(handle))
    monkeypatch.setattr("energon_dali.av.container.MediaFile.opened", None)
    monkeypatch.setattr("energon_dali.decode.dali.video.frame_headers.open_container", None)
    monkeypatch.setattr("energon_dali.decode.pyav.AudioReader", None)
    (outcome,) = DaliDecoder(av_decode=spec, video_decode_device="cpu").decode_block([arrived])
    monkeypatch.undo()
    assert isinstance(outcome, Decoded)
    assert outcome.route == "dali-cpu"
    theirs = SampleDecoder(av_decode=spec).stage("webm", data)
    assert torch.equal(outcome.value.audio, theirs.audio)
    assert torch.equal(outcome.value.audio_timestamps, theirs.audio_timestamps)
    assert outcome.value.frames.shape == theirs.frames.shape


def test_videos_with_a_front_end_arrive_with_what_decides_about_them(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = DaliDecoder(av_decode=WITH_FRONT_END, image_decode_device="cpu", video_decode_device="cpu")
    data = video_file("vp9-webm")
    handle = decoder.finish_in_worker(decoder.stage("webm", data))
    assert isinstance(handle, ClipsHandle)
    assert handle.backend == ("dali", "cpu")
    assert handle.uniform_frames
    assert handle.colour is not None
    arrived = pickle.loads(pickle.dumps(handle))
    monkeypatch.setattr("energon_dali.av.container.MediaFile.opened", None)
    monkeypatch.setattr("energon_dali.decode.dali.video.frame_headers.open_container", None)
    (outcome,) = decoder.decode_block([arrived])
    assert isinstance(outcome, Decoded)
    assert outcome.route == "dali-cpu"
    assert isinstance(outcome.value, VideoInput)


# --- the question to the GPU, and the stage of the tree ---------------------------------------------------------------


class FakeDriver:
    """libcuda and libnvcuvid of a process that does not use CUDA yet."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = ""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuvidGetDecoderCaps":
                asked = ctypes.cast(arguments[0], ctypes.POINTER(nvdec._Capabilities)).contents
                asked.supported, asked.most_width, asked.most_height, asked.most_blocks = 1, 4096, 4096, 65_536
            return 100 if name == self.fails else 0

        return call


def test_asking_leaves_no_context_behind_so_that_workers_can_be_forked(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.initialized = False
    driver = FakeDriver()
    monkeypatch.setattr(nvdec, "_load", lambda: (driver, ""))
    monkeypatch.setattr(nvdec.ctypes, "CDLL", lambda name: driver)
    ask_nvdec.cache_clear()
    decoder = DaliDecoder(av_decode=TWO_CLIPS)
    for _ in range(2):
        decoder.prepare_workers()
    assert decoder.nvdec is not None
    assert decoder.nvdec.decodes("av1", 640, 360)
    assert driver.calls.count("cuDevicePrimaryCtxRetain") == driver.calls.count("cuDevicePrimaryCtxRelease_v2") == 1
    assert driver.calls.count("cuCtxPushCurrent_v2") == driver.calls.count("cuCtxPopCurrent_v2") == 1
    assert driver.calls.count("cuvidGetDecoderCaps") == len(nvdec._CODECS)
    assert cuda.contexts == set()
    assert not fork_safety._has_primary_context(
        SimpleNamespace(cuDeviceGetCount=lambda count: 0, cuDevicePrimaryCtxGetState=lambda *_: 0)
    )
    driver.fails = "cuInit"
    ask_nvdec.cache_clear()
    assert ask_nvdec(0).obstacle == "cuInit fails with CUDA error 100"
    ask_nvdec.cache_clear()


def test_who_need_not_ask_does_not(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_dali.decode.dali.decoder.ask_nvdec", None)
    decoders = [DaliDecoder(), DaliDecoder(av_decode=TWO_CLIPS, video_decode_device="cpu")]
    for decoder in decoders:
        decoder.prepare_workers()
    monkeypatch.setattr("energon_dali.decode.dali.decoder.sees_gpu", lambda: False)
    decoders.append(DaliDecoder(av_decode=TWO_CLIPS))
    decoders[-1].prepare_workers()
    assert [decoder.nvdec for decoder in decoders] == [None, None, None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = (WEBP, sample_images()["jpeg-420"], sample_images()["png-rgba"])
    samples = {f"k{number}": {"png": data} for number, data in enumerate(files)}
    root = prepare(write_shards(tmp_path_factory.mktemp("images"), samples))
    (root / ".nv-meta" / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return root


@pytest.mark.parametrize("workers", [0, 1])
def test_the_stage_is_below_the_border_and_keeps_states(folder: Path, workers: int) -> None:
    from energon_dali import Cooker, DefaultTaskEncoder, basic_sample_keys, get_train_dataset
    from energon_dali.datasets.base import walk

    class Encoder(DefaultTaskEncoder):
        decoder = DaliDecoder(front_end=IMAGES, image_decode_device="cpu")
        cookers = (Cooker(lambda sample: {**basic_sample_keys(sample), "image": sample["png"]}),)

    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    options: dict[str, Any] = {"batch_size": 3, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    tree = get_train_dataset(folder, task_encoder=Encoder(), worker_config=config, **options)
    (stage,) = [one for one in walk(tree) if isinstance(one, WorkerDecodeDataset)]
    kinds = []
    stream = stage.open(StreamContext(0))
    for _ in range(3):
        kinds.append(type(next(stream)["image"]))
    again = stage.open(StreamContext(0))
    again.load_state_dict(stream.state_dict())
    assert next(again)["image"].layout == next(stream)["image"].layout
    assert (DecodedHandle in kinds) == bool(workers)
    assert again.skip(1) == 1
    stream.close()
    again.close()


# --- videos of which ranges are read ----------------------------------------------------------------------------------


def test_ranges_become_a_file_of_the_wanted_packets(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends of GPUs take files: they get one of the packets that the clips need."""
    spec = VideoClips(2, 3, stride=1, sampling="at", at=(0.2, 1.3), layout="FHWC")
    data = encode_video(VideoRecipe("h264", "mp4", size=SIZE, frames=60, gop=6))
    index = indexed(data)
    decoder = worker(av_decode=spec, video_backend="dali")
    assert decoder.takes_sparse("mp4")
    media = sparse(data, index, decoder.choose_ranges("mp4", index, 0))
    handle = decoder.stage("mp4", media)
    assert isinstance(handle, ClipsHandle)
    assert handle.backend == ("dali", "gpu")
    assert handle.decoded is None
    assert isinstance(handle.data, bytes)
    assert len(handle.data) < len(data) // 2
    assert media.fetched_on_demand == 0
    theirs = SampleDecoder(av_decode=spec).stage("mp4", data)
    assert handle.timestamps.tolist() == theirs.timestamps.tolist()
    assert torch.equal(handle.decode().frames, theirs.frames)
    # What no GPU takes is decoded from the ranges.
    ten_bits = encode_video(VideoRecipe("h264", "mp4", size=SIZE, frames=40, pixel_format="yuv420p10le"))
    index = indexed(ten_bits)
    handle = decoder.stage("mp4", sparse(ten_bits, index, decoder.choose_ranges("mp4", index, 0)))
    assert handle.decoded is not None
    assert cuda.contexts == set()


def test_dali_reads_excerpts_as_it_reads_files() -> None:
    spec = VideoClips(2, 3, stride=1, sampling="at", at=(0.3, 1.2), layout="FHWC")
    data = video_file("vp9-webm")
    index = indexed(data)
    staged, file = stage_clips("webm", sparse(data, index, []), spec)
    file.close()
    excerpt = excerpt_of(staged)
    assert excerpt is not None
    assert (excerpt.frame_indices < staged.frame_indices).any()
    whole, opened = stage_clips("webm", data, spec)
    opened.close()
    options = DaliDecoder(av_decode=spec, video_decode_device="cpu").engine_options
    results = [BACKENDS["dali"].submit(options, Device("cpu"), [each]).result(60)[0] for each in (excerpt, whole)]
    assert [result.route for result in results] == ["dali-cpu"] * 2
    assert torch.equal(results[0].value.frames, results[1].value.frames)  # type: ignore[union-attr]
