"""Clips of videos decoded by DALI: which files it may see, the graph, the engine that runs it, and the way back."""

from __future__ import annotations

from energon_dali.decode.dali.video.submission import submit_clips
from energon_dali.decode.dali.video.suitability import prefers_dali, suits_dali_video

__all__ = ["prefers_dali", "submit_clips", "suits_dali_video"]
