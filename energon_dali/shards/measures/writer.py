"""Writes a measure file: values are appended in the order of the samples, and narrowed at the end."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from energon_dali.plan.measured import BUILT_IN, NOT_MEASURED, smallest_width
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.measures.description import (
    ALIGNMENT,
    BLOCK,
    HEADER,
    MAGIC,
    MAX_REASONS,
    Column,
    Description,
    ShardFacts,
)
from energon_dali.shards.storage.atomic_file import writing


class MeasureWriter:
    """Collects values on disk, and writes the file at the end; for use in a `with` statement.

    Args:
        folder: A local folder of its own, for unfinished columns.

    Raises:
        StorageError: A file cannot be written. All methods raise it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[BinaryIO] = []
        self._stack = ExitStack()
        self.names: tuple[str, ...] = ()
        """Names of the columns; () before the first sample that could be measured."""
        self.num_samples = 0
        """Samples that were added."""

    def add(self, names: Sequence[str], values: Int64Array) -> None:
        """Adds the values of the next samples.

        Args:
            names: Names of the columns; () if none of the samples could be measured.
            values: int64[samples, names].

        Raises:
            ValueError: The names differ from those of earlier samples.
        """
        if names and not self.names:
            self._begin(tuple(names))
        if names and tuple(names) != self.names:
            raise ValueError(f"the values {', '.join(names)}, and samples before have {', '.join(self.names)}")
        with writing(self._folder):
            for number, file in enumerate(self._files):
                file.write(_bytes(values[:, number]) if names else _missing(len(values)))
        self.num_samples += len(values)

    def _begin(self, names: tuple[str, ...]) -> None:
        self.names = names
        with writing(self._folder):
            for number in range(len(names)):
                file = self._stack.enter_context((self._folder / f"column-{number}").open("w+b"))
                for first in range(0, self.num_samples, BLOCK):
                    file.write(_missing(min(BLOCK, self.num_samples - first)))
                self._files.append(file)

    def finish(
        self,
        path: Path,
        *,
        uuid: str,
        shards: Sequence[ShardFacts],
        encoder: str,
        fingerprint: Mapping[str, str],
        reasons: Mapping[str, int],
    ) -> Description:
        """Writes the file, and returns its description.

        Args:
            path: Where to write it.
            uuid: Identity of the dataset's index.
            shards: All shards, in the order of the samples.
            encoder: MODULE:CLASS of the task encoder.
            fingerprint: What the values depend on.
            reasons: How many samples were not measured, by reason.
        """
        if not self.names:
            self._begin(BUILT_IN)
        with writing(path), path.open("wb") as out:
            out.write(bytes(HEADER.size))
            columns = [self._write_column(out, *one) for one in zip(self.names, self._files, strict=True)]
            most = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
            measured = self.num_samples - sum(reasons.values())
            shown = tuple(most[:MAX_REASONS])
            description = Description(uuid, tuple(shards), encoder, dict(fingerprint), tuple(columns), measured, shown)
            content, offset = description.pack(), out.tell()
            out.write(content)
            size = out.tell()
            out.seek(0)
            out.write(HEADER.pack(MAGIC, offset, len(content), size, hashlib.sha256(content).digest()))
        return description

    def _write_column(self, out: BinaryIO, name: str, file: BinaryIO) -> Column:
        smallest, largest, total = None, 0, 0
        for block in _blocks(file):
            known = block[block >= 0]
            if len(known):
                low = int(known.min())
                smallest = low if smallest is None else min(smallest, low)
                largest = max(largest, int(known.max()))
                total += _sum(known)
        width = smallest_width(largest)
        offset = out.tell()
        checksums, digest = [], hashlib.blake2b(digest_size=16)
        for block in _blocks(file):
            data = block.astype(f"<i{width}").tobytes()
            checksums.append(zlib.crc32(data))
            digest.update(data)
            out.write(data)
        out.write(bytes(-out.tell() % ALIGNMENT))
        return Column(name, width, offset, smallest or 0, largest, total, tuple(checksums), digest.hexdigest())

    def __enter__(self) -> MeasureWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _blocks(file: BinaryIO) -> Iterator[Int64Array]:
    """Yields the blocks of values of an unfinished column."""
    file.seek(0)
    while data := file.read(8 * BLOCK):
        yield np.frombuffer(data, "<i8").astype(np.int64, copy=False)


def _sum(values: Int64Array) -> int:
    """Returns the sum of values, which may exceed 64 bits."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _bytes(values: Int64Array) -> bytes:
    return values.astype("<i8").tobytes()


def _missing(count: int) -> bytes:
    return np.full(count, NOT_MEASURED, "<i8").tobytes()
