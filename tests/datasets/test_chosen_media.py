"""Clips are chosen before a video is read, and only their packets are read: with the results of whole files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.remote.s3_server import S3Server
from energon_dali import (
    AudioFrontEnd,
    AVDecoder,
    ClipAudio,
    Cooker,
    DaliDecoder,
    LogMel,
    SampleDecoder,
    TaskEncoder,
    VideoClips,
    VideoFrontEnd,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_dali.av.media_indexing import MediaIndexer
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.datasets.fetch import REPEATED_ROWS
from energon_dali.decode.media_filter import MediaFilter
from energon_dali.shards import ShardReader, WebdatasetFolder, prepare_dataset, shard_reader
from energon_dali.shards.prepare.media_tables import add_media_metadata
from energon_dali.task_encoder.cooking import basic_sample_keys
from tests.av.corpus import VIDEOS, encode_video
from tests.shards.tars import write_tar

SAMPLES = 6
LONG = replace(VIDEOS["h264-aac-mp4"], frames=400, gop=25, b_frames=2)
"""Sixteen seconds."""
CLIPS = VideoClips(num_clips=2, frames_per_clip=3, clip_duration_seconds=0.5, sampling="random", audio=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a dataset of videos with texts before and after them, with a media index."""
    root = tmp_path_factory.mktemp("bucket") / "data" / "videos"
    containers = {"mp4": encode_video(LONG), "mkv": encode_video(replace(LONG, container="mkv"))}
    files: dict[str, bytes] = {}
    for number in range(SAMPLES):
        suffix = ("mp4", "mkv")[number % 2]
        files |= {f"{number}.a.txt": b"before", f"{number}.{suffix}": containers[suffix], f"{number}.z.txt": b"after"}
    write_tar(root / "shard_0.tar", files)
    prepare_dataset(str(root), split_ratio={"train": 1})
    (root / ".nv-meta" / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    add_media_metadata(str(root), MediaFilter("EXTENSION"), index_media=MediaIndexer())
    return root


@pytest.fixture(autouse=True)
def _small_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_reader, "FEWEST_RANGED_BYTES", 1)


def encoder_of(decoder: Any) -> TaskEncoder[Any, Any, Any, Any]:
    @stateless
    def cook(sample: Any) -> dict[str, Any]:
        video = sample.get("mp4", sample.get("mkv"))
        return {**basic_sample_keys(sample), "names": [name for name in sample if "__" not in name], "video": video}

    class Encoder(TaskEncoder[Any, Any, Any, Any]):
        cookers = (Cooker(cook),)

        @stateless
        def batch(self, samples: list[Any]) -> Any:
            return samples[0]

    Encoder.decoder = decoder
    return Encoder()


def read(path: Path | str, decoder: Any, *, whole: bool = False, workers: int = 0, epochs: int = 1) -> dict[str, Any]:
    """Returns the cooked samples of some epochs, and the counters of the loader."""
    with pytest.MonkeyPatch.context() as patch:
        if whole:
            patch.setattr("energon_dali.assembly.opened_source.media_chooser", lambda folder, decoder: None)
        config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
        dataset = get_train_dataset(
            str(path),
            task_encoder=encoder_of(decoder),
            worker_config=config,
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
        )
        with get_savable_loader(dataset) as loader:
            taken = [batch for batch, _ in zip(loader, range(SAMPLES * epochs), strict=False)]
            return {"samples": taken, "statistics": loader.stats(), "reader": None}


