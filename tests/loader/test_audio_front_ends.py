"""Recordings with an audio front end in loaders: seen by hooks before decoding, packed, resumed, read in part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import (
    Cooker,
    DaliDecoder,
    DefaultTaskEncoder,
    MediaHandle,
    PlannedPacks,
    SampleDecoder,
    WorkerConfig,
    basic_sample_keys,
    batch_audio,
    count_tokens,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    measure_datasets,
    plan_steps,
    stateless,
)
from energon_dali.av.media_indexing import MediaIndexer
from energon_dali.decode.audio_front_ends.speech_llm import Qwen3Omni
from energon_dali.decode.media_filter import MediaFilter
from energon_dali.shards import prepare_dataset, shard_reader
from energon_dali.shards.prepare.media_tables import add_media_metadata
from tests.assembly.test_measuring import opened
from tests.av.corpus import AudioRecipe, encode_audio
from tests.loader.dataset_folder import write_shards
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

SAMPLES = 8
BROKEN = "s3"
FRONT_END = Qwen3Omni(num_mels=40, audio_token_id=7)
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
DECODERS: dict[str, Any] = {"pil": SampleDecoder, "dali": DaliDecoder}
CPU = {"image_decode_device": "cpu", "video_decode_device": "cpu"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tone(samples: int, codec: str = "pcm_s16le", container: str = "wav") -> bytes:
    rate = 48_000 if codec == "libopus" else 16_000
    return encode_audio(AudioRecipe(codec, container, "s16", layout="mono", rate=rate, samples=samples))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples with two recordings and the name of a third in a store; the recordings of one sample are damaged."""
    root = tmp_path_factory.mktemp("audio")
    stored = {f"r{number}": {"ogg": tone(30_000 + 900 * number, "libopus", "ogg")} for number in range(SAMPLES)}
    prepare_dataset(str(write_shards(root / "store", stored, 1)), split_ratio={"train": 1.0})
    samples: dict[str, dict[str, bytes]] = {}
    for number in range(SAMPLES):
        flac = tone(5000 + 700 * number, "flac", "flac")
        samples[f"s{number}"] = {
            "a.wav": tone(4000 + 500 * number),
            "b.flac": flac[:60] + bytes(len(flac) - 60) if f"s{number}" == BROKEN else flac,
            "json": json.dumps({"n": number, "file": f"r{number}.ogg"}).encode(),
        }
    prepare_dataset(str(write_shards(root / "samples", samples, 2)), split_ratio={"train": 1.0})
    (root / "samples" / ".nv-meta" / "dataset.yaml").write_text(json.dumps(CRUDE))
    entry = {"path": "samples", "aux": {"store": "store"}}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": entry}}
    (root / "mix.yaml").write_text(json.dumps(document))
    return root


