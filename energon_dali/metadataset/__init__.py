"""Metadatasets: YAML files that blend, repeat, concatenate and join datasets."""

from __future__ import annotations
