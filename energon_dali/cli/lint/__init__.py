"""`energon-dali lint`: looks for samples that training would lose, and for an index that does not fit its shards."""

from __future__ import annotations
