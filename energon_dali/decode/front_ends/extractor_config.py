"""The configuration of a Hugging Face feature extractor for audio, from which audio front ends take their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from energon_dali.decode.front_ends.processor_config import ProcessorConfig

_IMAGE_KEYS = frozenset(
    {
        "crop_size",
        "image_mean",
        "image_std",
        "max_frames",
        "max_pixels",
        "merge_size",
        "min_frames",
        "min_pixels",
        "pad_size",
        "patch_size",
        "resample",
        "rescale_factor",
        "size",
        "temporal_patch_size",
    }
)
"""Keys of image processors, which models with images (Qwen-Omni) have in the same file."""
_IMAGE_FLAGS = ("do_center_crop", "do_convert_rgb", "do_normalize", "do_pad", "do_rescale", "do_resize")


class ExtractorConfig(ProcessorConfig):
    """The values of a feature extractor. A family takes what it understands; `finish` refuses what is left.

    Attributes:
        type_name: Name of the extractor's class, such as "WhisperFeatureExtractor".
        outer: Values of the processor around it, such as audio_token, and its class as processor_class.
        mel_filters: Those of the extractor, if that was given as an object and has them as an array; else None.
    """

    mel_filters: Any = None

    type_key: ClassVar[str] = "feature_extractor_type"
    effect: ClassVar[str] = "features"
    decoded_media: ClassVar[str] = "audio"
    other_media: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, values: Mapping[str, Any], **options: Any) -> None:
        if values.get("image_processor_type") is not None:  # one file for images and audio
            values = {name: value for name, value in values.items() if name not in {*_IMAGE_KEYS, *_IMAGE_FLAGS}}
        super().__init__(values, **options)

    @staticmethod
    def _class_name(values: Mapping[str, Any]) -> str:
        given = values.get("feature_extractor_type") or values.get("audio_processor_type")
        return given if isinstance(given, str) else ""


def take_sampling_rate(config: ProcessorConfig, default: int = 16_000) -> int:
    """Returns an extractor's sampling_rate in Hz.

    Args:
        config: Of the extractor.
        default: If the configuration does not have it.

    Raises:
        ConfigError: It is not a whole number within its range.
    """
    return config.take_integer("sampling_rate", default, least=1000, most=384_000)


def take_windows(config: ProcessorConfig, num_mels: int) -> dict[str, Any]:
    """Returns the fields of an extractor whose windows may be shorter than its Fourier transform.

    Args:
        config: Of the extractor.
        num_mels: Mel bins, if the configuration does not say.

    Raises:
        ConfigError: A value is invalid, or recordings are not padded with silence at their end.
    """
    config.require("padding_side", "right", "features of recordings padded at their start")
    config.require("padding_value", 0.0, "the end of recordings in a batch")
    return {
        "sampling_rate": take_sampling_rate(config),
        "num_mels": config.take_integer("feature_size", num_mels, most=1024),
        "n_fft": config.take_integer("n_fft", 512, most=1 << 16),
        "win_length": config.take_integer("win_length", 400, most=1 << 16),
        "hop_length": config.take_integer("hop_length", 160, most=1 << 16),
    }
