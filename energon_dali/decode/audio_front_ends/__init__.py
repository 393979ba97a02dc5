"""Front ends of models that take audio: the output of a feature extractor, declared and computed by the decoder."""

from energon_dali.decode.audio_front_ends.audio_batch import batch_audio
from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout

__all__ = ["AudioFrontEnd", "AudioInput", "AudioLayout", "batch_audio"]