@stateless
def cook(sample: dict[str, Any], store: Any) -> dict[str, Any]:
    audio = [sample["a.wav"], sample["b.flac"], store.get(sample["json"]["file"], sample)]
    return {**basic_sample_keys(sample), "audio": audio, "number": sample["json"]["n"]}


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Notes before decoding how many tokens a sample has, and makes a batch of all its recordings."""

    cookers = (Cooker(cook),)

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    @stateless
    def preencode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        audio = [one.get() if hasattr(one, "get") else one for one in sample["audio"]]
        assert all(isinstance(handle, MediaHandle) for handle in audio)
        sample["audio"], sample["planned"] = audio, [handle.num_tokens for handle in audio]
        sample["tokens"] = np.array([1, 7, 7, 7, 2])
        sample["length"] = count_tokens({"tokens": sample["tokens"], "audio": audio})
        return sample

    @stateless
    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        for sample in samples:
            assert [audio.num_tokens for audio in sample["audio"]] == sample["planned"]
            assert sample["length"] == 2 + sum(sample["planned"])
        made = batch_audio([sample["audio"] for sample in samples])
        return {"keys": [sample["__key__"] for sample in samples], **made}


def loader(folder: Path, decoder: Any, *, workers: int = 0, batch_size: int = 2, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=2, global_error_handler=quiet)
    dataset = get_train_dataset(
        folder / "mix.yaml",
        task_encoder=Encoder(decoder),
        worker_config=config,
        batch_size=batch_size,
        shuffle_buffer_size=4,
        max_samples_per_sequence=None,
    )
    return get_savable_loader(dataset, **options)


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [batch["keys"] for batch in found] == [batch["keys"] for batch in expected]
    for one, other in zip(found, expected, strict=True):
        for name, value in one.items():
            assert not isinstance(value, torch.Tensor) or torch.equal(value, other[name]), name


def take(batches: Any, count: int = 5) -> list[dict[str, Any]]:
    return [batch for batch, _ in zip(batches, range(count), strict=False)]


def test_decoders_and_processes_give_the_same_batches(folder: Path) -> None:
    with loader(folder, SampleDecoder(audio_front_end=FRONT_END)) as batches:
        expected = take(batches)
        failures = batches.stats().failures
    assert {key for batch in expected for key in batch["keys"]} == {f"s{n}" for n in range(SAMPLES)} - {BROKEN}
    assert {failure["key"] for failure in failures} == {BROKEN}
    assert expected[0]["input_features"].shape[:2] == (6, 40)
    decoder = DaliDecoder(audio_front_end=FRONT_END, **CPU)  # type: ignore[arg-type]
    with loader(folder, decoder, workers=1, decode_process=True) as batches:
        assert_same(take(batches), expected)


@pytest.mark.parametrize("name", DECODERS)
def test_random_segments_continue_from_a_state(folder: Path, name: str) -> None:
    options = {} if name == "pil" else CPU
    decoder = DECODERS[name](audio_front_end=FRONT_END, audio_segments="random", audio_seconds=0.2, **options)
    with loader(folder, decoder) as first:
        batches = iter(first)
        next(batches)
        state = first.save_state_rank()
        expected = take(batches, 3)
    with loader(folder, decoder) as second:
        second.restore_state_rank(state)
        assert_same(take(second, 3), expected)
    assert expected[0]["feature_attention_mask"].sum(1).tolist() == [20] * 6


@stateless
def cook_one(sample: dict[str, Any]) -> dict[str, Any]:
    return {**basic_sample_keys(sample), "audio": sample["a.wav"]}


class Packed(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs recordings after a text of two tokens; keeps the segments that fit."""

    cookers = (Cooker(cook_one),)

    @stateless
    def preencode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "tokens": np.array([1, *[7] * len(as_list(sample["audio"])), 2])}

    @stateless
    def cut_sample(self, sample: dict[str, Any], length: int) -> dict[str, Any]:
        while count_tokens(sample) > length:
            sample["audio"].pop()
            sample["tokens"] = np.array([1, *[7] * len(sample["audio"]), 2])
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        audio = [one for sample in samples for one in as_list(sample["audio"])]
        return {
            "__key__": samples[0]["__key__"],
            "__restore_key__": (),
            "keys": [sample["__key__"] for sample in samples],
            "length": sum(count_tokens(sample) for sample in samples),
            **batch_audio(audio),
        }

    @stateless
    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return samples[0]


def as_list(audio: Any) -> list[Any]:
    return audio if isinstance(audio, list) else [audio]


def test_measures_count_the_tokens_of_recordings(folder: Path) -> None:
    encoder = Packed()
    encoder.decoder = SampleDecoder(audio_front_end=FRONT_END)
    (result,) = measure_datasets(str(folder / "samples"), encoder)
    assert result.num_measured == SAMPLES - 1  # a damaged recording of the sample fails it
    (found,) = opened(folder / "samples", encoder)()
    tokens = found.take("vision_tokens", np.arange(SAMPLES)).tolist()
    assert tokens == [
        -1 if f"s{number}" == BROKEN else FRONT_END.layout(4000 + 500 * number).num_tokens for number in range(SAMPLES)
    ]
    assert found.take("text_tokens", np.arange(SAMPLES)).tolist() == [-1 if token < 0 else 2 for token in tokens]


