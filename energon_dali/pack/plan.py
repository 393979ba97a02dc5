"""Fixes which sample goes to which shard, as integers, before the first shard is written.

A plan is a pure function of the source and the options. Its records are stored in the order of the shards, so that a
shard is one range of the file `records.jsonl`, wherever it is written.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.pack.keys import UniqueKeys, hash64
from energon_dali.pack.options import PackOptions
from energon_dali.pack.reading import Source
from energon_dali.pack.record import Record, Skipped, size_in_tar, to_line
from energon_dali.pack.sources.hugging_face import clean_split

Ints = npt.NDArray[np.int64]
_END_BYTES = 1024
"""Two tar blocks of zeros end a tar."""


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard that is to be written."""

    name: str
    part: str
    """Part of the split."""
    samples: int
    offset: int
    """First byte of its records in `records.jsonl`."""
    size: int
    """Number of their bytes."""
    estimated_bytes: int
    """Approximate size of the shard."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All shards, and the samples that were left out already."""

    shards: tuple[PlannedShard, ...]
    digest: str
    """Hash of all records in their order, and of the shards."""
    fingerprint: str
    """Hash of paths, sizes and times of the files of the source."""
    skipped: tuple[Skipped, ...]

    @property
    def num_samples(self) -> int:
        """Number of samples in all shards, if none fails."""
        return sum(shard.samples for shard in self.shards)

    @property
    def parts(self) -> list[str]:
        """Parts of the split, in order."""
        return list(dict.fromkeys(shard.part for shard in self.shards))


def make_plan(
    source: Source, options: PackOptions, folder: Path, progress: Callable[[int], None] | None = None
) -> Plan:
    """Looks at the whole source, and assigns its samples to shards.

    Args:
        source: What to pack.
        options: Sizes, split, order.
        folder: Local folder in which to write `records.jsonl`.
        progress: Called with the number of samples that were found.

    Raises:
        ConfigError: A sample matches no pattern of the split.
        DatasetError: The source is damaged, or nothing in it can be packed.
    """
    unordered = folder / "unordered.jsonl"
    skipped: list[Skipped] = []
    keys, rules = UniqueKeys(), SplitRules(options.split, options.split_seed)
    parts: list[str] = list(rules.parts)
    columns = {name: array("q") for name in ("line_bytes", "tar_bytes", "part", "group")}
    hashes = array("Q")
    with unordered.open("wb") as file:
        for count, record in enumerate(source.records(lambda what, why: skipped.append(Skipped(what, why)))):
            record.key = keys.add(record.key)
            part = rules.part_of(record)
            if part not in parts:
                parts.append(part)
            line = to_line(record)
            file.write(line)
            for name, value in (
                ("line_bytes", len(line)),
                ("tar_bytes", size_in_tar(record)),
                ("part", parts.index(part)),
                ("group", record.group),
            ):
                columns[name].append(value)
            if options.shuffle is not None:
                hashes.append(hash64(record.key, f"order {options.shuffle}"))
            if progress is not None and count % 1000 == 0:
                progress(count)
    if not columns["part"]:
        raise DatasetFormatError(_nothing(skipped))
    found = {name: np.frombuffer(values, np.int64) for name, values in columns.items()}
    order = _order(found["part"], found["group"], np.frombuffer(hashes, np.uint64), options.shuffle)
    cuts = cut_shards(found["part"][order], found["tar_bytes"][order], options.max_samples, options.max_bytes)
    digest = hashlib.sha256()
    sizes = _write_ordered(unordered, folder / RECORDS_NAME, found["line_bytes"], order, cuts, digest)
    unordered.unlink()
    shards = _name_shards(
        [parts[number] for number in found["part"][order[cuts[:-1]]]], cuts, sizes, found["tar_bytes"], order
    )
    digest.update(json.dumps([(shard.name, shard.samples) for shard in shards]).encode())
    return Plan(tuple(shards), digest.hexdigest(), source.fingerprint(), tuple(skipped))


RECORDS_NAME = "records.jsonl"


def _nothing(skipped: list[Skipped]) -> str:
    if not skipped:
        return "The source holds no sample. Give the folder or table that holds the files."
    first = skipped[0]
    hint = (
        " If its paths are relative to another folder, name that with --media-root."
        if " does not exist in " in first.reason
        else ""
    )
    return f"None of {len(skipped):,} samples can be packed. The first one, {first.what}: {first.reason}.{hint}"


