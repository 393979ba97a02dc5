"""Video and audio files, decoded by PyAV: lazily, exactly, and only what is asked for."""

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.audio_reader import AudioClip, AudioReader
from energon_dali.av.colour import ColourFacts
from energon_dali.av.container import MediaFile
from energon_dali.av.frame_index import FrameIndex
from energon_dali.av.limits import AVLimits
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.av.video_reader import VideoReader

__all__ = [
    "AVLimits",
    "AudioClip",
    "AudioIndex",
    "AudioReader",
    "ColourFacts",
    "FrameIndex",
    "MediaFile",
    "StreamFacts",
    "VideoReader",
]