@pytest.mark.parametrize(("segments", "most"), [("first", 20), ("all", 6)])
def test_packs_are_planned_by_the_tokens_of_recordings(folder: Path, segments: Any, most: int) -> None:
    encoder = Packed()
    seconds = 0.1 if segments == "all" else None
    encoder.decoder = SampleDecoder(audio_front_end=FRONT_END, audio_segments=segments, audio_seconds=seconds)
    measure_datasets(str(folder / "samples"), encoder)
    with pytest.warns(UserWarning, match="1 could not be measured"):
        dataset = get_train_dataset(
            folder / "samples",
            task_encoder=encoder,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=quiet),
            global_batch_size=1,
            batch_size=1,
            packs=PlannedPacks(most, window=SAMPLES),
            shuffle_buffer_size=None,
        )
    with get_savable_loader(dataset) as batches:
        packs = take(batches, 3)
    lengths = [pack["length"] for pack in packs]
    assert max(lengths) <= most
    assert min(lengths) > most // 2
    assert all(len(pack["keys"]) > 1 for pack in packs) == (segments == "first")


def long_files(folder: Path) -> Path:
    """Writes a dataset of one long recording in several formats, with a media index."""
    parts = {"wav": tone(160_000), "flac": tone(160_000, "flac", "flac"), "ogg": tone(480_000, "libopus", "ogg")}
    write_shards(folder, {f"s{number}": {suffix: file} for number, (suffix, file) in enumerate(parts.items())}, 1)
    prepare_dataset(str(folder), split_ratio={"train": 1.0})
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(CRUDE))
    add_media_metadata(str(folder), MediaFilter("EXTENSION"), index_media=MediaIndexer())
    return folder


def test_a_plan_knows_the_tokens_of_recordings(tmp_path: Path) -> None:
    class Audio(Packed):
        cookers = (Cooker(stateless(lambda sample: {**basic_sample_keys(sample), **sample})),)
        decoder = SampleDecoder(audio_front_end=FRONT_END)

    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    tree = get_val_dataset(
        str(long_files(tmp_path / "long")), split_part="train", worker_config=config, task_encoder=Audio()
    )
    (wav, flac, _) = (step.samples[0].num_tokens for step in plan_steps(tree, range(3)))
    assert wav == flac == FRONT_END.layout(160_000).num_tokens


def test_only_the_packets_of_a_segment_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_reader, "FEWEST_RANGED_BYTES", 1)
    root = long_files(tmp_path / "long")

    class Segments(DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (
            Cooker(
                stateless(
                    lambda sample: {
                        **basic_sample_keys(sample),
                        "audio": next(sample[name] for name in ("wav", "flac", "ogg") if name in sample),
                    }
                )
            ),
        )
        decoder = SampleDecoder(audio_front_end=FRONT_END, audio_segments="random", audio_seconds=0.5)

        @stateless
        def batch(self, samples: list[Any]) -> Any:
            return samples[0]

    def read(*, whole: bool) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if whole:
                patch.setattr("energon_dali.assembly.opened_source.media_chooser", lambda folder, decoder: None)
            dataset = get_train_dataset(
                str(root),
                task_encoder=Segments(),
                worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
                batch_size=1,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
            )
            with get_savable_loader(dataset) as batches:
                return take(batches, 3), batches.stats().counts

    (found, ranged), (expected, full) = read(whole=False), read(whole=True)
    for one, other in zip(found, expected, strict=True):
        assert one["__key__"] == other["__key__"]
        assert torch.equal(one["audio"].features, other["audio"].features)
    assert 0 < ranged["bytes.read"] < full["bytes.read"] / 2
    assert "media.bytes_on_demand" not in ranged
