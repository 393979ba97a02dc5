"""Datasets made of datasets: YAML files that blend, repeat, chain and join others, down to what is read of the disk."""

from __future__ import annotations
