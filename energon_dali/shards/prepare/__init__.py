"""Prepares a folder of tar shards as a dataset: indexes it, describes its media, and splits it."""

from __future__ import annotations

from energon_dali.shards.prepare.dataset import PrepareResult, prepare_dataset
from energon_dali.shards.prepare.shard_job import UnreadablePart

__all__ = ["PrepareResult", "UnreadablePart", "prepare_dataset"]
