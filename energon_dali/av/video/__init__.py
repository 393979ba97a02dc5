"""Frames of a video: which there are, from where each can be decoded, and feeding the decoder for the wanted ones."""

from energon_dali.av.video.reader import VideoReader
from energon_dali.av.video.scan import Damaged

__all__ = ["Damaged", "VideoReader"]
