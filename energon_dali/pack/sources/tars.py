"""Webdataset shards that are to be written again: other sizes, another order, another split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from energon_dali.errors import DatasetError, DatasetFormatError, UntrustedCodeError
from energon_dali.pack.files import media_kind
from energon_dali.pack.options import AUTO, NEEDS, PackOptions, choose_sample_type, make_dataset_config
from energon_dali.pack.reading import OnSkipped, ReaderSpec, Source
from energon_dali.pack.record import RangePart, Record, clean_key
from energon_dali.shards.documents.content import show_count
from energon_dali.shards.index.tar_scan import TarEnd, group_members, scan_tar
from energon_dali.shards.meta.dataset_config import CRUDE, read_dataset_config
from energon_dali.shards.meta.info import info_present, read_shard_counts
from energon_dali.shards.meta.splits import SplitConfig, read_split
from energon_dali.shards.prepare.split_plan import find_shards
from energon_dali.shards.storage import StoragePath, WindowReader


class TarSource(Source):
    """Tar shards, local or remote.

    Args:
        root: Their folder.
        names: The shards, relative to it; None takes all.
        options: What the user chose.
        hidden: Folder below it that does not belong to it, relative; "" is none.

    Raises:
        DatasetFormatError: There is no shard, or one is compressed.
        StorageError: The folder cannot be listed.
    """

    kind = "tars"

    def __init__(self, root: StoragePath, names: list[str] | None, options: PackOptions, hidden: str = "") -> None:
        super().__init__()
        self.root = root
        self._options = options
        is_prepared = names is None and info_present(root)
        found = names or (list(read_shard_counts(root)) if is_prepared else find_shards(root))
        self._shards = [name for name in found if not hidden or not name.startswith(f"{hidden}/")]
        self._split: SplitConfig | None = read_split(root) if is_prepared else None
        self._config = self._known_config() if names is None else None
        self._with: Counter[str] = Counter()
        self._samples = 0

    def _known_config(self) -> dict[str, Any] | None:
        """Returns the dataset.yaml of the source, None if it has none that can be kept."""
        if not info_present(self.root) or self._options.sample_type != AUTO:
            return None
        try:
            config = read_dataset_config(self.root)
        except (DatasetFormatError, UntrustedCodeError):
            return None
        config.pop("split_config", None)
        return None if "sample_loader" in config else config

    def describe(self) -> list[str]:
        lines = [show_count(len(self._shards), "shard")]
        if self._split is not None and not self._options.split:
            lines.append(f"The split of the source is kept: {', '.join(self._split.split_parts)}")
        if self._config is not None:
            lines.append("The dataset.yaml of the source is kept")
        return lines

    def records(self, skipped: OnSkipped) -> Iterator[Record]:
        part_of: dict[str, str] = {}
        excluded: frozenset[str] = frozenset()
        if self._split is not None:
            part_of = {name: part for part, names in self._split.split_parts.items() for name in names}
            excluded = frozenset(self._split.exclude)
        for name in self._shards:
            if name in excluded:
                skipped(name, "the split of the source excludes this shard")
                continue
            if part_of and name not in part_of and not self._options.split:
                skipped(name, "no part of the source's split has this shard")
                continue
            for record in self._shard(name):
                if f"{name}/{record.key}" in excluded:
                    skipped(f"{name}/{record.key}", "the split of the source excludes it")
                    continue
                record.split_part = part_of.get(name)
                record.key = clean_key(record.key)
                self._count(record)
                yield record

    def _shard(self, name: str) -> Iterator[Record]:
        """Yields the samples of a shard.

        Raises:
            ShardError: It is damaged.
        """
        path = self.root / name
        reader = path.open()
        try:
            mtime_ns = path.local.stat().st_mtime_ns if path.is_local else 0
            self._fingerprint.add(name, reader.size, mtime_ns)
            read_at = reader.read_at if path.is_local else WindowReader(reader).read_at
            record: Record | None = None
            for found in group_members(scan_tar(read_at, reader.size, str(path))):
                if isinstance(found, TarEnd):
                    break
                if found.new_sample:
                    if record is not None:
                        yield record
                    record = Record(found.key)
                assert record is not None, "the first part begins a sample"
                member = found.member
                if any(part.name == found.part for part in record.parts):
                    raise DatasetError(
                        f"{path} holds the part {found.part!r} of the sample {found.key!r} twice. Write the shard "
                        "again, with another name for one of the two."
                    )
                record.parts.append(RangePart(found.part, name, member.content_offset, member.size))
            if record is not None:
                yield record
        finally:
            reader.close()

    def _count(self, record: Record) -> None:
        """Counts which samples could be made of the record."""
        self._samples += 1
        names = {part.name for part in record.parts}
        roles: set[str] = {kind for name in names if "." not in name and (kind := media_kind(name))}
        roles |= {"caption"} if "txt" in names else set()
        roles |= {"label"} if "cls" in names else set()
        self._with.update(roles)

    def reader(self) -> ReaderSpec:
        return ReaderSpec(self.root.url, self.root.url)

    def dataset_config(self, part_names: Iterable[str]) -> dict[str, Any]:
        if self._config is not None:
            return self._config
        roles = {role for role, count in self._with.items() if count == self._samples}
        chosen = choose_sample_type(roles, self._options.sample_type)
        if self._options.sample_type == AUTO and set(self._with) - set(NEEDS[chosen]):
            chosen = CRUDE  # some samples have more than the type would show
        return make_dataset_config(chosen, part_names)
