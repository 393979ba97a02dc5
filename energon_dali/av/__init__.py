"""Video and audio files, decoded by PyAV: lazily, exactly, and only what is asked for."""

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.audio_reader import AudioClip, AudioReader
from energon_dali.av.colour import ColourFacts
from energon_dali.av.container import AVLimits, MediaFile
from energon_dali.av.decoder import AVData, AVDecoder
from energon_dali.av.frame_index import FrameIndex
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.av.uniform import get_clips_uniform, get_single_frames_uniform
from energon_dali.av.video_reader import VideoReader
from energon_dali.av.webdataset import AVWebdatasetDecoder

__all__ = [
    "AVData",
    "AVDecoder",
    "AVLimits",
    "AVWebdatasetDecoder",
    "AudioClip",
    "AudioIndex",
    "AudioReader",
    "ColourFacts",
    "FrameIndex",
    "MediaFile",
    "StreamFacts",
    "VideoReader",
    "get_clips_uniform",
    "get_single_frames_uniform",
]
