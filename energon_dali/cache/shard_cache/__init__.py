"""A cache of shards on the node: blocks of remote shards on local disk, filled and evicted by plan."""

from __future__ import annotations

from energon_dali.cache.shard_cache.shard_cache import ShardCache

__all__ = ["ShardCache"]
