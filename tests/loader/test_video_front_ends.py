"""Videos with a front end in whole pipelines: hooks know tokens before decoding, and runs resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    Cooker,
    DaliDecoder,
    DefaultTaskEncoder,
    Sample,
    SampleDecoder,
    VideoClips,
    VideoFrontEnd,
    VideoInput,
    WorkerConfig,
    basic_sample_keys,
    batch_vision,
    edataclass,
    get_loader,
    get_train_dataset,
    stateless,
)
from energon_dali.decode.clips import ClipsHandle
from tests.av.corpus import broken_files, video_file
from tests.datasets.oracle import check_resume
from tests.loader.dataset_folder import prepare, write_shards
from tests.quiet import quiet

COUNT = 12
KINDS = ("h264-b-mp4", "vp9-webm", "mjpeg-odd-avi")
BAD = {3: "mp4-half", 5: "text"}
FRONT_END = VideoFrontEnd.from_processor(
    {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "do_sample_frames": True,
        "num_frames": 4,
        "size": {"shortest_edge": 28 * 28, "longest_edge": 6000},
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of a video each; some are broken."""
    samples = {}
    for number in range(COUNT):
        kind = KINDS[number % len(KINDS)]
        broken = number in BAD
        part = "mp4" if broken else kind.rpartition("-")[2]
        samples[f"k{number:02d}"] = {part: broken_files()[BAD[number]] if broken else video_file(kind)}
    root = prepare(write_shards(tmp_path_factory.mktemp("videos"), samples))
    (root / ".nv-meta" / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return root


@edataclass
class Footage(Sample):
    """A video and its number of tokens."""

    video: Any
    tokens: int = 0


@stateless
def cook(sample: dict[str, Any]) -> Footage:
    """Takes the video, whatever its container is."""
    video = next(sample[part] for part in ("mp4", "webm", "avi") if part in sample)
    return Footage(**basic_sample_keys(sample), video=video)


class Videos(DefaultTaskEncoder):
    """Counts tokens before decoding, and batches what models take."""

    cookers = (Cooker(cook),)

    def __init__(self, dali: bool) -> None:
        super().__init__()
        clips = VideoClips(front_end=FRONT_END)
        self.decoder = (
            DaliDecoder(av_decode=clips, image_decode_device="cpu", video_decode_device="cpu")
            if dali
            else SampleDecoder(av_decode=clips)
        )

    @stateless
    def preencode_sample(self, sample: Footage) -> Footage:
        assert isinstance(sample.video, ClipsHandle)
        sample.tokens = sample.video.num_tokens
        return sample

    @stateless
    def postencode_sample(self, sample: Footage) -> Footage:
        assert isinstance(sample.video, VideoInput)
        assert sample.video.num_tokens == sample.tokens
        return sample

    def batch(self, samples: list[Footage]) -> Any:
        keys = [sample.__key__ for sample in samples]
        return {"keys": keys, **batch_vision([sample.video for sample in samples], for_model=True)}


def dataset(folder: Path, *, dali: bool, workers: int = 0, repeat: bool = False) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=2, global_error_handler=quiet)
    return get_train_dataset(
        folder,
        worker_config=config,
        batch_size=2,
        task_encoder=Videos(dali),
        shuffle_buffer_size=4,
        max_samples_per_sequence=None,
        repeat=repeat,
    )


def view(batch: Any) -> Any:
    """Returns a batch as plain values, without what decoders may compute differently."""
    return batch["keys"], batch["video_grid_thw"].tolist(), list(batch["pixel_values_videos"].shape)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.sweep)])
def test_decoders_agree_and_only_bad_videos_are_missing(folder: Path, workers: int) -> None:
    found = {}
    for dali in (False, True):
        with get_loader(dataset(folder, dali=dali, workers=workers)) as loader:
            found[dali] = [view(batch) for batch in loader]
    keys = sorted(key for batch, *_ in found[False] for key in batch)
    assert [int(key[-2:]) for key in keys] == [number for number in range(COUNT) if number not in BAD]
    assert found[True] == found[False]


@pytest.mark.parametrize("dali", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["pyav", "dali"])
def test_runs_resume_exactly(folder: Path, dali: bool) -> None:
    check_resume(lambda: dataset(folder, dali=dali, repeat=True), count=4, view=view)
