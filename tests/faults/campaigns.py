"""All campaigns, in the order of the table."""

from __future__ import annotations

from tests.faults.campaign import Campaign
from tests.faults.disks import DISKS
from tests.faults.images import IMAGES
from tests.faults.indices import INDICES
from tests.faults.kills import PREPARE_KILLS, TRAINING_KILLS
from tests.faults.loaders import LOADERS
from tests.faults.media import MEDIA
from tests.faults.packing import PACK_KILLS, PACK_ON_RAY
from tests.faults.programs import COMPOSITIONS, PROGRAMS
from tests.faults.reads import READS
from tests.faults.servers import HTTP, S3
from tests.faults.shard_caches import SHARD_CACHE_KILLS
from tests.faults.states import STATES
from tests.faults.tars import TARS

CAMPAIGNS: tuple[Campaign, ...] = (
    TARS,
    INDICES,
    STATES,
    PROGRAMS,
    COMPOSITIONS,
    IMAGES,
    MEDIA,
    READS,
    HTTP,
    S3,
    PREPARE_KILLS,
    TRAINING_KILLS,
    LOADERS,
    PACK_KILLS,
    PACK_ON_RAY,
    SHARD_CACHE_KILLS,
    DISKS,
)
