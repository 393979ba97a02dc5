"""The audio of a file: which samples its packets contain, and any range of them, bit for bit."""

from energon_dali.av.audio.index import AudioIndex
from energon_dali.av.audio.reader import AudioClip, AudioReader, AudioUnit

__all__ = ["AudioClip", "AudioIndex", "AudioReader", "AudioUnit"]
