"""Files by path or URL: local disk, object stores through multi-storage-client, and read-only http(s)."""

from __future__ import annotations

from energon_dali.shards.storage.path import StoragePath

__all__ = ["StoragePath"]
