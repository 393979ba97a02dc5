"""Makes shards of images, tables, Hugging Face datasets and other shards: `energon-dali pack`.

sources/   what can be packed: each source yields records, and has the sample type of the dataset
plan       which record goes to which shard, as integers, fixed before the first shard is written
shard_job  writes one shard: a function of the plan and the source, whoever runs it
run        runs everything, with processes of this machine or tasks of a Ray cluster
"""

from __future__ import annotations

from energon_dali.pack.options import PackOptions
from energon_dali.pack.run import PackResult, pack_dataset

__all__ = ["PackOptions", "PackResult", "pack_dataset"]