def assert_same(found: Any, expected: Any) -> None:
    for name in ("frames", "timestamps", "audio", "audio_timestamps", "audio_features"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert torch.equal(one, other), name


def late(seconds: float, frames: int, rng: np.random.Generator) -> list[float]:
    assert frames == LONG.frames
    return [seconds * (0.5 + rng.random() / 4), seconds * 0.75]


SPECS = {
    "function": VideoClips(num_clips=2, frames_per_clip=2, clip_duration_seconds=0.3, sampling="at", at=late),
    "random": CLIPS,
    "uniform": VideoClips(num_clips=3, frames_per_clip=2, stride=7),
    "at": VideoClips(frames_per_clip=4, clip_duration_seconds=1.0, sampling="at", at=(3.0, 9.5), size=(32, 32)),
    "upright": VideoClips(frames_per_clip=2, clip_duration_seconds=0.2, sampling="at", at=(7.0,), apply_rotation=True),
    "features": VideoClips(
        frames_per_clip=1,
        clip_duration_seconds=1.0,
        sampling="at",
        at=(8.0,),
        audio=ClipAudio(features=LogMel(duration_seconds=1.0)),
    ),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("decoder", [SampleDecoder, DaliDecoder])
def test_clips_are_those_of_whole_files(folder: Path, name: str, decoder: Any) -> None:
    ranged = read(folder, decoder(av_decode=SPECS[name]), epochs=2)
    whole = read(folder, decoder(av_decode=SPECS[name]), whole=True, epochs=2)

    for found, expected in zip(ranged["samples"], whole["samples"], strict=True):
        assert (found["__key__"], found["names"]) == (expected["__key__"], expected["names"])
        assert_same(found["video"], expected["video"])
    assert not ranged["statistics"].failures
    assert ranged["statistics"].counts.get("media.bytes_on_demand", 0) == 0 or SPECS[name].audio


def test_a_front_end_gets_its_frames_and_times(folder: Path) -> None:
    front_end = VideoFrontEnd.from_processor(
        {
            "video_processor_type": "Qwen2VLVideoProcessor",
            "do_sample_frames": True,
            "fps": 0.3,
            "size": {"shortest_edge": 3136, "longest_edge": 12544},
        }
    )
    spec = VideoClips(front_end=front_end)

    ranged = read(folder, SampleDecoder(av_decode=spec))
    whole = read(folder, SampleDecoder(av_decode=spec), whole=True)

    for found, expected in zip(ranged["samples"], whole["samples"], strict=True):
        one, other = found["video"], expected["video"]
        assert one.timestamps == other.timestamps
        assert one.layout == other.layout
        assert torch.equal(one.pixels, other.pixels)
    assert "media.bytes_on_demand" not in ranged["statistics"].counts


def test_clips_and_audio_segments_of_one_video_are_read_together(folder: Path) -> None:
    spec = VideoClips(num_clips=2, frames_per_clip=3, clip_duration_seconds=0.5, sampling="random")
    front_end = AudioFrontEnd.from_processor({"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 1})
    decoder = SampleDecoder(
        av_decode=spec, audio_front_end=front_end, audio_of_videos=True, audio_segments="random", audio_seconds=0.5
    )

    ranged = read(folder, decoder)
    whole = read(folder, decoder, whole=True)

    for found, expected in zip(ranged["samples"], whole["samples"], strict=True):
        assert_same(found["video"]["video"], expected["video"]["video"])
        assert torch.equal(found["video"]["audio"].features, expected["video"]["audio"].features)
    assert 0 < ranged["statistics"].counts["bytes.read"] < whole["statistics"].counts["bytes.read"]


def test_only_the_packets_of_the_clips_are_read(folder: Path) -> None:
    spec = VideoClips(num_clips=2, frames_per_clip=3, clip_duration_seconds=0.5, sampling="random")

    ranged = read(folder, SampleDecoder(av_decode=spec))["statistics"].counts
    whole = read(folder, SampleDecoder(av_decode=spec), whole=True)["statistics"].counts

    assert 0 < ranged["bytes.read"] < whole["bytes.read"] / 4
    assert "media.bytes_on_demand" not in ranged


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[S3Server]:
    with S3Server(folder.parents[1]) as running:
        yield running


def test_from_a_bucket_the_same_clips_cost_few_bytes(
    folder: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    spec = VideoClips(num_clips=2, frames_per_clip=3, clip_duration_seconds=0.5, sampling="random")
    local = read(folder, SampleDecoder(av_decode=spec))
    server.reset()

    remote = read("s3://data/videos", SampleDecoder(av_decode=spec), workers=1)

    counters = server.counters()
    for found, expected in zip(remote["samples"], local["samples"], strict=True):
        assert_same(found["video"], expected["video"])
    requested = remote["statistics"].requests
    assert 0 < requested["bytes_fetched"] < 1.3 * requested["bytes_wanted"]  # some requests may not have come back yet
    assert counters["bytes_by_suffix"]["tar"] >= requested["bytes_fetched"]
    assert requested["bytes_wanted"] / REPEATED_ROWS < (folder / "shard_0.tar").stat().st_size / SAMPLES / 4
    assert "media.bytes_on_demand" not in remote["statistics"].counts


def test_random_clips_of_a_restored_sample_are_read_again(folder: Path) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)

    def loader() -> Any:
        dataset = get_train_dataset(
            str(folder),
            task_encoder=encoder_of(SampleDecoder(av_decode=CLIPS)),
            worker_config=config,
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
        )
        return get_savable_loader(dataset)

    with loader() as first:
        batches = iter(first)
        taken = [next(batches) for _ in range(3)]
        state = first.save_state_rank()
        expected = [next(batches) for _ in range(SAMPLES)]
        again = first.restore_sample(taken[1]["__restore_key__"])
    with loader() as second:
        second.restore_state_rank(state)
        found = [batch for batch, _ in zip(second, range(SAMPLES), strict=False)]

    assert_same(again["video"], taken[1]["video"])
    for one, other in zip(found, expected, strict=True):
        assert one["__key__"] == other["__key__"]
        assert_same(one["video"], other["video"])


def test_a_changed_video_fails_alone_and_names_the_reason(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "videos"
    shutil.copytree(folder, copy)
    opened = WebdatasetFolder(str(copy))
    _, offset, size = opened.index.shard(0).parts(2)[1]
    content = bytearray((copy / "shard_0.tar").read_bytes())
    middle = slice(offset + size // 4, offset + 3 * size // 4)
    content[middle] = bytes(byte ^ 0x55 for byte in content[middle])
    (copy / "shard_0.tar").write_bytes(content)

    found = read(copy, SampleDecoder(av_decode=VideoClips(frames_per_clip=1, stride=1, sampling="at", at=(8.0,))))

    (failure,) = found["statistics"].failures[:1]
    assert failure["key"] == "2"
    assert "is not what was indexed: the file changed or is damaged" in failure["reason"]
    assert {sample["__key__"] for sample in found["samples"]} == {"0", "1", "3", "4", "5"}


def test_a_damaged_entry_of_the_index_fails_its_samples_alone(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "videos"
    shutil.copytree(folder, copy)
    path = copy / ".nv-meta" / "media_index.bin"
    content = bytearray(path.read_bytes())
    at = content.index(b"}", content.index(b'"maker"')) + 40  # inside the entry of the first video
    content[at] ^= 1
    path.write_bytes(content)

    found = read(copy, SampleDecoder(av_decode=CLIPS))["statistics"]

    assert {failure["key"] for failure in found.failures} == {"0"}
    assert "media" in found.failures[0]["reason"]


@pytest.mark.parametrize("decoder", [SampleDecoder, DaliDecoder])
def test_a_lazy_decoder_reads_what_its_methods_need(folder: Path, decoder: Any) -> None:
    lazy = read(folder, decoder(av_lazy=True))
    whole = read(folder, decoder())

    for found, expected in zip(lazy["samples"], whole["samples"], strict=True):
        one, other = found["video"], expected["video"]
        assert isinstance(one, AVDecoder)
        media = one.file.source
        assert isinstance(media, SparseMedia)
        assert len(media) == 0
        assert one.get_metadata(get_video_frame_count=True) == other.get_metadata(get_video_frame_count=True)
        assert media.fetched_on_demand == 0
        clips = one.get_clips([(2, 2.5), (9, 9.2)], [(2, 2.5)])
        for name in ("video_clips", "audio_clips"):
            for left, right in zip(
                getattr(clips, name), getattr(other.get_clips([(2, 2.5), (9, 9.2)], [(2, 2.5)]), name), strict=True
            ):
                assert torch.equal(left, right)
        assert media.index.size_bytes > media.fetched_on_demand > 0
    assert lazy["statistics"].counts["bytes.read"] < whole["statistics"].counts["bytes.read"] / 10


def test_a_decoder_of_the_user_that_takes_bytes_gets_whole_files(folder: Path) -> None:
    class Own(SampleDecoder):
        def decode(self, fname: str, raw: bytes) -> Any:
            return len(raw) if fname.endswith(("mp4", "mkv")) else super().decode(fname, raw)

    found = read(folder, Own(av_decode=CLIPS))["samples"]

    sizes = {size for _, _, size in WebdatasetFolder(str(folder)).index.shard(0).parts(0)}
    assert {int(sample["video"]) for sample in found} & sizes


def test_a_reader_without_seeds_reads_whole_parts(folder: Path) -> None:
    reader = ShardReader(WebdatasetFolder(str(folder)))
    (sample,) = reader.read([0], [0])

    assert isinstance(sample.parts["mp4"], memoryview)  # type: ignore[union-attr]
    assert np.frombuffer(sample.parts["mp4"], np.uint8)[4:8].tobytes() == b"ftyp"  # type: ignore[union-attr]


def test_a_lazy_decoder_asks_a_bucket_for_all_ranges_at_once(
    folder: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    video = read("s3://data/videos", SampleDecoder(av_lazy=True))["samples"][0]["video"]
    whole = read(folder, SampleDecoder())["samples"][0]["video"]
    server.reset()

    clips = video.get_clips([(2, 2.5), (9, 9.2)])

    counters = server.counters()
    for found, expected in zip(clips.video_clips, whole.get_clips([(2, 2.5), (9, 9.2)]).video_clips, strict=True):
        assert torch.equal(found, expected)
    assert sum(counters["requests"].values()) <= 2 + 1  # a range for each clip, and perhaps the size of the shard
    assert 0 < counters["bytes_sent"] < video.file.source.index.size_bytes / 4
