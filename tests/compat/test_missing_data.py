"""What Energon does where something is not there: an empty split part, a clip after the end, lines without an index."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import energon_dali
import energon_dali.compat
from energon_dali.shards.prepare.dataset import prepare_dataset
from energon_dali.shards.storage import StoragePath
from tests.av.corpus import VIDEOS, audio_file, video_file

CONFIG = energon_dali.WorkerConfig(rank=0, world_size=1, num_workers=0)
RANGES = [(0, 0.1), (500, 600), (0.1, 0.2)]
VIDEO = next(iter(VIDEOS))


def test_clips_after_the_end_are_left_out() -> None:
    from megatron.energon import AVDecoder

    with AVDecoder(video_file(VIDEO)) as decoder:
        clips, times = decoder.get_video_clips(RANGES)
        assert (len(clips), len(times)) == (2, 2)
        assert decoder.get_clips(RANGES[1:2]).video_clips == []
    with AVDecoder(video_file(VIDEO), missing="empty") as decoder:
        assert [len(clip) > 0 for clip in decoder.get_video_clips(RANGES)[0]] == [True, False, True]
    with AVDecoder(audio_file("flac")) as sound:
        assert len(sound.get_audio_clips(RANGES)[0]) == 2
    own = energon_dali.AVDecoder(video_file(VIDEO))
    assert isinstance(own, AVDecoder)
    with own, pytest.raises(energon_dali.DecodeError, match="500"):
        own.get_video_clips(RANGES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos in "train" and nothing in "val"."""
    folder = tmp_path_factory.mktemp("videos")
    with tarfile.open(folder / "a.tar", "w") as shard:
        for name, content in (("0.mp4", video_file(VIDEO)), ("0.txt", b"What moves?")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    prepare_dataset(StoragePath.of(folder), split_ratio={"train": 1, "val": 0}, num_workers=1)
    kind = {"__module__": "megatron.energon", "__class__": "VidQASample"}
    fields = {"video": "mp4", "context": "txt"}
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps({"sample_type": kind, "field_map": fields}))
    return folder


@pytest.mark.parametrize("options", [{}, {"av_options": {"missing": "empty"}}])
def test_a_sample_with_a_clip_after_the_end_is_kept(folder: Path, options: dict[str, Any]) -> None:
    from megatron.energon import AVDecoder, DefaultTaskEncoder, SampleDecoder, get_val_dataset

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc, type-arg]
        decoder = SampleDecoder(**options)

        def encode_sample(self, sample: Any) -> Any:
            assert isinstance(sample.video, AVDecoder)
            return {"__key__": sample.__key__, "clips": len(sample.video.get_clips(RANGES).video_clips)}

    encoder = Encoder()
    (sample,) = get_val_dataset(
        str(folder), split_part="train", worker_config=CONFIG, batch_size=None, task_encoder=encoder
    )
    assert sample["clips"] == (3 if options else 2)
    assert Encoder.decoder.av_options == options.get("av_options", {}), "the decoder of the program is not changed"


def test_an_empty_part_of_a_split_has_its_error_when_it_is_opened(folder: Path) -> None:
    from megatron.energon import get_train_dataset, get_val_dataset, get_val_datasets
    from megatron.energon.flavors.webdataset import EmptyDatasetError

    sizes = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    for function, more in ((get_val_dataset, {}), (get_val_datasets, {}), (get_train_dataset, sizes)):
        with pytest.raises(EmptyDatasetError, match="has no sample in the split part 'val'"):
            function(str(folder), split_part="val", worker_config=CONFIG, batch_size=1, **more)
    assert EmptyDatasetError is energon_dali.EmptyDatasetError


def test_the_factory_of_jsonl_files_indexes_them(tmp_path: Path) -> None:
    from megatron.energon import CrudeJsonlDatasetFactory, DefaultCrudeJsonlDatasetFactory

    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(3)))
    for factory in (CrudeJsonlDatasetFactory, DefaultCrudeJsonlDatasetFactory):
        assert factory.prepare_dataset(file) == 3
    made = CrudeJsonlDatasetFactory(file, training=False, worker_config=CONFIG)
    assert [sample["json"] for sample in made.build()] == [{"number": 0}, {"number": 1}, {"number": 2}]
