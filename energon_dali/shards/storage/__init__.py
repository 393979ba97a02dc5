"""Files by path or URL: local disk, object stores through obstore, and read-only http(s)."""

from __future__ import annotations

from energon_dali.shards.storage.forks import storage_in_use
from energon_dali.shards.storage.path import StoragePath

__all__ = ["StoragePath", "storage_in_use"]
