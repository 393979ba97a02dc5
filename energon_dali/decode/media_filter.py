"""Describes media for the table `media_metadata`: sizes and formats, from their headers."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from energon_dali.av.mp4_screen import screen_mp4
from energon_dali.decode.images import open_image
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.demuxers import open_container
from energon_dali.errors import ConfigError, DecodeError

Strategy = Literal["GLOB", "HEADER", "EXTENSION"]
Kind = Literal["image", "av"]


@dataclass(frozen=True, slots=True)
class MediaFilter:
    """Selects the parts that are media, and describes them; picklable.

    Raises:
        ConfigError: GLOB without a pattern, or patterns without GLOB.
    """

    strategy: Strategy
    """GLOB: by patterns of `KEY.PART`. HEADER: by the first bytes. EXTENSION: by the usual suffixes."""
    patterns: tuple[str, ...] = ()
    """Shell patterns, for GLOB; case does not matter."""

    def __post_init__(self) -> None:
        if (self.strategy == "GLOB") != bool(self.patterns):
            raise ConfigError(
                f"MediaFilter({self.strategy}, {self.patterns}): GLOB needs patterns such as *.jpg, and HEADER and "
                "EXTENSION take none."
            )

    @classmethod
    def parse(cls, glob: str | None, header: bool, extension: bool) -> MediaFilter | None:
        """Returns the filter of the three options `--media-metadata-by-*`, None if none was given.

        Raises:
            ConfigError: More than one was given.
        """
        if bool(glob) + header + extension > 1:
            raise ConfigError(
                "More than one of --media-metadata-by-glob, -by-header and -by-extension was given. Give one."
            )
        if glob:
            return cls("GLOB", tuple(pattern.strip() for pattern in glob.split(",") if pattern.strip()))
        if header:
            return cls("HEADER")
        return cls("EXTENSION") if extension else None

    def __call__(self, name: str, content: Callable[[], bytes]) -> tuple[str, str] | None:
        """Returns (kind, JSON) of a part, None if it is not a media part or cannot be parsed.

        Args:
            name: `KEY.PART`.
            content: Returns its bytes; called only if the name does not rule it out.
        """
        kind = self.kind_of(name, content)
        if kind is None:
            return None
        described = describe_image(content()) if kind == "image" else describe_av(content())
        return None if described is None else (kind, json.dumps(described, separators=(",", ":")))

    def kind_of(self, name: str, content: Callable[[], bytes]) -> Kind | None:
        """Returns the kind of media of a part, None if it is not a media part or not selected."""
        by_name = kind_of_suffix(name)
        if self.strategy == "EXTENSION":
            return by_name
        if self.strategy == "GLOB":
            lower = name.lower()
            if not any(fnmatchcase(lower, pattern.lower()) for pattern in self.patterns):
                return None
            return by_name or kind_of_content(content())
        return kind_of_content(content()) or by_name


def kind_of_suffix(name: str) -> Kind | None:
    """Returns the kind of media that a file name speaks of."""
    kind = find_part_kind(name.rpartition(".")[2])[0]
    return None if kind == "basic" else kind


def kind_of_content(data: bytes) -> Kind | None:
    """Returns the kind of media that the first bytes suggest."""
    import filetype

    guess = filetype.guess(data[:8192])
    mime = "" if guess is None else str(guess.mime)
    return "image" if mime.startswith("image/") else "av" if mime.startswith(("video/", "audio/")) else None


def describe_image(data: bytes) -> dict[str, Any] | None:
    """Returns width, height (pixels), PIL's format and mode of an image, from its header; None if PIL refuses it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a size that PIL calls a bomb is described all the same
            with open_image(data) as image:
                return {
                    "width": image.width,
                    "height": image.height,
                    "format": image.format or "UNKNOWN",
                    "mode": image.mode,
                }
    except DecodeError:
        return None


def describe_av(data: bytes) -> dict[str, Any] | None:
    """Returns durations (seconds), sizes (pixels), rates and counts from the header of a video or audio file."""
    try:
        screen_mp4(memoryview(data))
        with open_container(io.BytesIO(data)) as container:
            facts: dict[str, Any] = {}
            if container.streams.video:
                video = container.streams.video[0]
                rate = video.average_rate
                facts["video_duration"] = _duration_seconds(video, container)
                facts["video_num_frames"] = video.frames or None
                facts["video_fps"] = None if rate is None else float(rate)
                facts["video_width"], facts["video_height"] = video.codec_context.width, video.codec_context.height
            if container.streams.audio:
                audio = container.streams.audio[0]
                duration = _duration_seconds(audio, container)
                facts["audio_duration"] = duration
                facts["audio_channels"], facts["audio_sample_rate"] = (
                    audio.codec_context.channels,
                    audio.codec_context.sample_rate,
                )
                facts["audio_num_samples"] = (
                    None if duration is None else round(duration * audio.codec_context.sample_rate)
                )
            return {name: value for name, value in facts.items() if value is not None} or None
    except Exception:
        return None


def _duration_seconds(stream: Any, container: Any) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / 1_000_000
