"""Frames of a video: which exist, where decoding must start for each, and decoding the wanted ones."""

from energon_dali.av.video.reader import VideoReader
from energon_dali.av.video.scan import Damaged

__all__ = ["Damaged", "VideoReader"]
