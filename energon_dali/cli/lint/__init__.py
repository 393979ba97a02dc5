"""`energon-dali lint`: finds samples that training would lose, and indices that do not match their shards."""

from __future__ import annotations
