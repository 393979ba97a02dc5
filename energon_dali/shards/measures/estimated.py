"""Estimates of the values of samples that were not measured, from what the index says about them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from energon_dali.errors import ConfigError, DatasetError, StorageError
from energon_dali.plan.measured import BUILT_IN, TEXT_TOKENS, TOKENS, VISION_PATCHES, VISION_SQUARES, VISION_TOKENS
from energon_dali.plan.rng import Int64Array
from energon_dali.samples.media_metadata import AVMetadata, ImageMetadata, MediaMetadata, read_media_metadata
from energon_dali.shards.documents.sqlite_file import DAMAGE, SqliteFile
from energon_dali.shards.folder import WebdatasetFolder
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.jsonl import JsonlFile
from energon_dali.shards.meta.document import META

TEXT_BYTES_PER_TOKEN = 4
PIXELS_PER_TOKEN = 28 * 28
"""Four patches of 14 x 14 pixels become one token."""
PATCHES_PER_TOKEN = 4
IMAGE_BYTES_PER_TOKEN = 200
"""For images whose size the index does not have: a quarter of a byte per pixel."""
VIDEO_BYTES_PER_TOKEN = 2000
IMAGES_PER_SECOND = 1.0
"""Images that a second of video counts as: two frames per second, of which two share their tokens."""
_DESCRIPTIONS = "SELECT entry_key, metadata_type, metadata_json FROM media_metadata WHERE entry_key"
_KEYS_AT_ONCE = 500
_MOST_TOKENS = 1 << 28
"""The squares of their patches fit 64 bits."""

PartKind = Callable[[str], str]
"""Returns "image", "av" or anything else for text, given the name of a part; picklable."""


class EstimatedValues:
    """Values of samples as the sizes of their parts suggest them; a `SampleValues` for balancing alone.

    Text counts by its bytes. Images count by their pixels where `prepare` noted these, videos by pixels and seconds
    where `prepare-media` described them in a local dataset, and other media by their bytes. What is known of a shard is
    kept, in 32 bytes per sample. Picklable.

    Args:
        data: The dataset.
        part_kind: Says what a part is.
        part_filter: Which parts are read; None takes all.
    """

    def __init__(
        self,
        data: WebdatasetFolder | JsonlFile,
        part_kind: PartKind,
        part_filter: Callable[[str], bool] | None = None,
    ) -> None:
        self._data = data
        self._part_kind = part_kind
        self._part_filter = part_filter
        counts = [data.num_samples] if isinstance(data, JsonlFile) else data.shard_counts
        self._starts = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)
        self._known: dict[int, dict[str, Int64Array]] = {}
        self.identity = hashlib.blake2b(f"estimate 1 {data.path} {data.uuid}".encode(), digest_size=16).hexdigest()
        self.num_samples = int(self._starts[-1])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values."""
        return BUILT_IN

    def take(self, name: str, numbers: Int64Array) -> Int64Array:
        """Returns the estimates of samples: int64[n]; see `SampleValues`."""
        if name == TOKENS:
            return self.take(TEXT_TOKENS, numbers) + self.take(VISION_TOKENS, numbers)
        if name not in BUILT_IN:
            raise ConfigError(
                f"{self._data.path} was not measured, and {name!r} cannot be estimated: only "
                f"{', '.join((TOKENS, *BUILT_IN))} can. Measure it with `energon-dali measure`."
            )
        numbers = np.asarray(numbers, np.int64)
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.num_samples:
            raise ConfigError(f"{self._data.path} has {self.num_samples:,} samples, and others were asked for.")
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        found = np.empty(len(numbers), np.int64)
        for shard in np.unique(shards).tolist():
            chosen = np.flatnonzero(shards == shard)
            found[chosen] = self._of_shard(shard)[name][numbers[chosen] - self._starts[shard]]
        return found

    def _of_shard(self, shard: int) -> dict[str, Int64Array]:
        known = self._known.get(shard)
        if known is None:
            if isinstance(self._data, JsonlFile):
                offsets = self._data.offsets.astype(np.int64)
                sizes = offsets[1:] - offsets[:-1]
                none = np.zeros(len(sizes), np.int64)
                known = {TEXT_TOKENS: -(-sizes // TEXT_BYTES_PER_TOKEN), **dict.fromkeys(BUILT_IN[1:], none)}
            else:
                self._data.index.fetch([shard])
                known = self._estimate(self._data.index.shard(shard))
            self._known[shard] = known
        return known

    def _estimate(self, extents: ShardExtents) -> dict[str, Int64Array]:
        wanted = [self._part_filter is None or bool(self._part_filter(name)) for name in extents.part_names]
        kinds = [self._part_kind(name) for name in extents.part_names]
        numbers = extents.array("part_name")
        sizes = extents.array("part_size").astype(np.int64)
        pixels = extents.array("part_width").astype(np.int64) * extents.array("part_height").astype(np.int64)

        def are(kind: str) -> Any:
            return np.array([used and one == kind for used, one in zip(wanted, kinds, strict=True)], bool)[numbers]

        images, videos = are("image"), are("av")
        texts = np.array(wanted, bool)[numbers] & ~images & ~videos
        by_size = np.where(videos, -(-sizes // VIDEO_BYTES_PER_TOKEN), -(-sizes // IMAGE_BYTES_PER_TOKEN))
        tokens = np.where(images & (pixels > 0), -(-pixels // PIXELS_PER_TOKEN), by_size) * (images | videos)
        unknown = np.flatnonzero(videos | (images & (pixels == 0)))
        for part, count in zip(unknown.tolist(), self._described(extents, unknown), strict=True):
            if count is not None:
                tokens[part] = count
        patches = tokens * PATCHES_PER_TOKEN
        columns = (-(-sizes // TEXT_BYTES_PER_TOKEN) * texts, tokens, patches, patches * patches)
        first = extents.array("first_part").astype(np.int64)
        return {
            name: _sums(column, first)
            for name, column in zip((TEXT_TOKENS, VISION_TOKENS, VISION_PATCHES, VISION_SQUARES), columns, strict=True)
        }

    def _described(self, extents: ShardExtents, parts: Int64Array) -> list[int | None]:
        """Returns the tokens of media by their descriptions in the index; None for those without one."""
        if isinstance(self._data, JsonlFile) or not len(parts) or not self._data.root.is_local:
            return [None] * len(parts)
        owners = np.searchsorted(extents.array("first_part"), parts, side="right") - 1
        names = extents.array("part_name")
        keys = [
            f"{extents.key(owner)}.{extents.part_names[names[part]]}"
            for owner, part in zip(owners.tolist(), parts.tolist(), strict=True)
        ]
        found: dict[str, int | None] = {}
        try:
            file = SqliteFile((self._data.root / META / SQLITE_NAME).local)
            with closing(file):
                if "media_metadata" in file.tables:
                    for first in range(0, len(keys), _KEYS_AT_ONCE):
                        some = keys[first : first + _KEYS_AT_ONCE]
                        marks = ", ".join("?" * len(some))
                        for key, kind, text in file.execute(f"{_DESCRIPTIONS} IN ({marks})", some):
                            found[key] = _tokens_of(read_media_metadata(kind, text))
        except (DatasetError, StorageError, OSError, *DAMAGE):  # sizes will do
            pass
        return [found.get(key) for key in keys]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EstimatedValues) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return EstimatedValues, (self._data, self._part_kind, self._part_filter)

    def __repr__(self) -> str:
        return f"EstimatedValues({self._data.path}, {self.num_samples:,} samples)"


def _tokens_of(media: MediaMetadata) -> int | None:
    """Returns the tokens of described media; None if the description does not have what it takes."""
    seconds: object = 1.0 / IMAGES_PER_SECOND
    if isinstance(media, ImageMetadata):
        width: object = media.width
        height: object = media.height
    elif isinstance(media, AVMetadata):
        width, height, seconds = media.video_width, media.video_height, media.video_duration
    numbers = (width, height, seconds)
    if not all(isinstance(one, (int, float)) and 0 < one < _MOST_TOKENS for one in numbers):
        return None
    tokens = float(width) * float(height) * float(seconds) * IMAGES_PER_SECOND / PIXELS_PER_TOKEN  # type: ignore[arg-type]
    return min(_MOST_TOKENS, math.ceil(tokens))


def _sums(values: Int64Array, first: Int64Array) -> Int64Array:
    """Returns the sum of each sample's values.

    Args:
        values: int64[parts].
        first: int64[samples + 1]: number of each sample's first part.
    """
    ends = np.concatenate([[0], np.cumsum(values)])
    found: Int64Array = ends[first[1:]] - ends[first[:-1]]
    return found
