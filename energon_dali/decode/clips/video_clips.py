"""Which clips to take from a video: how many, at which size, with which audio; and the choice of their frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from energon_dali.calls import explain_call
from energon_dali.decode.clips.log_mel import LogMel
from energon_dali.decode.front_ends import VideoFrontEnd
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.plan.rng import Int64Array, uniform

ClipSampling = Literal["uniform", "random", "at"]
ClipDtype = Literal["uint8", "float32", "float16", "bfloat16"]
ClipLayout = Literal["FCHW", "FHWC"]
ShortClip = Literal["repeat", "error"]
DamagedVideo = Literal["error", "partial"]
Float64Array = NDArray[np.float64]

StartChooser = Callable[[float, int, np.random.Generator], Sequence[float]]
"""Returns where clips start, in seconds from the start of the video. Takes its duration in seconds, its number of
frames (0 for a file without video), and a random generator that is the same for a sample in an epoch."""

TOLERANCE_SECONDS = 1e-9
"""A time less than this before a frame counts as at the frame, because sums of floats miss time stamps slightly."""
_CLIP_DRAWS = 0x636C6970
"""Part of the key of the random numbers for clip starts, so that they differ from other draws."""


@explain_call
@dataclass(frozen=True, slots=True)
class ClipAudio:
    """The audio of clips: float32 in [-1, 1], with the same number of samples for each clip, so that clips stack.

    Raises:
        ConfigError: A value is invalid.
    """

    sample_rate: int | None = None
    """Samples per second to resample to; None keeps the file's."""
    channels: int | None = None
    """Channels to mix to; None keeps the file's."""
    duration_seconds: float | None = None
    """Seconds of audio per clip, from the clip's start; None takes the clip's own duration."""
    missing: Literal["error", "silence"] = "error"
    """What happens if a file has no audio stream: a DecodeError, or silence (which needs `sample_rate` and `channels`).
    A stream that ends inside a clip is always padded with silence; `Clips.audio_timestamps` says where it ends."""
    exact: bool = True
    """Samples equal slices of the whole audio bit for bit. Where a decoder generates noise (AAC of many encoders), this
    takes all of the audio before a clip. False decodes from at most one second before it, and that noise differs. Cost:
    where noise is generated, decoding all of the audio before a clip."""
    features: LogMel | None = None
    """Makes features of the audio, which the clips then have in place of it (`Clips.audio_features`). The audio is
    mono, at the rate of the features."""

    def __post_init__(self) -> None:
        for name in ("sample_rate", "channels", "duration_seconds"):
            object.__setattr__(self, name, _as_plain(getattr(self, name)))
        for name in ("sample_rate", "channels"):
            value = getattr(self, name)
            if value is not None and (not _is_whole(value) or value < 1):
                raise ConfigError(
                    f"ClipAudio({name}={value!r}) cannot work. It is a whole number of at least 1, or None for what "
                    "the file has."
                )
        _check_seconds("ClipAudio", "duration_seconds", self.duration_seconds)
        if not isinstance(self.exact, bool):
            raise ConfigError(f"ClipAudio(exact={self.exact!r}) cannot work. Give True or False.")
        if self.missing not in ("error", "silence"):
            raise ConfigError(f'ClipAudio(missing={self.missing!r}) is unknown. Give "error" or "silence".')
        if self.features is not None:
            self._take_features(self.features)
        if self.missing == "silence" and (self.sample_rate is None or self.channels is None):
            raise ConfigError(
                'ClipAudio(missing="silence") needs a rate and channels for the silence: a file without audio has '
                "none. Give sample_rate and channels too."
            )

    def _take_features(self, features: object) -> None:
        if not isinstance(features, LogMel):
            raise ConfigError(f"ClipAudio(features={features!r}) cannot work. Give a LogMel, or None for waveforms.")
        for name, needed in (("sample_rate", features.sample_rate), ("channels", 1)):
            if getattr(self, name) not in (None, needed):
                raise ConfigError(
                    f"ClipAudio({name}={getattr(self, name)}) does not fit its features, which are made of mono audio "
                    f"at {features.sample_rate} Hz. Leave {name} out."
                )
            object.__setattr__(self, name, needed)