def _order(part: Ints, group: Ints, hashes: npt.NDArray[np.uint64], shuffle: int | None) -> Ints:
    """Returns the records in the order of the shards, int64[samples].

    Shuffled, the order follows from the hashes of the keys. Groups are shuffled among each other and in themselves.
    """
    if shuffle is None:
        return np.argsort(part, kind="stable")
    # Several records may have no group (-1); then all of them are one, which changes nothing.
    numbers = np.arange(int(group.max(initial=-1)) + 2)
    of_group = np.array([hash64(str(number), f"group {shuffle}") for number in numbers], np.uint64)
    tie = np.arange(len(part))
    return np.lexsort((tie, hashes, of_group[group + 1], part)).astype(np.int64)


def cut_shards(part: Ints, tar_bytes: Ints, max_samples: int, max_bytes: int) -> Ints:
    """Cuts ordered samples into shards.

    Args:
        part: Part of the split of each sample, int64[samples], sorted.
        tar_bytes: What each sample takes in a tar, int64[samples].
        max_samples: Most samples in a shard.
        max_bytes: Largest shard in bytes; a larger sample gets a shard of its own.

    Returns:
        Where each shard begins, and the end, int64[shards + 1].
    """
    # Shape [samples + 1]; the bytes of samples i to j are ends[j] - ends[i].
    ends = np.concatenate(([0], np.cumsum(tar_bytes)))
    borders = np.concatenate((np.flatnonzero(np.diff(part)) + 1, [len(part)]))
    cuts = [0]
    for border in borders.tolist():
        while cuts[-1] < border:
            start = cuts[-1]
            fitting = int(np.searchsorted(ends, ends[start] + max_bytes - _END_BYTES, "right")) - 1
            cuts.append(min(border, start + max_samples, max(start + 1, fitting)))
    return np.array(cuts, np.int64)


def _write_ordered(unordered: Path, ordered: Path, line_bytes: Ints, order: Ints, cuts: Ints, digest: Any) -> list[int]:
    """Writes the records in the order of the shards; returns how many bytes each shard's records have."""
    starts = np.concatenate(([0], np.cumsum(line_bytes)))
    lines = np.memmap(unordered, np.uint8, "r")
    sizes = []
    with ordered.open("wb") as file:
        for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            chosen = order[start:stop]
            content = b"".join(
                [
                    lines[first:last].tobytes()
                    for first, last in zip(starts[chosen].tolist(), starts[chosen + 1].tolist(), strict=True)
                ]
            )
            digest.update(content)
            file.write(content)
            sizes.append(len(content))
    return sizes


def _name_shards(
    part_of_shard: list[str], cuts: Ints, sizes: list[int], tar_bytes: Ints, order: Ints
) -> list[PlannedShard]:
    shards: list[PlannedShard] = []
    numbers: dict[str, int] = {}
    offset = 0
    for index, (part, size) in enumerate(zip(part_of_shard, sizes, strict=True)):
        number = numbers.get(part, 0)
        numbers[part] = number + 1
        samples = order[cuts[index] : cuts[index + 1]]
        estimated = int(tar_bytes[samples].sum())
        shards.append(PlannedShard(f"{part}-{number:06d}.tar", part, len(samples), offset, size, estimated))
        offset += size
    return shards


DEFAULT_PART = "train"


class SplitRules:
    """Rules of a split: the part of a sample depends on its key alone, so that it stays there when samples are added.

    Args:
        rules: (part, weight) pairs or (part, pattern) pairs; none keeps the split of the source.
        seed: Seed of a split by weights.
    """

    def __init__(self, rules: Sequence[tuple[str, float | str]], seed: int) -> None:
        self.parts = list(dict.fromkeys(part for part, _ in rules))
        self._seed = f"split {seed}"
        self._patterns = [(part, re.compile(rule)) for part, rule in rules if isinstance(rule, str)]
        weights = [(part, rule) for part, rule in rules if not isinstance(rule, str)]
        total, cumulative = sum(weight for _, weight in weights), 0.0
        self._limits: list[tuple[str, int]] = []
        for part, weight in weights:
            cumulative += weight
            self._limits.append((part, round(cumulative / total * (1 << 64))))

    def part_of(self, record: Record) -> str:
        """Returns the part of a sample.

        Raises:
            ConfigError: No pattern matches its key.
        """
        if self._patterns:
            for part, pattern in self._patterns:
                if pattern.match(record.key):
                    return part
            raise ConfigError(
                f"The sample {record.key!r} matches no pattern of the split: {self._describe()}. A pattern is a "
                "regular expression that matches the key from its start; add a last one for the rest, such as train:.*"
            )
        if self._limits:
            number = hash64(record.key, self._seed)
            return next(part for part, limit in self._limits if number < limit)
        return clean_split(record.split_part) if record.split_part else DEFAULT_PART

    def _describe(self) -> str:
        return ", ".join(f"{part}:{pattern.pattern}" for part, pattern in self._patterns)
