"""AVDecoder: a video or audio file that decodes clips on request."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from energon_dali.av.audio_reader import AudioReader, AudioUnit
from energon_dali.av.clip_lists import (
    WHOLE,
    ClipRange,
    Missing,
    VideoUnit,
    check_ranges,
    find_spans,
    read_audio_clips,
    read_video_clips,
)
from energon_dali.av.container import AVLimits, MediaFile
from energon_dali.av.media_source import MediaSource, open_source
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.av.video_reader import VideoReader
from energon_dali.av.video_scan import Damaged
from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.samples.base import edataclass
from energon_dali.samples.media_metadata import AVMetadata

if TYPE_CHECKING:
    import torch


@edataclass
class AVData:
    """Clips of one file, in the order of the request; lists are empty if nothing was requested."""

    video_clips: list[torch.Tensor]
    """Frames of each clip, uint8 (frames, 3, H, W) in RGB."""
    video_timestamps: list[tuple[float, float]]
    """When the first frame of each clip starts and the last one ends, in seconds."""
    audio_clips: list[torch.Tensor]
    """Audio of each clip, (channels, samples) in the codec's sample type."""
    audio_timestamps: list[tuple[float, float]]
    """When the first sample of each clip starts and the last one ends, in seconds."""

    @property
    def video_shapes(self) -> list[tuple[int, ...]]:
        """Shape of each clip of the video: (frames, 3, H, W)."""
        shapes: list[tuple[int, ...]] = _shapes(self.video_clips)
        return shapes

    @property
    def audio_shapes(self) -> list[tuple[int, ...]]:
        """Shape of each clip of the audio: (channels, samples)."""
        shapes: list[tuple[int, ...]] = _shapes(self.audio_clips)
        return shapes

    def __repr__(self) -> str:
        return (
            f"AVData(video={self.video_shapes} at {self.video_timestamps} s, "
            f"audio={self.audio_shapes} at {self.audio_timestamps} s)"
        )


_LOADED_BYTES = 256 << 20
"""What clips need is read at once up to this size, and beyond it as it is decoded."""


