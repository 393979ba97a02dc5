"""One value per option of a decoder that is not its default, for tests that no option is lost."""

from __future__ import annotations

from typing import Any

from energon_dali import AudioFrontEnd, AVLimits, DaliTuning, FrontEnd, Resize, VideoClips

EVERY_OPTION: dict[str, Any] = {
    "image_decode": "torchrgb8",
    "av_decode": VideoClips(1, 8),
    "av_limits": AVLimits(max_frames=3),
    "av_options": {"missing": "empty"},
    "av_lazy": True,
    "video_decode_audio": True,
    "guess_content": True,
    "operations": (Resize((8, 8)),),
    "image_dtype": "bfloat16",
    "image_layout": "HWC",
    "apply_exif_orientation": True,
    "max_pixels": 999,
    "max_bytes": 99_999,
    "front_end": FrontEnd.from_processor({"image_processor_type": "SiglipImageProcessor"}),
    "decode_scale": "fast",
    "audio_front_end": AudioFrontEnd.from_processor({"feature_extractor_type": "WhisperFeatureExtractor"}),
    "audio_segments": "all",
    "audio_seconds": 5.0,
    "audio_of_videos": True,
}
"""By name of `DecoderOptions`: a test that iterates over those fails for one that is missing here."""
EVERY_DALI_OPTION: dict[str, Any] = {
    "image_decode_device": "cpu",
    "video_decode_device": "cpu",
    "num_threads": 3,
    "max_batch_size": 5,
    "feed": "native",
    "gpu_memory_budget_bytes": 1 << 30,
    "tuning": DaliTuning(hw_decoder_load=0.5),
}
"""Those that only DaliDecoder has."""


def given_options(name: str) -> dict[str, Any]:
    """Returns an option with a value that is not its default, and those without which it is refused.

    Args:
        name: One of `DecoderOptions` or of `EVERY_DALI_OPTION`.
    """
    values = {**EVERY_OPTION, **EVERY_DALI_OPTION}
    needed = ("audio_front_end",) if name.startswith("audio_") else ()
    return {one: values[one] for one in (*needed, name)}
