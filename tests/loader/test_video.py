"""Clips take the same path as images: through workers, the worker border, batches, failures, save and restore."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    Batch,
    Cooker,
    DaliDecoder,
    DefaultTaskEncoder,
    Sample,
    SampleDecoder,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_dali.decode.clips import VideoClips
from energon_dali.samples.kinds import Clips
from tests.av.corpus import broken_files, video_file
from tests.loader.dataset_folder import picture, prepare, write_shards
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

COUNT = 24
BATCH = 4
KINDS = ("h264-b-mp4", "vp9-webm", "mjpeg-odd-avi", "h264-start-mp4", "vp8-webm")
BAD = {3: "mp4-half", 4: "empty", 11: "text"}
CLIPS = VideoClips(2, 3, clip_duration_seconds=0.4, sampling="random", size=(48, 32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of a video and an image each; some videos are broken."""
    samples = {}
    for number in range(COUNT):
        kind = KINDS[number % len(KINDS)]
        part, video = (
            ("mp4", broken_files()[BAD[number]]) if number in BAD else (kind.rpartition("-")[2], video_file(kind))
        )
        samples[f"k{number:04d}"] = {part: video, "jpg": picture(number), "txt": f"video {number}".encode()}
    root = prepare(write_shards(tmp_path_factory.mktemp("videos"), samples))
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    (root / ".nv-meta" / "dataset.yaml").write_text(json.dumps(crude))
    return root


@edataclass
class Footage(Sample):
    """A video, an image and a caption."""

    clips: Any
    image: torch.Tensor
    caption: str


@stateless
def cook(sample: dict[str, Any]) -> Footage:
    """Makes a Footage, whatever the container of the video is."""
    video = next(sample[part] for part in ("mp4", "webm", "avi") if part in sample)
    return Footage(**basic_sample_keys(sample), clips=video, image=sample["jpg"], caption=sample["txt"])  # type: ignore[arg-type]


class Pyav(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="torchrgb8", av_decode=CLIPS)
    cookers = (Cooker(cook),)

    @stateless
    def encode_sample(self, sample: Footage) -> Footage:
        assert type(sample.clips) is Clips
        assert sample.clips.frames.shape == (2, 3, 3, 32, 48)  # type: ignore[union-attr]
        return sample


class Dali(Pyav):
    decoder = DaliDecoder(image_decode="torchrgb8", av_decode=CLIPS, image_decode_device="cpu")


class DaliWherePossible(Pyav):
    decoder = DaliDecoder(
        image_decode="torchrgb8", av_decode=CLIPS, image_decode_device="cpu", video_decode_device="cpu"
    )


def loader_of(folder: Path, encoder: Any, num_workers: int, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=2, global_error_handler=quiet)
    return get_savable_loader(
        get_train_dataset(
            folder,
            batch_size=BATCH,
            worker_config=config,
            task_encoder=encoder,
            shuffle_buffer_size=10,
            max_samples_per_sequence=6,
        ),
        **options,
    )


def view(batch: Any) -> tuple[Any, ...]:
    return batch.__key__, batch.clips.timestamps.tolist(), batch.clips.frames.sum(dim=(1, 2, 3, 4, 5)).tolist()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("encoder", "num_workers"), [(Pyav, 0), (Pyav, 2), (Dali, 2), (DaliWherePossible, 0), (DaliWherePossible, 2)]
)
def test_clips_next_to_images_and_bad_videos_are_counted(folder: Path, encoder: type[Any], num_workers: int) -> None:
    epochs = 3
    good = {f"k{number:04d}" for number in range(COUNT) if number not in BAD}
    seen: Counter[str] = Counter()
    times: dict[str, list[Any]] = {key: [] for key in good}
    open_before = 0
    with loader_of(folder, encoder(), num_workers) as loader:
        for batch in islice(iter(loader), epochs * len(good) // BATCH):
            open_before = open_before or descriptors()
            seen.update(batch.__key__)
            for key, row in zip(batch.__key__, batch.clips.timestamps.tolist(), strict=True):
                times[key].append(row)
            assert isinstance(batch, (Batch, Footage))
            assert batch.clips.frames.shape[1:] == (2, 3, 3, 32, 48)  # type: ignore[union-attr]
            assert batch.clips.timestamps.shape == (len(batch.__key__), 2, 3)  # type: ignore[union-attr]
            assert batch.image.shape[1] == 3  # type: ignore[union-attr]
        stats = loader.stats()
        assert descriptors() <= open_before + 8, "files stay open"
    assert set(seen) == good
    assert all(shown[0] != shown[1] for shown in times.values() if len(shown) > 1), "an epoch repeats its random clips"
    assert {failure["key"] for failure in stats["failures"]} == {f"k{number:04d}" for number in BAD}
    routes = stats.routes
    videos, images = routes.get("pyav", 0), routes.get("pil", 0)
    if encoder is Pyav:
        # A sample with a broken video is dropped before or after its image is decoded.
        assert sum(seen.values()) <= videos <= images
    else:
        assert videos + routes.get("dali-cpu", 0) >= 2 * sum(seen.values())
    assert videos > 0


def test_every_decoder_gives_the_same_clips_in_the_same_order(folder: Path) -> None:
    def batches(made: Any, num_workers: int) -> list[Any]:
        with loader_of(folder, made, num_workers) as loader:
            return list(islice(iter(loader), 7))

    expected = batches(Pyav(), 2)
    for encoder in (Dali, DaliWherePossible):
        for one, other in zip(expected, batches(encoder(), 0), strict=True):
            assert type(one) is type(other) is Footage
            assert one.__key__ == other.__key__
            assert torch.equal(one.clips.timestamps, other.clips.timestamps)
            assert (one.clips.frames.float() - other.clips.frames.float()).abs().mean() < 3
            assert torch.equal(one.clips.frames, other.clips.frames) or encoder is DaliWherePossible


@pytest.mark.parametrize(("encoder", "num_workers"), [(Pyav, 2), (DaliWherePossible, 0)])
def test_what_comes_after_a_restore_is_what_would_have_come(folder: Path, encoder: type[Any], num_workers: int) -> None:
    with loader_of(folder, encoder(), num_workers) as loader:
        stream = iter(loader)
        for _ in range(4):
            next(stream)
        state = json.loads(json.dumps(loader.save_state_rank()))
        expected = [view(next(stream)) for _ in range(8)]
    with loader_of(folder, encoder(), num_workers) as loader:
        loader.restore_state_rank(state)
        stream = iter(loader)
        batches = [next(stream) for _ in range(8)]
        assert [view(batch) for batch in batches] == expected
        again = loader.restore_sample(batches[2].__restore_key__)
    assert view(again) == expected[2]
