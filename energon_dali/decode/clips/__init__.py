"""Clips of videos: how they are declared on a decoder, the choice of their frames, and their handles."""

from __future__ import annotations

from energon_dali.decode.clips.handle import ClipsHandle
from energon_dali.decode.clips.log_mel import LogMel
from energon_dali.decode.clips.video_clips import ClipAudio, VideoClips, choose_frames, choose_starts

__all__ = ["ClipAudio", "ClipsHandle", "LogMel", "VideoClips", "choose_frames", "choose_starts"]
