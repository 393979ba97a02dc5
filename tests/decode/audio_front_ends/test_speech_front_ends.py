"""Front ends of speech models make what their processors make, and say so before anything is decoded."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank
from typing_extensions import Self

from energon_dali import AudioFrontEnd, AudioInput, ConfigError, DecodeError, batch_audio, register_front_end
from energon_dali.decode.audio_front_ends import AudioLayout, registry, spectrogram
from energon_dali.decode.audio_front_ends.nemo import Parakeet
from energon_dali.decode.audio_front_ends.speech_llm import Qwen3Omni
from energon_dali.decode.audio_front_ends.whisper import Whisper
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from tests.decode.audio_front_ends.speech_cases import CASES, OMNI_TOKENS, SpeechCase
from tests.decode.audio_front_ends.speech_comparison import compare_case
from tests.decode.audio_front_ends.speech_recordings import speech
from tests.decode.front_ends.tile_cases import processor_class, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:At least one mel filter has all zero values")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_front_ends_equal_processors(case: SpeechCase) -> None:
    tally = compare_case(case, 3, configurations=3, batches=1, most=3)

    assert tally.differences == []
    assert tally.alone == tally.recordings >= 3


def test_omni_counts_are_those_of_the_processor() -> None:
    inner = WhisperFeatureExtractor(feature_size=128)
    for module, name in (("qwen2_5_omni", "Qwen2_5OmniProcessor"), ("qwen3_omni_moe", "Qwen3OmniMoeProcessor")):
        processor = processor_class(module, name)(feature_extractor=inner, tokenizer=tokenizer(**OMNI_TOKENS))
        front_end = AudioFrontEnd.from_processor(processor)
        lengths = [201, 1599, 1600, 1601, 15_999, 16_000, 100_000, 479_999, 480_000, 480_001, 1_000_000]
        expected = processor._get_num_multimodal_tokens(audio_lengths=lengths)["num_audio_tokens"]
        assert [front_end.layout(length).num_tokens for length in lengths] == expected
        assert front_end.audio_token_id == processor.audio_token_id


@pytest.mark.parametrize(
    ("count", "bands", "rate", "options", "theirs"),
    [
        (201, 80, 16_000, {"high_hz": 8000.0}, (0.0, 8000.0, "slaney", "slaney", False)),
        (
            257,
            80,
            16_000,
            {"high_hz": 7690.0, "scale": "kaldi", "area": False, "in_mels": True},
            (0.0, 7690.0, None, "kaldi", True),
        ),
        (
            257,
            40,
            16_000,
            {"low_hz": 125.0, "high_hz": 7600.0, "scale": "htk"},
            (125.0, 7600.0, "slaney", "htk", False),
        ),
    ],
    ids=["whisper", "kaldi", "htk"],
)
def test_mel_filters_equal_those_of_transformers(
    count: int, bands: int, rate: int, options: dict[str, Any], theirs: tuple[Any, ...]
) -> None:
    low, high, norm, scale, in_mels = theirs
    for dtype in ("float64", "float32"):
        made = spectrogram.mel_filters(count, bands, rate, dtype=dtype, **options)
        expected = mel_filter_bank(
            count, bands, low, high, rate, norm, scale, triangularize_in_mel_space=in_mels, dtype=dtype
        )
        assert made.dtype == expected.dtype
        assert np.array_equal(made, expected)


def test_dtypes_round_the_values() -> None:
    plain = Whisper(chunk_seconds=2).render(speech(16_000)[:20_000])
    for dtype in ("bfloat16", "float16"):
        made = Whisper(chunk_seconds=2, dtype=dtype).render(speech(16_000)[:20_000])
        assert torch.equal(made.values, plain.values.to(getattr(torch, dtype)))
        assert batch_audio([made])["input_features"].dtype == made.values.dtype


def test_layouts_follow_from_durations() -> None:
    front_end = Qwen3Omni()
    for samples in (480, 16_000, 16_001, 123_457):
        assert front_end.layout_of(samples / 16_000) == front_end.layout(samples)
    for seconds in (-1, "12", math.inf, math.nan, None):
        with pytest.raises(ConfigError, match=r"duration_seconds.* give a finite number of at least 0"):
            front_end.layout_of(seconds)  # type: ignore[arg-type]
    assert front_end.samples_of(1 / 3) == 5333
    assert Whisper().max_seconds == 30.0
    assert Whisper().layout(10**9).kept_samples == 480_000
    assert front_end.max_seconds is None


def test_segments_follow_from_the_length() -> None:
    assert Whisper().segments(1_000_000) == [(0, 480_000), (480_000, 960_000), (960_000, 1_000_000)]
    assert Whisper().segments(480_000) == [(0, 480_000)]
    assert Whisper().segments(0) == [(0, 0)]
    # A rest that the extractor refuses is left out.
    assert Qwen3Omni().segments(32_100, 16_000) == [(0, 16_000), (16_000, 32_000)]
    with pytest.raises(ConfigError, match="takes recordings of any length"):
        Qwen3Omni().segments(32_100)
    with pytest.raises(DecodeError, match="100 samples"):
        Qwen3Omni().segments(100, 16_000)


def test_too_short_recordings_are_refused() -> None:
    for front_end, samples in ((Qwen3Omni(), 200), (Parakeet(), 319)):
        with pytest.raises(DecodeError, match=f"{samples} samples"):
            front_end.render(np.zeros(samples, np.float32))
    assert Whisper().render(np.zeros(0, np.float32)).values.shape == (80, 3000)  # as the extractor: silence


def test_waveforms_are_checked() -> None:
    with pytest.raises(ConfigError, match="Divide integers"):
        Whisper().render(np.zeros(100, np.int16))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2 channels, and takes 1"):
        Whisper().render(np.zeros((2, 100), np.float32))
    with pytest.raises(ConfigError, match="was given 100 samples, and the layout of a recording of 99"):
        Whisper().render(np.zeros(100, np.float32), Whisper().layout(99))
    assert torch.equal(
        Whisper(chunk_seconds=1).render(speech(16_000)[None, :9000]).values,
        Whisper(chunk_seconds=1).render(speech(16_000)[:9000]).values,
    )


def test_batches_are_checked() -> None:
    one = Whisper(chunk_seconds=1).render(speech(16_000)[:9000])
    assert batch_audio([]) == {}
    assert batch_audio([[one], [], [one]])["input_features"].shape == (2, 80, 100)
    with pytest.raises(ConfigError, match="was given a Tensor"):
        batch_audio([torch.zeros(3)])
    with pytest.raises(ConfigError, match="different front ends"):
        batch_audio([one, Whisper(chunk_seconds=2).render(speech(16_000)[:9000])])
    omni = Qwen3Omni().render(speech(16_000)[:9000])
    assert list(batch_audio([omni], for_model=True)) == ["input_features", "feature_attention_mask"]


def test_texts_need_a_placeholder_for_each_recording() -> None:
    front_end = Qwen3Omni()
    layouts = [front_end.layout(16_000), front_end.layout(1600)]
    token = front_end.audio_token
    assert front_end.expand_text(f"{token} and {token}", layouts) == f"{token * 13} and {token * 2}"
    with pytest.raises(ConfigError, match="there are 2 audio parts"):
        front_end.expand_text(token, layouts)
    with pytest.raises(ConfigError, match="has no audio in it"):
        Whisper().expand_text("a", [])


def test_an_unknown_extractor_names_the_nearest_family(tmp_path: Path) -> None:
    values = {**WhisperFeatureExtractor().to_dict(), "feature_extractor_type": "WhisperTurboFeatureExtractor"}
    with pytest.raises(ConfigError, match="most like those of WhisperFeatureExtractor, which reads chunk_length"):
        AudioFrontEnd.from_processor(values)
    with pytest.raises(ConfigError, match=r'say so: from_processor\({\*\*values, "feature_extractor_type"'):
        AudioFrontEnd.from_processor(values)
    with pytest.raises(ConfigError, match="does not name its feature extractor"):
        AudioFrontEnd.from_processor({"image_processor_type": "ViTImageProcessor"})
    with pytest.raises(ConfigError, match="int is not a feature extractor"):
        AudioFrontEnd.from_processor(80)
    with pytest.raises(ConfigError, match=r"none of preprocessor_config\.json"):
        AudioFrontEnd.from_processor(tmp_path)


def test_values_that_would_change_features_are_refused() -> None:
    plain = WhisperFeatureExtractor().to_dict()
    for name, value in {"dither": 0.1, "padding_side": "left", "fmax": 4000, "hop_length": 0, "n_fft": 401}.items():
        with pytest.raises(ConfigError, match=name):
            AudioFrontEnd.from_processor({**plain, name: value})
    with pytest.raises(ConfigError, match="no such field"):
        AudioFrontEnd.from_processor(plain, size=3)
    with pytest.raises(ConfigError, match="dtype"):
        AudioFrontEnd.from_processor(plain, dtype="int8")  # type: ignore[arg-type]


def test_one_file_may_hold_images_and_audio(tmp_path: Path) -> None:
    values = {**WhisperFeatureExtractor(feature_size=128).to_dict(), "image_processor_type": "Qwen2VLImageProcessor"}
    values |= {"min_pixels": 3136, "patch_size": 14, "image_mean": [0.5] * 3, "processor_class": "Qwen2_5OmniProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    front_end = AudioFrontEnd.from_processor(tmp_path, dtype="bfloat16")
    assert (front_end.family, front_end.dtype) == ("qwen2_audio", "bfloat16")
    assert pickle.loads(pickle.dumps(front_end)) == front_end
    assert front_end.config()["num_mels"] == 128


def test_the_bands_of_phi_4_that_it_does_not_keep_are_noticed() -> None:
    from transformers.models.phi4_multimodal.feature_extraction_phi4_multimodal import Phi4MultimodalFeatureExtractor

    changed = Phi4MultimodalFeatureExtractor(mel_min_frequency=60)
    with pytest.raises(ConfigError, match="mel_filters are not those from 0 to 7,690 Hz"):
        AudioFrontEnd.from_processor(changed)
    values = {**changed.to_dict(), "mel_min_frequency": 60}
    found = batch_audio([AudioFrontEnd.from_processor(values).render(speech(16_000))])
    expected = changed(speech(16_000), sampling_rate=16_000, return_tensors="pt")
    assert torch.equal(found["audio_input_features"], expected["audio_input_features"])


def test_a_front_end_of_ones_own_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "registered_audio", [])

    @register_front_end
    @dataclass(frozen=True, kw_only=True)
    class Samples(AudioFrontEnd):
        family: ClassVar[str] = "samples"
        processors: ClassVar[tuple[str, ...]] = ("SamplesFeatureExtractor",)
        model_keys: ClassVar[tuple[str, ...]] = ("samples",)

        @classmethod
        def from_config(cls, config: ProcessorConfig) -> Self:
            return cls(sampling_rate=config.take_integer("sampling_rate", 8000))

        def layout(self, num_samples: int) -> AudioLayout:
            return AudioLayout(num_samples, num_samples, num_samples, num_samples)

        def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
            return samples

        def collate(self, samples: Any) -> dict[str, Any]:
            return {"samples": [audio.values for sample in samples for audio in sample]}

    front_end = AudioFrontEnd.from_processor(
        {"feature_extractor_type": "SamplesFeatureExtractor", "sampling_rate": 9000}
    )
    assert front_end == Samples(sampling_rate=9000)
    assert isinstance(front_end.render(np.ones(4, np.float32)), AudioInput)
    with pytest.raises(ConfigError, match="Whisper covers already"):
        register_front_end(type("Twice", (Samples,), {"processors": ("WhisperFeatureExtractor",)}))
