"""Files by path or URL: local disk, object stores through obstore, and read-only http(s).

`register_protocol` adds other kinds of storage.
"""

from __future__ import annotations

from energon_dali.shards.storage.forks import storage_in_use
from energon_dali.shards.storage.path import StoragePath
from energon_dali.shards.storage.protocols import Backend, RangeReader, register_protocol, unregister_protocol
from energon_dali.shards.storage.retry import with_retries

__all__ = [
    "Backend",
    "RangeReader",
    "StoragePath",
    "register_protocol",
    "storage_in_use",
    "unregister_protocol",
    "with_retries",
]
