"""Clips of videos decoded by DALI: which files it may see, the graph, the engine that runs it, and the way back."""

from __future__ import annotations

from energon_dali.decode.dali.video.eligibility import is_eligible_video, prefers_dali
from energon_dali.decode.dali.video.submission import submit_clips

__all__ = ["is_eligible_video", "prefers_dali", "submit_clips"]