class AVDecoder:
    """A video or audio file. It is opened once, when a method first needs it, and decoded only on request.

    Ranges of video are (first, last), **both included**. In "frames" they count from 0. In "seconds" they are
    presentation times, as in the file: a stream that starts at 2 s has nothing at 1 s. A range runs from the frame
    shown at its start through the one shown at its end, so (t, t) is the one frame shown at t, even if the frame rate
    varies. A range that begins before the stream or ends after it returns the frames that exist.

    Ranges of audio **exclude the end**: samples (0, 100) are 100 samples, and one second of 16 kHz is
    16,000 samples. In "samples" they count from 0, in "seconds" they are presentation times.

    A range entirely before or after the stream raises DecodeError. With `missing="empty"` it returns a clip without
    frames or samples, so that there are always as many clips as ranges; with `missing="drop"` it returns no clip, as in
    Energon.

    It is picklable, with its stream and options but without the open file. Several threads may use a decoder, one at a
    time.

    Args:
        stream: The file: bytes, bytearray or memoryview (never copied), a seekable binary stream, or a path. In hooks
            also a file with a media index, of which each method reads what it needs (`av_lazy` of decoders).
        suppress_warnings: Accepted for compatibility with Energon; no method warns.
        missing: What happens for a range without frames or samples: "error", "empty" or "drop".
        damaged: What happens if parts of the file cannot be decoded: "error" raises if such frames or samples are
            requested; "partial" treats the rest as the whole file, which costs one full decode.
        apply_rotation: Rotates frames upright as the file says (multiples of 90 degrees). Energon does not.
        sample_rate: Samples per second of audio that is returned and counted; None keeps the file's.
        audio_channels: Mixes audio to this number of channels, 1 to 8; None keeps the file's.
        exact_audio: Audio clips equal slices of the whole audio bit for bit. If a decoder generates noise (AAC), this
            can require decoding all of the audio. False always seeks, and that noise may differ.
        limits: Limits for one call; None for `AVLimits()`.
        threads: Threads of FFmpeg; None for one per core, but one in worker and forked processes.

    Raises:
        ConfigError: An option is invalid.
    """

    @explain_call
    def __init__(
        self,
        stream: MediaSource | SparseMedia,
        suppress_warnings: bool = False,
        *,
        missing: Missing = "error",
        damaged: Damaged = "error",
        apply_rotation: bool = False,
        sample_rate: int | None = None,
        audio_channels: int | None = None,
        exact_audio: bool = True,
        limits: AVLimits | None = None,
        threads: int | None = None,
    ) -> None:
        if missing not in ("error", "empty", "drop"):
            raise ConfigError(f'missing={missing!r} is unknown. Choose "error", "empty" or "drop".')
        self.suppress_warnings = suppress_warnings
        self.missing: Missing = missing
        self.apply_rotation = apply_rotation
        self.file = MediaFile(stream, limits=limits, threads=threads)
        self.video = VideoReader(self.file, damaged=damaged)
        self.audio = AudioReader(
            self.file, sample_rate=sample_rate, channels=audio_channels, damaged=damaged, exact=exact_audio
        )

    @property
    def stream(self) -> BinaryIO:
        """The file as a binary stream at its start: the given stream, or a new one (of a copy, if bytes were given)."""
        source = self.file.source
        if isinstance(source, memoryview):
            return io.BytesIO(source)
        return open(source, "rb") if isinstance(source, str) else cast("BinaryIO", open_source(source))

    def get_video(self) -> AVData:
        """Returns all frames as one clip, without audio.

        Raises:
            DecodeError: There is no video, or it cannot be decoded within the limits.
        """
        return self.get_clips(WHOLE, None, "frames")

    def get_audio(self) -> AVData:
        """Returns all samples as one clip, without video.

        Raises:
            DecodeError: There is no audio, or it cannot be decoded within the limits.
        """
        return self.get_clips(None, WHOLE, audio_unit="samples")

    def get_video_with_audio(self) -> AVData:
        """Returns all frames and all samples, each as one clip.

        Raises:
            DecodeError: Video or audio is not there, or cannot be decoded within the limits.
        """
        return self.get_clips(WHOLE, WHOLE, "frames", "samples")

    def get_clips(
        self,
        video_clip_ranges: Sequence[ClipRange] | None = None,
        audio_clip_ranges: Sequence[ClipRange] | None = None,
        video_unit: VideoUnit = "seconds",
        audio_unit: AudioUnit = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Returns clips of video, audio, or both; what is not asked for is an empty list.

        Args:
            video_clip_ranges: (first, last) of each clip, see the class; None for no video.
            audio_clip_ranges: (start, end) of each clip, see the class; None for no audio.
            video_unit: "seconds" or "frames".
            audio_unit: "seconds" or "samples".
            video_out_frame_size: (width, height) in pixels that frames are resized to; None keeps theirs.

        Raises:
            ConfigError: A range is reversed or not numeric, or a unit or size is wrong.
            DecodeError: A stream is not there, has nothing in a range, or cannot be decoded within the limits.
        """
        data = AVData(video_clips=[], video_timestamps=[], audio_clips=[], audio_timestamps=[])
        self._load(video_clip_ranges, audio_clip_ranges, video_unit, audio_unit)
        if video_clip_ranges is not None:
            found = self.get_video_clips(video_clip_ranges, video_unit, video_out_frame_size)
            data.video_clips, data.video_timestamps = found
        if audio_clip_ranges is not None:
            data.audio_clips, data.audio_timestamps = self.get_audio_clips(audio_clip_ranges, audio_unit)
        return data

    def _load(
        self,
        video_clip_ranges: Sequence[ClipRange] | None,
        audio_clip_ranges: Sequence[ClipRange] | None,
        video_unit: VideoUnit,
        audio_unit: AudioUnit,
    ) -> None:
        """Reads together what clips need of a file with a media index; for any other file it does nothing."""
        media = self.file.source
        if not isinstance(media, SparseMedia):
            return
        places: list[tuple[int, int]] = []
        index = media.index
        if video_clip_ranges is not None and index.video is not None and self.video.damaged == "error":
            spans = find_spans(self.video, check_ranges(video_clip_ranges), video_unit)
            frames = [frame for span in spans if span is not None for frame in range(span[0], span[1] + 1)]
            places += index.video.places(self.video.packets_of(frames))
        if audio_clip_ranges is not None and index.audio is not None and self.audio.damaged == "error":
            places += index.audio.places(self.audio.packets_of(check_ranges(audio_clip_ranges), audio_unit))
        missing = [place for place in places if media.find(*place) is None]
        if missing and sum(size for _, size in missing) <= _LOADED_BYTES:
            media.load(missing)

    def get_video_clips(
        self,
        video_clip_ranges: Sequence[ClipRange],
        video_unit: VideoUnit = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """Returns (clips, timestamps): uint8 (frames, 3, H, W) per clip, and the (start, end) in seconds of each.

        Args:
            video_clip_ranges: (first, last) of each clip, both included; see the class.
            video_unit: "seconds" or "frames".
            video_out_frame_size: (width, height) in pixels that frames are resized to; None keeps theirs.

        Raises:
            ConfigError: A range is reversed or not numeric, or the unit or size is wrong.
            DecodeError: There is no video, nothing in a range, or it cannot be decoded within the limits.
        """
        self._load(video_clip_ranges, None, video_unit, "seconds")
        return read_video_clips(
            self.video, video_clip_ranges, video_unit, video_out_frame_size, self.apply_rotation, self.missing
        )

    def get_audio_clips(
        self, audio_clip_ranges: Sequence[ClipRange], audio_unit: AudioUnit = "seconds"
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """Returns (clips, timestamps): (channels, samples) per clip, and the (start, end) in seconds of each.

        Samples keep the type of the codec: uint8, int16, int32, float32 or float64.

        Args:
            audio_clip_ranges: (start, end) of each clip, end excluded; see the class.
            audio_unit: "seconds" or "samples".

        Raises:
            ConfigError: A range is reversed or not numeric, or the unit is wrong.
            DecodeError: There is no audio, nothing in a range, or it cannot be decoded within the limits.
        """
        self._load(None, audio_clip_ranges, "seconds", audio_unit)
        return read_audio_clips(self.audio, audio_clip_ranges, audio_unit, self.missing)

    def get_frames(self, video_decode_audio: bool = False) -> AVData | None:
        """Returns the whole file: its video if any, else its audio; None if it has neither.

        Args:
            video_decode_audio: Whether the audio of a video is returned too, if there is any.

        Raises:
            DecodeError: The file cannot be decoded within the limits.
        """
        with_audio = self.has_audio_stream()
        if self.has_video_stream():
            return self.get_video_with_audio() if video_decode_audio and with_audio else self.get_video()
        return self.get_audio() if with_audio else None

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """Returns facts about the file, None for what it does not have. Decodes only if the facts require it.

        Durations are exact: from the start of the first decoded frame or sample to the end of the last.

        Args:
            get_video: Describes the video.
            get_video_duration: Finds its exact duration. Otherwise returns the header's.
            get_video_frame_count: Counts its frames.
            get_video_frame_size: Returns its width and height.
            get_audio: Describes the audio as stored in the file.
            get_audio_duration: Finds its exact duration. Otherwise returns the header's.
            get_audio_num_samples: Counts its samples.

        Raises:
            DecodeError: The file cannot be read.
        """
        metadata = AVMetadata()
        if get_video and self.has_video_stream():
            video = self.video
            metadata.video_duration = video.facts.duration_seconds
            metadata.video_fps = None if video.facts.average_rate is None else float(video.facts.average_rate)
            if get_video_duration:
                metadata.video_duration = video.index.end_seconds - video.index.start_seconds
            if get_video_frame_count:
                metadata.video_num_frames = len(video.index)
            if (get_video_duration or get_video_frame_count) and not metadata.video_fps and metadata.video_duration:
                metadata.video_fps = len(video.index) / metadata.video_duration
            if get_video_frame_size:
                width, height = video.width, video.height
                turned = self.apply_rotation and video.rotation % 180 != 0
                metadata.video_width, metadata.video_height = (height, width) if turned else (width, height)
        if get_audio and self.has_audio_stream():
            audio = self.audio
            metadata.audio_sample_rate, metadata.audio_channels = audio.facts.sample_rate, audio.facts.channels
            metadata.audio_duration = audio.facts.duration_seconds
            if get_audio_duration:
                metadata.audio_duration = audio.index.end_seconds - audio.index.start_seconds
            if get_audio_num_samples:
                metadata.audio_num_samples = len(audio.index)
        return metadata

    def get_video_fps(self) -> float:
        """Returns the average number of frames per second.

        Raises:
            DecodeError: There is no video, or it cannot be read.
        """
        rate = self.video.facts.average_rate
        if rate:
            return float(rate)
        return len(self.video.index) / (self.video.index.end_seconds - self.video.index.start_seconds)

    def get_audio_samples_per_second(self) -> int:
        """Returns the number of samples per second and channel of returned audio.

        Raises:
            DecodeError: There is no audio, or it cannot be read.
        """
        return self.audio.wanted.sample_rate or self.audio.facts.sample_rate

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Returns (duration in seconds, number of frames); None if there is no video or it was not requested.

        Args:
            get_frame_count: Counts the frames.

        Raises:
            DecodeError: The file cannot be read.
        """
        found = self.get_metadata(True, True, get_frame_count, False, False)
        return found.video_duration, found.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Returns the duration of the audio in seconds, None if there is none.

        Raises:
            DecodeError: The file cannot be read.
        """
        return self.get_metadata(get_video=False).audio_duration

    def has_video_stream(self) -> bool:
        """Returns whether there is a video; a cover image does not count.

        Raises:
            DecodeError: The file cannot be opened.
        """
        return self.file.find_stream("video") is not None

    def has_audio_stream(self) -> bool:
        """Returns whether there is audio.

        Raises:
            DecodeError: The file cannot be opened.
        """
        return self.file.find_stream("audio") is not None

    def close(self) -> None:
        """Closes the file. It reopens on the next use."""
        self.file.close()

    def __enter__(self) -> AVDecoder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AVDecoder({self.file!r})"


def _shapes(clips: Any) -> Any:
    """Returns the shape of each clip, in the lists that the clips are in: a batch has a list for each sample."""
    return [_shapes(clip) if isinstance(clip, list) else tuple(clip.shape) for clip in clips]
