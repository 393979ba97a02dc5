"""AVDecoders in samples: they travel to hooks and batches, decode there, release memory, and close their files."""

from __future__ import annotations

import gc
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    VidQASample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_dali.av import AVData, AVDecoder, AVWebdatasetDecoder
from energon_dali.demuxers import AV_SUFFIXES
from energon_dali.errors import ConfigError
from tests.av.corpus import audio_file, broken_files, video_file
from tests.loader.dataset_folder import prepare, write_shards
from tests.loader.test_pool import open_files
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

COUNT = 24
BATCH = 4
BAD = {5: "mp4-half", 13: "text"}
KINDS = ("h264-b-mp4", "h264-vfr-b-mkv", "vp9-opus-webm")
FIELDS = {"video": "mp4,mkv,webm", "context": "txt"}


def sample(number: int) -> dict[str, bytes]:
    """Returns the parts of a sample; some videos are broken."""
    kind = KINDS[number % len(KINDS)]
    video = {"mp4": broken_files()[BAD[number]]} if number in BAD else {kind.rpartition("-")[2]: video_file(kind)}
    return {**video, "txt": f"video {number}".encode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_shards(tmp_path_factory.mktemp("lazy"), {f"k{n:04d}": sample(n) for n in range(COUNT)})
    return prepare(root, FIELDS, "VidQASample")


class ClipsInHook(DefaultTaskEncoder[Any, Any, Any, Any]):
    """The hook decodes, as in Energon's documentation."""

    decoder = SampleDecoder()

    @stateless
    def encode_sample(self, sample: VidQASample) -> Any:
        data = sample.video.get_clips(video_clip_ranges=[(0, 0.2), (0.4, 0.8)], video_out_frame_size=(32, 24))
        first = torch.stack([clip[:3] for clip in data.video_clips])
        return {"__key__": sample.__key__, "__restore_key__": sample.__restore_key__, "clips": first}


class ClipsInRank(ClipsInHook):
    """With this decoder hooks run in the rank: the AVDecoders come from the workers as views of shared memory."""

    decoder = DaliDecoder(image_decode_device="cpu")


class DecodersInBatch(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Delivers the AVDecoders themselves, used or not."""

    decoder = SampleDecoder()

    @stateless
    def encode_sample(self, sample: VidQASample) -> VidQASample:
        if int(sample.__key__.removeprefix("k")) % 2 and sample.video.has_video_stream():
            sample.video.get_video_duration()
        return sample


def loader_of(folder: Path, encoder: Any, num_workers: int) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=2, global_error_handler=quiet)
    return get_savable_loader(
        get_train_dataset(
            folder,
            batch_size=BATCH,
            worker_config=config,
            task_encoder=encoder,
            shuffle_buffer_size=10,
            max_samples_per_sequence=6,
        )
    )


def mapped_blocks() -> int:
    """Returns how many blocks of shared memory this process sees."""
    return Path("/proc/self/maps").read_text().count("energon-dali-block")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("encoder", [ClipsInHook, ClipsInRank])
def test_hooks_decode_and_a_restore_gives_the_same(folder: Path, encoder: type[Any], num_workers: int) -> None:
    def view(batch: Any) -> Any:
        return batch["__key__"], batch["clips"].tolist()

    with loader_of(folder, encoder(), num_workers) as loader:
        stream = iter(loader)
        assert next(stream)["clips"].shape == (BATCH, 2, 3, 3, 24, 32)
        next(stream)
        state = json.loads(json.dumps(loader.save_state_rank()))
        expected = [view(next(stream)) for _ in range(6)]
        files, blocks = open_files(), mapped_blocks()
        seen = {key for batch in islice(stream, 18) for key in batch["__key__"]}
        gc.collect()
        assert len(open_files() - files) <= 2, "files stay open"
        assert mapped_blocks() <= blocks + 4, "blocks stay mapped"
        failures = {failure["key"] for failure in loader.stats()["failures"]}
    assert failures == {f"k{number:04d}" for number in BAD}
    assert seen == {f"k{number:04d}" for number in range(COUNT)} - failures
    with loader_of(folder, encoder(), num_workers) as loader:
        loader.restore_state_rank(state)
        assert [view(batch) for batch in islice(iter(loader), 6)] == expected


def test_decoders_in_batches_can_be_used_after_their_loader_is_gone(folder: Path) -> None:
    with loader_of(folder, DecodersInBatch(), 2) as loader:
        batches = list(islice(iter(loader), 4))
    kept = [decoder for batch in batches for decoder in batch.video]
    assert all(type(decoder) is AVDecoder for decoder in kept)
    del batches, loader
    gc.collect()
    files = open_files()
    for decoder in kept:
        try:
            data = decoder.get_video_clips([(0, 0)], video_unit="frames")
        except Exception as error:
            assert "pyav" in str(error)  # noqa: PT017 - a broken file among good ones
            continue
        assert data[0][0].shape[:2] == (1, 3)
        decoder.close()
    assert open_files() - files == set()
    blocks = mapped_blocks()
    del kept, decoder, data
    gc.collect()
    assert mapped_blocks() < blocks


def test_a_whole_file_and_the_bare_container() -> None:
    data = video_file("vp9-opus-webm")
    whole = SampleDecoder(av_decode="torch").decode("webm", data)
    assert type(whole) is AVData
    assert whole.video_clips[0].shape == (60, 3, 64, 96)
    assert list(whole.audio_clips) == []
    both = SampleDecoder(av_decode="torch", video_decode_audio=True).decode("webm", data)
    assert both.audio_clips[0].shape[0] == 2
    sound = SampleDecoder(av_decode="torch").decode("flac", audio_file("flac"))
    assert sound.audio_clips[0].shape == (2, 100_003)
    with SampleDecoder(av_decode="pyav").decode("webm", data) as container:
        assert sum(1 for _ in container.decode(video=0)) == 60
    with pytest.raises(ConfigError, match="cannot travel to the rank"):
        _ = DaliDecoder(av_decode="pyav", image_decode_device="cpu").placement
    guessing = SampleDecoder(guess_content=True)
    for content in (data, video_file("h264-mp4"), video_file("mjpeg-avi"), audio_file("mp3"), audio_file("opus-ogg")):
        assert type(guessing.decode("movie", content)) is AVDecoder
    assert type(guessing.decode("mp4", b"no video")) is AVDecoder  # the name alone says what it is
    handler = AVWebdatasetDecoder(False)
    assert all(type(handler(suffix, data)) is AVDecoder for suffix in AV_SUFFIXES), "one list for both"
