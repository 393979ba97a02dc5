"""A cache of shards on the node: blocks of remote shards on local disk, which jobs fill as they read."""

from __future__ import annotations

from energon_dali.cache.shard_cache.shard_cache import ShardCache

__all__ = ["ShardCache"]
