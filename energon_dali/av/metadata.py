"""Describes the video and the audio of a file: sizes, rates, durations and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from energon_dali.samples.media_metadata import AVMetadata

if TYPE_CHECKING:
    from energon_dali.av.audio.reader import AudioReader
    from energon_dali.av.video.reader import VideoReader


def describe_video(
    metadata: AVMetadata, reader: VideoReader, *, duration: bool, frame_count: bool, frame_size: bool, upright: bool
) -> None:
    """Writes the facts of the video into the metadata.

    Args:
        metadata: Written to.
        reader: The video.
        duration: Finds the exact duration, which needs the frame index. Otherwise uses the header's, if any.
        frame_count: Finds the number of frames, which needs the frame index.
        frame_size: Writes width and height.
        upright: Whether width and height are those after rotating the frames upright.

    Raises:
        DecodeError: The file cannot be read.
    """
    facts = reader.facts
    metadata.video_duration = facts.duration_seconds
    metadata.video_fps = None if facts.average_rate is None else float(facts.average_rate)
    if duration:
        metadata.video_duration = reader.index.end_seconds - reader.index.start_seconds
    if frame_count:
        metadata.video_num_frames = len(reader.index)
    if (duration or frame_count) and not metadata.video_fps and metadata.video_duration:
        metadata.video_fps = len(reader.index) / metadata.video_duration
    if frame_size:
        width, height = reader.width, reader.height
        turned = upright and reader.rotation % 180 != 0
        metadata.video_width, metadata.video_height = (height, width) if turned else (width, height)


def describe_audio(metadata: AVMetadata, reader: AudioReader, *, duration: bool, num_samples: bool) -> None:
    """Writes the facts of the audio into the metadata.

    Args:
        metadata: Written to.
        reader: The audio.
        duration: Finds the exact duration, which needs the audio index. Otherwise uses the header's, if any.
        num_samples: Finds the number of samples, which needs the audio index.

    Raises:
        DecodeError: The file cannot be read.
    """
    facts = reader.facts
    metadata.audio_sample_rate, metadata.audio_channels = facts.sample_rate, facts.channels
    metadata.audio_duration = facts.duration_seconds
    if duration:
        metadata.audio_duration = reader.index.end_seconds - reader.index.start_seconds
    if num_samples:
        metadata.audio_num_samples = len(reader.index)
