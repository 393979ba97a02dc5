"""Datasets on storage: tar shards and their `.nv-meta`, reading samples by index, and preparing a folder.

Megatron Energon and this package both read and write this format; what one prepares, the other loads.
"""

from __future__ import annotations

from energon_dali.shards.folder import PartList, WebdatasetFolder, resolve_part_filter, resolve_sample_loader
from energon_dali.shards.index.extent_index import ExtentIndex
from energon_dali.shards.index.extents import PartFacts, ShardExtents
from energon_dali.shards.index.jsonl_index import JsonlResult, prepare_jsonl
from energon_dali.shards.jsonl import JsonlFile, JsonlReader
from energon_dali.shards.meta.dataset_config import is_crude, read_dataset_config, sample_type_name
from energon_dali.shards.prepare import PrepareResult, UnreadablePart, prepare_dataset
from energon_dali.shards.raw_sample import RawSample
from energon_dali.shards.shard_reader import ShardReader
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.store import RetryPolicy

__all__ = [
    "ExtentIndex",
    "JsonlFile",
    "JsonlReader",
    "JsonlResult",
    "PartFacts",
    "PartList",
    "PrepareResult",
    "RawSample",
    "RetryPolicy",
    "ShardExtents",
    "ShardReader",
    "StoragePath",
    "UnreadablePart",
    "WebdatasetFolder",
    "is_crude",
    "prepare_dataset",
    "prepare_jsonl",
    "read_dataset_config",
    "resolve_part_filter",
    "resolve_sample_loader",
    "sample_type_name",
]
