"""Metadata of media files, known before they are decoded: sizes, durations and rates, as stored in the index."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from energon_dali.errors import DatasetFormatError
from energon_dali.samples.base import edataclass


class MediaMetadata:
    """Base class of the metadata of a media file."""


@edataclass
class ImageMetadata(MediaMetadata):
    """Metadata from the header of an image."""

    width: int
    """Width in pixels as stored."""
    height: int
    """Height in pixels as stored."""
    format: str
    """Format as PIL names it, such as "JPEG"."""
    mode: str
    """Mode as PIL names it, such as "RGB"."""


@edataclass
class AVMetadata(MediaMetadata):
    """Metadata from the header of a video or audio file; None for what is unknown, or for a missing media stream."""

    video_duration: float | None = None
    """Length of the video in seconds."""
    video_num_frames: int | None = None
    """Number of frames."""
    video_fps: float | None = None
    """Average frames per second."""
    video_width: int | None = None
    """Width in pixels."""
    video_height: int | None = None
    """Height in pixels."""
    audio_duration: float | None = None
    """Length of the audio in seconds."""
    audio_channels: int | None = None
    """Number of channels."""
    audio_sample_rate: int | None = None
    """Samples per second and channel."""
    audio_num_samples: int | None = None
    """Samples per channel."""


_KINDS: dict[str, type[ImageMetadata] | type[AVMetadata]] = {"image": ImageMetadata, "av": AVMetadata}


def read_media_metadata(kind: str, text: str) -> MediaMetadata:
    """Parses a row of the table `media_metadata`.

    Args:
        kind: "image" or "av".
        text: The JSON of the row.

    Raises:
        DatasetFormatError: The row cannot be understood.
    """
    try:
        facts: dict[str, Any] = json.loads(text) if text else {}
        known = {field.name for field in fields(_KINDS[kind])}
        found = {name: value for name, value in facts.items() if name in known}
        if not all(isinstance(value, (int, float, str, type(None))) for value in found.values()):
            raise ValueError("it holds more than numbers and text")
        return _KINDS[kind](**found)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DatasetFormatError(
            f"The media metadata of kind {str(kind)[:100]!r} cannot be understood: {str(text)[:200]!r} "
            f"({str(error)[:200]}). The kinds are {', '.join(_KINDS)}; run `energon-dali prepare-media` on the dataset "
            "again."
        ) from error


def write_media_metadata(metadata: ImageMetadata | AVMetadata) -> tuple[str, str]:
    """Returns (kind, JSON) for a row of the table `media_metadata`."""
    kind = "image" if isinstance(metadata, ImageMetadata) else "av"
    facts = {name: value for name, value in asdict(metadata).items() if value is not None}
    return kind, json.dumps(facts, separators=(",", ":"))
