"""Joins: datasets whose samples with equal keys become one, by an index that is prepared next to the metadataset."""

from __future__ import annotations
