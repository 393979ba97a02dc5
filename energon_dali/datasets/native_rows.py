"""Plans rows of DALI's own reader: where the parts of samples are, and which samples it may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from energon_dali.datasets.load_sample import part_seed
from energon_dali.decode.dali.dispatch import is_eligible_image
from energon_dali.decode.dali.images.dali_reader import ReaderRow
from energon_dali.decode.formats import ImageHeader
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.decode.spec import ImageSpec
from energon_dali.shards import ExtentIndex

TAR_BLOCK_BYTES = 512


class RowPlanner:
    """Makes rows of samples, and collects the names of their other parts (components).

    Args:
        index: Locations of the parts, and results of the header check of `prepare`.
        wanted: Returns whether a part is read.
        spec: How the images are decoded.
    """

    def __init__(self, index: ExtentIndex, wanted: Callable[[str], bool], spec: ImageSpec) -> None:
        self._index = index
        self._wanted = wanted
        self._spec = spec
        self._numbers: dict[str, int] = {}
        self._shard = -1
        self._extents: Any = None
        self._rows: list[ReaderRow] = []
        self.names: list[tuple[str, str]] = []
        """(key, name of the image part) of each row."""

    @property
    def components(self) -> list[str]:
        """Names of the components: "image", then the other parts."""
        return ["image", *self._numbers]

    def rows(self) -> list[ReaderRow]:
        """Returns all rows, each with one extent per component."""
        count = len(self._numbers) + 1
        return [_widen(row, count) for row in self._rows]

    def add(self, shard: int, sample: int, seed: int) -> list[str] | None:
        """Adds a sample and returns the names of its other parts; None if DALI must not read it.

        Args:
            shard: Number of its shard.
            sample: Its number in the shard.
            seed: Its seed.
        """
        if shard != self._shard:
            self._shard, self._extents = shard, self._index.shard(shard)
        extents = self._extents
        image, others = self._parts(sample)
        if image < 0:
            return None
        header = ImageHeader.from_label(
            extents.formats[extents.part_format[image]], extents.part_width[image], extents.part_height[image]
        )
        spec = self._spec
        if header is None or not is_eligible_image(header, spec) or header.width * header.height > spec.max_pixels:
            return None
        if extents.part_size[image] > spec.max_bytes:
            return None
        names = [self._name(part) for part in others]
        extents_of: list[tuple[int, int] | None] = [None] * (len(self._numbers) + len(names) + 1)
        extents_of[0] = self._extent(image)
        for name, part in zip(names, others, strict=True):
            extents_of[self._numbers.setdefault(name, len(self._numbers)) + 1] = self._extent(part)
        image_name = self._name(image)
        self.names.append((extents.key(sample), image_name))
        self._rows.append(
            ReaderRow(
                shard,
                tuple(extents_of[: len(self._numbers) + 1]),
                header.width,
                header.height,
                header.orientation,
                part_seed(seed, image_name),
            )
        )
        return names

    def _parts(self, sample: int) -> tuple[int, list[int]]:
        """Returns (the only image part, the other wanted parts); -1 for the image if there is none, or several."""
        extents = self._extents
        images: list[int] = []
        others: list[int] = []
        for part in range(extents.first_part[sample], extents.first_part[sample + 1]):
            name = self._name(part)
            if self._wanted(name):
                (images if find_part_kind(name)[0] == "image" else others).append(part)
        return (images[0] if len(images) == 1 else -1), others

    def _name(self, part: int) -> str:
        name: str = self._extents.part_names[self._extents.part_name[part]]
        return name

    def _extent(self, part: int) -> tuple[int, int]:
        return self._extents.part_block[part] * TAR_BLOCK_BYTES, self._extents.part_size[part]


def _widen(row: ReaderRow, count: int) -> ReaderRow:
    missing = count - len(row.extents)
    if not missing:
        return row
    return ReaderRow(row.shard, (*row.extents, *[None] * missing), row.width, row.height, row.orientation, row.seed)


def split_batch(batch: Any, components: Sequence[str]) -> Iterator[tuple[Any, dict[str, bytes]]]:
    """Yields (outcome of the image, content of the other parts by name) of each row of a ReaderBatch."""
    for number, outcome in enumerate(batch.images):
        contents = ((name, batch.parts[name][number]) for name in components[1:])
        yield outcome, {name: content for name, content in contents if content is not None}
