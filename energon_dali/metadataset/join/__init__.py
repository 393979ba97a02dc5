"""Joins: datasets whose samples with equal keys become one, by an index that is prepared beside the metadataset."""

from __future__ import annotations
