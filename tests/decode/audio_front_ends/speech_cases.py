"""The extractors and processors that are compared with front ends, with published and drawn configurations."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from tests.decode.front_ends.tile_cases import processor_class, tokenizer

Outcome = tuple[dict[str, Any], list[str] | None]
"""What a processor returns for a batch, and the text of each recording; None for models without audio in their text."""


@dataclass(frozen=True)
class SpeechCase:
    """A kind of extractor, or of processor around it, and how its results are compared."""

    name: str
    make: Callable[[random.Random | None], Any]
    """Returns an extractor or processor: with a published configuration, or with drawn values."""
    call: Callable[[Any, list[Any]], Outcome]
    """Calls it for a batch of waveforms."""
    least: int = 0
    """Shortest recordings, in samples; shorter ones are refused by it, or by the front end."""
    seconds: float = 4.0
    """Longest recordings."""
    tolerance: float = 1e-6
    """What values may differ by in batches of several: matrix products round differently by the number of columns, and
    a float32 sum of some hundred terms is off by a few units in its last place. Alone they are equal."""
    floor: float = 0.0
    """Deviation of noise that all recordings have. Extractors that normalise each band divide by its deviation: where
    a band is constant, that is the rounding of its mean, and values differ by as much as they are."""
    alone: str = ""
    """Key of a mask that the processor returns otherwise in a batch with longer recordings: compared one by one."""


def _extractor(module: str, name: str, **values: Any) -> Any:
    return getattr(import_module(f"transformers.models.{module}.feature_extraction_{module}"), name)(**values)


def whisper_values(draw: random.Random | None, *, mels: int = 128, pads: bool = True) -> dict[str, Any]:
    """Returns values of a WhisperFeatureExtractor."""
    if draw is None:
        return {"feature_size": mels}
    hop = draw.choice((80, 120, 160, 161, 200))
    return {
        "feature_size": draw.choice((40, 80, 128)),
        "hop_length": hop,
        "n_fft": draw.choice((400, 402, 512, 320)),
        "chunk_length": draw.choice((1, 2, 3)),
        "sampling_rate": draw.choice((16_000, 16_000, 22_050, 24_000)),
        **({"padding_value": draw.choice((0.0, 0.0, 0.05))} if pads else {}),
    }


def _whisper(draw: random.Random | None) -> Any:
    values = whisper_values(draw, mels=80)
    if draw is not None:
        values["return_attention_mask"] = draw.choice((True, False))
    return _extractor("whisper", "WhisperFeatureExtractor", **values)


def call_extractor(extractor: Any, waveforms: list[Any], **options: Any) -> Outcome:
    """Calls an extractor that has no text."""
    given = {"sampling_rate": extractor.sampling_rate, "return_tensors": "pt", **options}
    return dict(extractor(waveforms, **given)), None


def call_processor(processor: Any, waveforms: list[Any]) -> Outcome:
    """Calls the half of a processor that is for audio, with the options that it passes itself."""
    merged = processor._merge_kwargs(tokenizer_init_kwargs={}, return_tensors="pt")["audio_kwargs"]
    if hasattr(processor, "feature_extractor"):
        merged["sampling_rate"] = processor.feature_extractor.sampling_rate
    made, texts = processor._process_audio(waveforms, **merged)
    return {name: value for name, value in made.items() if name not in processor.unused_input_names}, texts


def _around(module: str, name: str, *, mels: int = 128, pads: bool = True, **named: str) -> Callable[..., Any]:
    """Returns a function that makes a processor of this class around a WhisperFeatureExtractor."""

    def make(draw: random.Random | None) -> Any:
        inner = _extractor("whisper", "WhisperFeatureExtractor", **whisper_values(draw, mels=mels, pads=pads))
        return processor_class(module, name)(feature_extractor=inner, tokenizer=tokenizer(**named))

    return make


OMNI_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}


def _windows(module: str, name: str, token: str) -> Callable[..., Any]:
    def make(draw: random.Random | None) -> Any:
        inner = _extractor("whisper", "WhisperFeatureExtractor", **whisper_values(draw))
        longest = {} if draw is None else {"max_audio_len": inner.chunk_length * draw.choice((1, 2, 3)) + 1}
        made = processor_class(module, name)
        return made(feature_extractor=inner, tokenizer=tokenizer(token), audio_token=token, **longest)

    return make


def _voxtral(draw: random.Random | None) -> Any:
    values = whisper_values(draw)
    if draw is not None:  # a whole number of frames for each chunk
        values |= {"hop_length": 160, "sampling_rate": 16_000}
    inner = _extractor("whisper", "WhisperFeatureExtractor", **values)
    words = tokenizer("[AUDIO]")
    words.convert_ids_to_tokens = lambda _: "[AUDIO]"
    return processor_class("voxtral", "VoxtralProcessor")(feature_extractor=inner, tokenizer=words)


def _call_voxtral(processor: Any, waveforms: list[Any]) -> Outcome:
    extractor = processor.feature_extractor
    options = {**type(processor).audio_kwargs, "sampling_rate": extractor.sampling_rate}
    options["pad_to_multiple_of"] = extractor.n_samples
    del options["max_source_positions"]
    features = processor._retrieve_input_features(waveforms, extractor.nb_max_frames, **options)
    # The number of tokens is that of mistral-common: one for every eight frames of the padded recording.
    chunks = [max(1, -(-len(waveform) // extractor.n_samples)) for waveform in waveforms]
    return {"input_features": features}, ["[AUDIO]" * (count * (extractor.nb_max_frames // 8)) for count in chunks]


def _realtime(draw: random.Random | None) -> Any:
    values: dict[str, Any] = {}
    if draw is not None:
        values = whisper_values(draw, pads=False)
        del values["chunk_length"]
        values["global_log_mel_max"] = draw.choice((1.5, 0.5, 3.0))
    return _extractor("voxtral_realtime", "VoxtralRealtimeFeatureExtractor", **values)


def _qwen3_asr(draw: random.Random | None) -> Any:
    values = {} if draw is None else {**whisper_values(draw, pads=False), "min_length": draw.choice((0, 3000, 8000))}
    inner = _extractor("qwen3_asr", "Qwen3ASRFeatureExtractor", **values)
    words = tokenizer(audio_token="<|audio_pad|>", audio_bos_token="<|audio_start|>", audio_eos_token="<|audio_end|>")
    return processor_class("qwen3_asr", "Qwen3ASRProcessor")(feature_extractor=inner, tokenizer=words)


def _dots(draw: random.Random | None) -> Any:
    values = {} if draw is None else {**whisper_values(draw), "chunk_length": draw.choice((1, 2))}
    return _extractor("dots3_note", "Dots3NoteFeatureExtractor", **values)


def _call_dots(extractor: Any, waveforms: list[Any]) -> Outcome:
    made, _ = call_extractor(extractor, waveforms)
    return made, ["<|audio_pad|>" * count for count in made.pop("num_audio_tokens").tolist()]


def _framed_values(draw: random.Random | None) -> dict[str, Any]:
    if draw is None:
        return {}
    n_fft, rate = draw.choice(((512, 16_000), (400, 16_000), (640, 16_000), (640, 24_000)))
    return {
        # So few that each band has a frequency: features of one without would be rounding alone.
        "feature_size": draw.choice((40, 64, 128 if n_fft > 512 and rate == 16_000 else 80)),
        "n_fft": n_fft,
        "win_length": draw.choice((400, 320, min(n_fft, 401))),
        "hop_length": draw.choice((160, 161, 200, 80)),
        "sampling_rate": rate,
    }


def _phi4(draw: random.Random | None) -> Any:
    values = _framed_values(draw)
    if draw is not None:
        values |= {
            "preemphasis": draw.choice((0.97, 0.9, 0.0)),
            "audio_compression_rate": draw.choice((8, 3)),
            "audio_downsample_rate": draw.choice((1, 2)),
        }
    return _extractor("phi4_multimodal", "Phi4MultimodalFeatureExtractor", **values)


def _call_phi4(extractor: Any, waveforms: list[Any]) -> Outcome:
    made, _ = call_extractor(extractor, waveforms)
    return made, ["<|endoftext11|>" * count for count in made["audio_embed_sizes"].tolist()]


def _nemo(module: str, name: str, **choices: Sequence[Any]) -> Callable[..., Any]:
    def make(draw: random.Random | None) -> Any:
        values = _framed_values(draw)
        if draw is not None:
            values |= {"preemphasis": draw.choice((0.97, 0.9, None))}
            values |= {key: draw.choice(several) for key, several in choices.items()}
        return _extractor(module, name, **values)

    return make


def _call_cohere(extractor: Any, waveforms: list[Any]) -> Outcome:
    return call_extractor(extractor, [waveform.copy() for waveform in waveforms])


def _lasr(draw: random.Random | None) -> Any:
    return _extractor("lasr", "LasrFeatureExtractor", **_framed_values(draw))


class MelSpectrogram:
    """What torchaudio's class of this name computes, for the tests of extractors that use it.

    https://docs.pytorch.org/audio/stable/generated/torchaudio.transforms.MelSpectrogram.html, with its defaults.
    """

    def __init__(self, sample_rate: int, n_fft: int, win_length: int, hop_length: int, n_mels: int) -> None:
        self.options = (n_fft, hop_length, win_length, torch.hann_window(win_length))
        frequencies = torch.linspace(0, sample_rate // 2, n_fft // 2 + 1)
        most = 2595.0 * np.log10(1.0 + sample_rate // 2 / 700.0)
        points = 700.0 * (10.0 ** (torch.linspace(0.0, float(most), n_mels + 2) / 2595.0) - 1.0)
        width = points[1:] - points[:-1]
        slopes = points.unsqueeze(0) - frequencies.unsqueeze(1)
        down, up = (-1.0 * slopes[:, :-2]) / width[:-1], slopes[:, 2:] / width[1:]
        self.bank = torch.max(torch.zeros(1), torch.min(down, up))

    def to(self, device: object) -> MelSpectrogram:
        """Returns itself, on the CPU."""
        return self

    def __call__(self, waveform: torch.Tensor) -> torch.Tensor:
        """Returns float32[recordings, bands, frames]."""
        spectra = torch.stft(waveform, *self.options, center=True, pad_mode="reflect", return_complex=True)
        return torch.matmul(spectra.abs().pow(2.0).transpose(-1, -2), self.bank).transpose(-1, -2)


def _granite(draw: random.Random | None) -> Any:
    values: dict[str, Any] = {}
    if draw is not None:
        values = _framed_values(draw)
        values["n_mels"] = values.pop("feature_size")
        values |= {
            "projector_window_size": draw.choice((15, 9)),
            "projector_downsample_rate": draw.choice((5, 3)),
        }
    module = import_module("transformers.models.granite_speech.feature_extraction_granite_speech")
    fake: Any = types.SimpleNamespace(transforms=types.SimpleNamespace(MelSpectrogram=MelSpectrogram))
    if "torchaudio" not in sys.modules:
        module.torchaudio, module.requires_backends = fake, lambda *_: None
    return module.GraniteSpeechFeatureExtractor(**values)


def _call_granite(extractor: Any, waveforms: list[Any]) -> Outcome:
    made = dict(extractor(waveforms))
    return made, ["<|audio|>" * count for count in made.pop("audio_embed_sizes")]


NORMALIZED = 1e-4
"""Logarithms up to 17 have a last place of 2e-6. A mean of them is off by some of these, and is divided by a deviation
that is above 0.1 where there is noise."""

CASES: tuple[SpeechCase, ...] = (
    SpeechCase("whisper", _whisper, call_extractor),
    SpeechCase(
        "qwen2_audio",
        _around(
            "qwen2_audio",
            "Qwen2AudioProcessor",
            audio_token="<|AUDIO|>",
            audio_bos_token="<|audio_bos|>",
            audio_eos_token="<|audio_eos|>",
        ),
        call_processor,
        seconds=5.0,
    ),
    SpeechCase("qwen2_5_omni", _around("qwen2_5_omni", "Qwen2_5OmniProcessor", **OMNI_TOKENS), call_processor),
    SpeechCase(
        "qwen3_omni",
        _around("qwen3_omni_moe", "Qwen3OmniMoeProcessor", pads=False, **OMNI_TOKENS),
        call_processor,
        least=300,
        alone="feature_attention_mask",
    ),
    SpeechCase(
        "audio_flamingo3", _windows("audioflamingo3", "AudioFlamingo3Processor", "<sound>"), call_processor, seconds=8.0
    ),
    SpeechCase("glm_asr", _windows("glmasr", "GlmAsrProcessor", "<|pad|>"), call_processor, seconds=8.0),
    SpeechCase("voxtral", _voxtral, _call_voxtral, least=1, seconds=8.0),
    SpeechCase("voxtral_realtime", _realtime, call_extractor, least=300),
    SpeechCase("qwen3_asr", _qwen3_asr, call_processor, least=300, alone="input_features_mask"),
    SpeechCase("dots3_note", _dots, _call_dots, least=1),
    SpeechCase("phi4_multimodal", _phi4, _call_phi4, least=402, tolerance=2e-5),
    SpeechCase("granite_speech", _granite, _call_granite, least=330),
    SpeechCase(
        "parakeet",
        _nemo("parakeet", "ParakeetFeatureExtractor"),
        call_extractor,
        least=1300,
        tolerance=NORMALIZED,
        floor=1e-3,
    ),
    SpeechCase(
        "nemotron_asr",
        _nemo(
            "nemotron_asr_streaming",
            "NemotronAsrStreamingFeatureExtractor",
            mel_filters_dtype=("float32", "bfloat16"),
        ),
        call_extractor,
        least=200,
        tolerance=2e-5,
    ),
    SpeechCase(
        "cohere_asr",
        _nemo("cohere_asr", "CohereAsrFeatureExtractor", dither=(1e-5, 0.0, 1e-3)),
        _call_cohere,
        least=1300,
        tolerance=NORMALIZED,
        floor=1e-3,
    ),
    SpeechCase(
        "lasr",
        _lasr,
        lambda extractor, waveforms: call_extractor(extractor, waveforms, return_attention_mask=True),
        least=402,
        tolerance=2e-6,
    ),
)