@explain_call
@dataclass(frozen=True, slots=True)
class VideoClips:
    """Clips of a video as one tensor, chosen by presentation time: every decoder and device returns the same frames.

    With `clip_duration_seconds` the frames of a clip are those shown at its start and at every
    clip_duration_seconds / frames_per_clip seconds after it (also where the frame rate varies). Otherwise a clip is
    every `stride`-th frame.

        av_decode=VideoClips(num_clips=2, frames_per_clip=16, clip_duration_seconds=2.0, size=(224, 224))

    returns `Clips` with frames uint8[2, 16, 3, 224, 224] and timestamps float64[2, 16].

    Raises:
        ConfigError: A value, or a combination of values, is invalid.
    """

    num_clips: int = 1
    """Clips per video."""
    frames_per_clip: int = 16
    """Frames per clip."""
    clip_duration_seconds: float | None = None
    """Seconds that a clip spans; None uses `stride`."""
    stride: int | None = None
    """Distance of a clip's frames, in frames; None is 1."""
    sampling: ClipSampling = "uniform"
    """Where clips start. "uniform": at equal distances, the first at the start of the video, the last ending with it; a
    single clip is the first. "random": anywhere that they fit, in order of time, drawn from (seed, sample, epoch).
    "at": at the seconds of `at`. Cost: clips at any place decode from the key frame before them."""
    at: tuple[float, ...] | StartChooser = ()
    """With sampling="at", where each clip starts: presentation times in seconds, or a function of yours that returns
    them for a video (`StartChooser`). It is called before anything of a file with a media index is read, and again when
    the file is decoded. A clip that starts outside the video is a DecodeError."""
    size: tuple[int, int] | int | None = None
    """(width, height) of the result; a single number for its shorter side; None keeps the video's. Bilinear. Cost: less
    memory, the smaller it is; the frames are decoded at their own size."""
    dtype: ClipDtype = "uint8"
    """Type of the frames; floats are level / 255. Cost: memory of 1, 2 or 4 bytes per value."""
    layout: ClipLayout = "FCHW"
    """Order of a clip's axes: frames, channels, height, width; or channels last."""
    audio: bool | ClipAudio = False
    """Whether clips have audio, and in which form. Cost: decoding the audio of the clips; see `exact` of
    `ClipAudio`."""
    short: ShortClip = "repeat"
    """What happens if a clip reaches past the end of its video: "repeat" repeats the last frame, as its timestamps
    show; "error" is a DecodeError."""
    damaged: DamagedVideo = "error"
    """What happens if parts of a file cannot be decoded: "error" is a DecodeError if a clip needs such a frame;
    "partial" treats the frames (and the audio) that can be decoded as the whole video. Cost: with "partial", one full
    decode of each file with PyAV."""
    apply_rotation: bool = False
    """Rotates frames upright as the file says (multiples of 90 degrees), with PyAV. Cost: decoding the first frame."""
    front_end: VideoFrontEnd | None = None
    """Chooses the frames and makes of them what a vision-language model takes: a VideoInput instead of `Clips`. Hooks
    before decoding see handles with their `num_tokens`. Goes with `damaged` and `apply_rotation` alone."""

    def __post_init__(self) -> None:
        for name in ("num_clips", "frames_per_clip", "stride", "clip_duration_seconds", "at", "size"):
            object.__setattr__(self, name, _as_plain(getattr(self, name)))
        for name in ("num_clips", "frames_per_clip", "stride"):
            value = getattr(self, name)
            if (value is not None or name != "stride") and (not _is_whole(value) or value < 1):
                raise ConfigError(f"VideoClips({name}={value!r}) cannot work. It is a whole number of at least 1.")
        _check_seconds("VideoClips", "clip_duration_seconds", self.clip_duration_seconds)
        if self.clip_duration_seconds is not None and self.stride is not None:
            raise ConfigError(
                f"VideoClips was given clip_duration_seconds={self.clip_duration_seconds} and stride={self.stride}. "
                "Each of them alone says how far apart a clip's frames are. Give one of the two."
            )
        for name, allowed in (
            ("sampling", get_args(ClipSampling)),
            ("dtype", get_args(ClipDtype)),
            ("layout", get_args(ClipLayout)),
            ("short", get_args(ShortClip)),
            ("damaged", get_args(DamagedVideo)),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"VideoClips({name}={getattr(self, name)!r}) is unknown. Give one of {', '.join(allowed)}."
                )
        if not isinstance(self.apply_rotation, bool):
            raise ConfigError(f"VideoClips(apply_rotation={self.apply_rotation!r}) cannot work. Give True or False.")
        self._take_starts()
        self._take_size()
        self._check_audio()
        if self.front_end is not None:
            self._check_front_end(self.front_end)

    @property
    def clip_audio(self) -> ClipAudio | None:
        """The form of the audio of clips; None without audio."""
        return self.audio if isinstance(self.audio, ClipAudio) else ClipAudio() if self.audio else None

    @property
    def audio_seconds(self) -> float:
        """Seconds of audio per clip; 0.0 without audio."""
        audio = self.clip_audio
        return 0.0 if audio is None else audio.duration_seconds or self.clip_duration_seconds or 0.0

    def output_size(self, width: int, height: int) -> tuple[int, int]:
        """Returns (width, height) of the frames made of a video of this width and height, in pixels."""
        if self.size is None:
            return width, height
        if isinstance(self.size, tuple):
            return self.size
        if width <= height:
            return self.size, max(1, self.size * height // width)
        return max(1, self.size * width // height), self.size

    def _check_front_end(self, front_end: object) -> None:
        if not isinstance(front_end, VideoFrontEnd):
            raise ConfigError(
                f"VideoClips(front_end={front_end!r}) is not a front end for videos. Make one with "
                "VideoFrontEnd.from_processor(processor)."
            )
        kept = ("front_end", "damaged", "apply_rotation")
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name not in kept and getattr(self, field.name) != field.default
        ]
        if given:
            raise ConfigError(
                f"VideoClips was given {', '.join(given)} with a front end, which chooses the frames and decides what "
                "they become. Leave it out, and give the front end fps, num_frames or dtype."
            )

    def _take_starts(self) -> None:
        if callable(self.at) and self.sampling == "at":
            return
        if isinstance(self.at, Sequence):
            object.__setattr__(self, "at", tuple(self.at))
        valid = isinstance(self.at, tuple) and all(
            isinstance(start, (int, float)) and math.isfinite(start) for start in self.at
        )
        if not valid or (self.sampling == "at") != bool(self.at):
            raise ConfigError(
                f"VideoClips was given sampling={self.sampling!r} and at={self.at!r}. at= holds the start of each clip "
                'in seconds, as finite numbers, or a function, and goes with sampling="at" alone. Give both or none.'
            )
        if isinstance(self.at, tuple) and self.at:
            if self.num_clips not in (1, len(self.at)):
                raise ConfigError(
                    f"VideoClips was given num_clips={self.num_clips} and {len(self.at)} starts in at=. Each start "
                    "makes one clip. Leave num_clips out."
                )
            object.__setattr__(self, "num_clips", len(self.at))

    def _take_size(self) -> None:
        size: Any = self.size
        if size is None:
            return
        if isinstance(size, list):
            object.__setattr__(self, "size", tuple(size))
        sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        if len(sides) != 2 or not all(_is_whole(side) and side > 0 for side in sides):
            raise ConfigError(
                f"VideoClips(size={self.size!r}) cannot work. It is (width, height) in pixels, or a whole number for "
                "the shorter side, or None for the video's own size."
            )

    def _check_audio(self) -> None:
        if not isinstance(self.audio, (bool, ClipAudio)):
            raise ConfigError(f"VideoClips(audio={self.audio!r}) cannot work. Give True, False or a ClipAudio.")
        if self.audio and not self.audio_seconds:
            raise ConfigError(
                "VideoClips was asked for audio without a duration. Clips by stride span different times in different "
                "files, so their audio would not stack. Give clip_duration_seconds, or "
                "audio=ClipAudio(duration_seconds=...)."
            )


def _as_plain(value: Any) -> Any:
    """Returns numbers and arrays of numpy and torch as Python numbers, and everything else unchanged."""
    if isinstance(value, (list, tuple)):
        return type(value)(_as_plain(item) for item in value)
    return value.tolist() if hasattr(value, "tolist") else value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_seconds(owner: str, name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{owner}({name}={value!r}) cannot work. It is a number of seconds greater than 0.")


def choose_frames(spec: VideoClips, times: Float64Array, end: float, seed: int = 0) -> tuple[Int64Array, Float64Array]:
    """Returns which frames each clip has, and where each clip starts.

    Args:
        spec: The clips.
        times: float64[n], presentation times of all shown frames in seconds, ascending.
        end: When the last frame ends, in seconds.
        seed: Determines random starts.

    Returns:
        int64[num_clips, frames_per_clip], frame numbers in presentation order; and float64[num_clips], seconds.

    Raises:
        DecodeError: There are no frames, a clip starts outside the video, or it is too short and `spec.short` is
            "error".
    """
    if len(times) == 0:
        raise DecodeError("The video has no frames")
    if spec.clip_duration_seconds is None:
        frames = _by_stride(spec, times, end, seed)
        return frames, times[frames[:, 0]]
    starts = choose_starts(spec, float(times[0]), end, seed, len(times))
    stop = float(starts.max()) + spec.clip_duration_seconds
    if spec.short == "error" and stop > end + 1e-6:
        raise DecodeError(
            f"A clip of {spec.clip_duration_seconds:g} s ends at {stop:g} s, and the video at {end:g} s. Ask for "
            'shorter clips, or give VideoClips(short="repeat") to repeat the last frame'
        )
    offsets = np.arange(spec.frames_per_clip) * (spec.clip_duration_seconds / spec.frames_per_clip)
    return frames_shown_at(starts[:, None] + offsets, times), starts


def choose_starts(spec: VideoClips, first: float, end: float, seed: int = 0, frames: int = 0) -> Float64Array:
    """Returns where each clip starts, in seconds.

    Args:
        spec: Clips with a duration (of their frames, or of their audio).
        first: Presentation time of the start of the stream, in seconds.
        end: Presentation time of its end.
        seed: Determines random starts.
        frames: Number of frames of the video; 0 without one.

    Returns:
        float64[num_clips].

    Raises:
        DecodeError: A start of `spec.at` is outside the stream, or its function failed.
    """
    if spec.sampling == "at":
        starts = _given_starts(spec, first, end, seed, frames)
        _check_inside(starts, first, end)
        return starts
    span = max(0.0, end - first - (spec.clip_duration_seconds or spec.audio_seconds))
    if spec.sampling == "uniform":
        return np.linspace(first, first + span, spec.num_clips)
    return first + span * np.sort(uniform(0, spec.num_clips, _CLIP_DRAWS, seed))


def _given_starts(spec: VideoClips, first: float, end: float, seed: int, frames: int) -> Float64Array:
    """Returns the presentation times in `spec.at`, or those that its function returns: float64[num_clips].

    Raises:
        DecodeError: The function failed, or returned something else.
    """
    if isinstance(spec.at, tuple):
        return np.array(spec.at, np.float64)
    name = getattr(spec.at, "__qualname__", repr(spec.at))
    try:
        chosen = spec.at(end - first, frames, np.random.default_rng([_CLIP_DRAWS, seed]))
        starts = first + np.array(chosen, np.float64)
    except Exception as error:
        raise DecodeError(f"{name} of VideoClips(at=...) raised {type(error).__name__}: {error}") from error
    if starts.shape != (spec.num_clips,) or not np.isfinite(starts).all():
        raise DecodeError(
            f"{name} of VideoClips(at=...) returned {chosen!r}. It returns num_clips={spec.num_clips} finite numbers: "
            "seconds from the start of the video"
        )
    return starts


def frames_shown_at(seconds: Float64Array, times: Float64Array) -> Int64Array:
    """Returns the frame shown at each time: the last one that starts at or before it, or the first frame.

    Args:
        seconds: float64[...], presentation times.
        times: float64[n], presentation times of the frames, ascending.

    Returns:
        int64[...], in 0 ... n - 1.
    """
    frames: Int64Array = np.searchsorted(times, seconds + TOLERANCE_SECONDS, side="right").astype(np.int64) - 1
    return np.maximum(frames, 0)


def _by_stride(spec: VideoClips, times: Float64Array, end: float, seed: int) -> Int64Array:
    stride = spec.stride or 1
    reach = (spec.frames_per_clip - 1) * stride
    span = max(0, len(times) - 1 - reach)
    if spec.sampling == "at":
        seconds = _given_starts(spec, float(times[0]), end, seed, len(times))
        _check_inside(seconds, float(times[0]), end)
        starts = frames_shown_at(seconds, times)
    elif spec.sampling == "uniform":
        starts = np.rint(np.linspace(0, span, spec.num_clips)).astype(np.int64)
    else:
        draws = np.sort(uniform(0, spec.num_clips, _CLIP_DRAWS, seed))
        starts = (draws * (span + 1)).astype(np.int64)
    if spec.short == "error" and int(starts.max()) + reach >= len(times):
        raise DecodeError(
            f"A clip spans {reach + 1} frames and ends after the last of {len(times)} frames. Ask for shorter clips, "
            'or give VideoClips(short="repeat") to repeat the last frame'
        )
    frames: Int64Array = np.minimum(starts[:, None] + np.arange(spec.frames_per_clip) * stride, len(times) - 1)
    return frames


def _check_inside(starts: Float64Array, first: float, end: float) -> None:
    outside = starts[(starts < first - TOLERANCE_SECONDS) | (starts >= max(end, first + TOLERANCE_SECONDS))]
    if len(outside):
        raise DecodeError(
            f"A clip was asked for at {outside[0]:g} s, and the stream lasts from {first:g} s to {end:g} s. Give "
            "starts inside it"
        )
