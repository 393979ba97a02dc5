"""The families of audio front ends, and the choice of one for a feature extractor."""

from __future__ import annotations

from typing import Any, TypeVar

from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, FeatureDtype
from energon_dali.decode.audio_front_ends.clap import Clap
from energon_dali.decode.audio_front_ends.codecs import (
    Dac,
    Dia,
    Encodec,
    Gemma4Unified,
    KyutaiSpeechToText,
    MuseSpark,
    PeAudio,
    VibeVoice,
)
from energon_dali.decode.audio_front_ends.granite_speech import GraniteSpeech
from energon_dali.decode.audio_front_ends.kaldi_features import AudioSpectrogramTransformer, SeamlessM4T, Speech2Text
from energon_dali.decode.audio_front_ends.kaldi_frames import Lasr, Phi4MultimodalAudio
from energon_dali.decode.audio_front_ends.nemo import CohereAsr, NemotronAsr, Parakeet
from energon_dali.decode.audio_front_ends.speech_llm import AudioFlamingo3, GlmAsr, Qwen2Audio, Qwen3Omni, Voxtral
from energon_dali.decode.audio_front_ends.usm import Gemma3n, Gemma4
from energon_dali.decode.audio_front_ends.vocoders import Clvp, SpeechT5Target, UnivNet
from energon_dali.decode.audio_front_ends.wav2vec2 import SpeechT5, Wav2Vec2
from energon_dali.decode.audio_front_ends.whisper import Whisper
from energon_dali.decode.audio_front_ends.whisper_relatives import Dots3Note, Qwen3Asr, VoxtralRealtime
from energon_dali.decode.front_ends.nearest_family import describe_nearest_family
from energon_dali.decode.front_ends.registry import choose_family, read_processor
from energon_dali.errors import ConfigError

Made = TypeVar("Made", bound=AudioFrontEnd)

AUDIO_FAMILIES: tuple[type[AudioFrontEnd], ...] = (
    Whisper,
    Qwen2Audio,
    Qwen3Omni,
    AudioFlamingo3,
    GlmAsr,
    Voxtral,
    Gemma3n,
    Gemma4,
    Gemma4Unified,
    Wav2Vec2,
    SeamlessM4T,
    Clap,
    AudioSpectrogramTransformer,
    Speech2Text,
    SpeechT5,
    SpeechT5Target,
    Encodec,
    KyutaiSpeechToText,
    Dac,
    Dia,
    PeAudio,
    MuseSpark,
    VibeVoice,
    UnivNet,
    Clvp,
    VoxtralRealtime,
    Qwen3Asr,
    Dots3Note,
    Phi4MultimodalAudio,
    GraniteSpeech,
    Parakeet,
    NemotronAsr,
    CohereAsr,
    Lasr,
)

registered_audio: list[type[AudioFrontEnd]] = []
"""What `register_front_end` added, in its order; tried after those above."""


def make_audio_front_end(kind: type[Made], processor: object, dtype: FeatureDtype, fields: dict[str, Any]) -> Made:
    """Returns the front end for a feature extractor; see `AudioFrontEnd.from_processor`.

    Raises:
        ConfigError: No family covers the extractor, or one of its values.
    """
    config = read_processor(processor, "audio")
    families = [family for family in (*AUDIO_FAMILIES, *registered_audio) if issubclass(family, kind)]
    family = choose_family(families, config)
    if family is not None:
        front_end = family.from_config(config)
        config.finish(family.unused_keys)
        known = {} if config.audio_token_id is None else {"audio_token_id": config.audio_token_id}
        return front_end.with_fields(dtype=dtype, **{**known, **fields})
    covered = ", ".join(sorted({name for family in families for name in family.processors}))
    if not config.type_name:
        raise ConfigError(
            "There is no audio front end for a processor that does not name its feature extractor: its file has no "
            f"feature_extractor_type. Give the processor that transformers makes of it, or add it. Covered are "
            f"{covered}."
        )
    raise ConfigError(
        f"There is no audio front end for {config.type_name}. {describe_nearest_family(families, config)}Covered are "
        f"{covered}. Run this extractor in encode_sample on decoded audio, or add a front end of your own: "
        "register_front_end (docs/audio.md)."
    )
