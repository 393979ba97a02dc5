"""Decoders, and what they use: image operations, specs, media handles, outcomes, header screening."""

from __future__ import annotations

from energon_dali.decode.clips import ClipAudio, ClipsHandle, LogMel, VideoClips
from energon_dali.decode.dali.decoder import DaliDecoder
from energon_dali.decode.formats import ImageHeader
from energon_dali.decode.front_ends import FrontEnd, VisionInput, batch_vision
from energon_dali.decode.images import screen_image
from energon_dali.decode.interface import Decoded, DecodeFailure, Decoder, MediaHandle, Outcome, map_handles
from energon_dali.decode.media_decoder import MediaDecoder
from energon_dali.decode.operations import (
    CenterCrop,
    HorizontalFlip,
    Normalize,
    Operation,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from energon_dali.decode.sample_decoder import SampleDecoder
from energon_dali.decode.spec import ImageSpec

__all__ = [
    "CenterCrop",
    "ClipAudio",
    "ClipsHandle",
    "DaliDecoder",
    "DecodeFailure",
    "Decoded",
    "Decoder",
    "FrontEnd",
    "HorizontalFlip",
    "ImageHeader",
    "ImageSpec",
    "LogMel",
    "MediaDecoder",
    "MediaHandle",
    "Normalize",
    "Operation",
    "Outcome",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "SampleDecoder",
    "VideoClips",
    "VisionInput",
    "batch_vision",
    "map_handles",
    "screen_image",
]
