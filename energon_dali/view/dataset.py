"""One dataset by number: its samples, and the bytes of their parts.

It is a prepared folder of tar shards, or a JSONL file whose lines are samples.
"""

from __future__ import annotations

import json
import shlex
import threading
from bisect import bisect_right
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from energon_dali.decode.part_kind import find_part_kind
from energon_dali.errors import DatasetError, ShardError, StorageError
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import JsonlFile, ShardExtents, WebdatasetFolder, is_crude
from energon_dali.shards.documents.sqlite_file import DAMAGE, SqliteFile
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.index.extents import changed_shard, check_member
from energon_dali.shards.index.tar_index import missing_shard
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES
from energon_dali.shards.jsonl import PART
from energon_dali.shards.meta.dataset_config import DEFAULT_NAME
from energon_dali.shards.meta.document import META
from energon_dali.shards.storage import OpenFiles
from energon_dali.view.viewed_sample import Rows, ViewedPart, ViewedSample

_PAGES_KEPT_FOR = 64
"""Shards that are looked at before the pages of the index that were touched are given back."""

_MOST_OPEN = 64


def literal(text: str) -> str:
    """Returns a Python literal in double quotes, which need no escape within the single quotes of a shell."""
    return json.dumps(text, ensure_ascii=False)


def python_command(*statements: str) -> str:
    """Returns a shell command that runs statements and leaves Python open."""
    return f"python -i -c {shlex.quote('; '.join(statements))}"


class FolderDataset:
    """A prepared folder of tar shards, whose samples are found by number. Thread-safe.

    Args:
        path: Local path or URL.
        dataset_config: Name of dataset.yaml; None for the usual name.
        split_config: Name of the split file; None for the usual names.

    Raises:
        DatasetFormatError: The folder is not prepared.
        StorageError: It cannot be read.
    """

    def __init__(self, path: str, *, dataset_config: str | None = None, split_config: str | None = None) -> None:
        # Names of classes are shown and none is imported.
        self.folder = WebdatasetFolder(
            path,
            dataset_config=dataset_config or DEFAULT_NAME,
            split_config=split_config,
            allow_imports=True,
        )
        self._given = {"dataset_config": dataset_config, "split_config": split_config}
        self.path = self.folder.path
        """Local path or URL."""
        self.shard_names = self.folder.shard_names
        """Paths of the shards within the dataset."""
        self.shard_starts = [0, *accumulate(self.folder.shard_counts)]
        """Number of the first sample of each shard, and the number of samples."""
        self.num_samples = self.shard_starts[-1]
        """Number of samples, whatever the split."""
        self.identity = self.folder.uuid
        """Changes when the samples do."""
        self._lock = threading.RLock()
        self._files = OpenFiles(_MOST_OPEN)
        self._rows: dict[str | None, Rows] = {}
        self._keys: SqliteFile | None = None
        self._shards_asked = 0
        try:
            self.split_parts = self.folder.split_parts
            """Names of the parts of the split; empty if there are none."""
        except (DatasetError, StorageError):  # the samples can be shown without it
            self.split_parts = ()
        self.has_image_sizes = self._has_image_sizes()
        """Whether the index has format, width and height of all images and videos."""

    def _has_image_sizes(self) -> bool:
        """Looks at three shards: reading the names of all would take long where there are thousands."""
        last = len(self.shard_names) - 1
        try:
            if last < 0 or self.folder.index.source != "extents":
                return False
            looked_at = [self.folder.index.shard(number) for number in sorted({0, last // 2, last})]
        except (DatasetError, StorageError):
            return False
        kinds = {find_part_kind(name)[0] for extents in looked_at for name in extents.part_names}
        return "av" not in kinds and all(len(extents.formats) > 1 for extents in looked_at if extents.num_samples)

    def rows(self, split_part: str | None) -> Rows:
        """Returns the samples of a part of the split; None takes all samples.

        Raises:
            ConfigError: There is no such part.
            DatasetError: The split or an index is damaged.
            StorageError: A file cannot be read.
        """
        with self._lock:
            found = self._rows.get(split_part)
            if found is None:
                found = self._rows[split_part] = self._find_rows(split_part)
            return found

    def parts_of(self, index: int) -> list[str]:
        """Returns the parts of the split that have a sample.

        Raises:
            DatasetError: The split or an index is damaged.
            StorageError: A file cannot be read.
        """
        return [part for part in self.split_parts if self.rows(part).position(index) is not None]

    def _find_rows(self, split_part: str | None) -> Rows:
        if split_part is None:
            return Rows(np.zeros(1, np.int64), np.array([self.num_samples], np.int64))
        ranges = self.folder.split_ranges(split_part)
        starts = np.asarray(self.shard_starts, np.int64)[ranges.shard] + ranges.start
        return Rows(starts, ranges.lengths)

    def sample(self, index: int) -> ViewedSample:
        """Returns what the index has on a sample.

        Raises:
            DatasetError: There is no such sample, or an index is damaged.
            StorageError: A file cannot be read.
        """
        if not 0 <= index < self.num_samples:
            raise DatasetError(f"{self.path} has {self.num_samples:,} samples, and none with the number {index}.")
        shard = bisect_right(self.shard_starts, index) - 1
        number = index - self.shard_starts[shard]
        extents = self.extents(shard)
        first = extents.first_part[number]
        parts = tuple(
            ViewedPart(
                position,
                name,
                offset,
                size,
                extents.formats[extents.part_format[first + position]],
                extents.part_width[first + position],
                extents.part_height[first + position],
            )
            for position, (name, offset, size) in enumerate(extents.parts(number))
        )
        return ViewedSample(index, extents.key(number), self.shard_names[shard], shard, number, parts)

    def extents(self, shard: int) -> ShardExtents:
        """Returns the columns of a shard.

        Raises:
            DatasetError: An index is damaged.
            StorageError: A file cannot be read.
        """
        with self._lock:
            self._shards_asked += 1
            if self._shards_asked % _PAGES_KEPT_FOR == 0:
                self.folder.index.release_pages()
            return self.folder.index.shard(shard)

    def find_key(self, key: str) -> int | None:
        """Returns the number of the sample with a key; None if only reading all keys would find it.

        Raises:
            DatasetError: An index is damaged.
            StorageError: A file cannot be read.
        """
        path = self.folder.root / META / SQLITE_NAME
        if not path.is_local or not path.is_file():
            return None
        with self._lock:
            if self._keys is None:
                self._keys = SqliteFile(path.local)
            try:
                query = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ? LIMIT 1"
                row = self._keys.execute(query, (key,)).fetchone()
            except DAMAGE:
                return None
        found = row is not None and all(isinstance(number, int) for number in row)
        if not found or not (0 <= row[0] < len(self.shard_names) and row[1] >= 0):
            return None
        index = self.shard_starts[row[0]] + row[1]
        return index if index < self.num_samples and self.sample(index).key == key else None

    def sample_bytes(self, start: int, stop: int) -> Int64Array:
        """Returns the sizes of samples start to stop (exclusive) in bytes, int64[stop - start]; within one shard.

        Raises:
            DatasetError: An index is damaged.
            StorageError: A file cannot be read.
        """
        shard = bisect_right(self.shard_starts, start) - 1
        extents, base = self.extents(shard), self.shard_starts[shard]
        parts = extents.array("first_part")[start - base : stop - base + 1].astype(np.int64)
        sizes = extents.array("part_size")[int(parts[0]) : int(parts[-1])]
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])[parts - parts[0]]
        sizes_of_samples: Int64Array = np.diff(sums)
        return sizes_of_samples

    def read(self, sample: ViewedSample, part: ViewedPart, start: int = 0, size: int | None = None) -> bytes:
        """Returns bytes of a part, after checking that the shard is what was indexed.

        Args:
            sample: The sample.
            part: One of its parts.
            start: Offset within the part.
            size: Number of bytes; None takes the rest of the part.

        Raises:
            DatasetError: The shard changed since it was indexed, or is missing.
            StorageError: It cannot be read.
        """
        path = self.folder.root / sample.shard
        try:
            reader = self._files.get(path)
            wanted = max(0, part.size - start if size is None else min(size, part.size - start))
            # The header is just before the beginning, and is then read with it.
            near = TAR_BLOCK_BYTES + (wanted if start == 0 else 0)
            head = reader.read_at(part.offset - TAR_BLOCK_BYTES, near)
            member = f"{sample.key}.{part.name}".encode()
            check_member(sample.shard, head[:TAR_BLOCK_BYTES], member, part.size, part.offset)
            content = head[TAR_BLOCK_BYTES:] if start == 0 else reader.read_at(part.offset + start, wanted)
        except FileNotFoundError as error:
            raise missing_shard(self.folder.root, sample.shard) from error
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error}", sample.shard) from error
        if len(content) < wanted:
            raise changed_shard(sample.shard, f"it ends before byte {part.offset + start + wanted}")
        return content

    def restore_command(self, sample: ViewedSample) -> str:
        """Returns a shell command that makes the sample as a loader does, prints it, and leaves it in `sample`."""
        if self._is_crude():  # without the cookers of a task encoder, there is no more than its parts
            return python_command(
                "from energon_dali.shards import ShardReader, WebdatasetFolder",
                f"reader = ShardReader(WebdatasetFolder({literal(self.path)}))",
                f"sample = reader.read([{sample.shard_number}], [{sample.sample_number}])[0]",
                "print(sample)",
            )
        given = "".join(f", {name}={literal(value)}" for name, value in self._given.items() if value)
        part = next(iter(self.parts_of(sample.index)), "train")
        return python_command(
            "from energon_dali import DefaultTaskEncoder, WorkerConfig, get_val_dataset",
            f"data = get_val_dataset({literal(self.path)}, split_part={literal(part)}, "
            "worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0), "
            f"task_encoder=DefaultTaskEncoder(){given})",
            f'sample = data.restore_sample(("Webdataset", {sample.index}, 0))',
            "print(sample)",
        )

    def _is_crude(self) -> bool:
        try:
            return is_crude(self.folder.dataset_config)
        except (DatasetError, StorageError):
            return True

    def close(self) -> None:
        """Closes all files."""
        self._files.close()
        with self._lock:
            self.folder.index.close()
            if self._keys is not None:
                self._keys.close()
                self._keys = None


class JsonlDataset:
    """A JSONL file by line, with the attributes and methods of a `FolderDataset`; a key is the number of a line.

    Args:
        path: Local path or URL.

    Raises:
        DatasetFormatError: It is not prepared.
        StorageError: It cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.file = JsonlFile(path)
        self.path = self.file.path
        self.num_samples = self.file.num_samples
        self.shard_names = [self.file.name]
        self.shard_starts = [0, self.num_samples]
        self.split_parts: tuple[str, ...] = ()
        self.identity = self.file.uuid
        self.has_image_sizes = False
        self._files = OpenFiles(_MOST_OPEN)

    def rows(self, split_part: str | None) -> Rows:
        return Rows(np.zeros(1, np.int64), np.array([self.num_samples], np.int64))

    def parts_of(self, index: int) -> list[str]:
        return []

    def sample(self, index: int) -> ViewedSample:
        if not 0 <= index < self.num_samples:
            raise DatasetError(f"{self.path} has {self.num_samples:,} lines, and none with the number {index}.")
        start, end = (int(offset) for offset in self.file.offsets[index : index + 2])
        part = ViewedPart(0, PART, start, max(0, end - start))
        return ViewedSample(index, str(index), self.file.name, 0, index, (part,))

    def extents(self, shard: int) -> None:
        """Returns None: there are no columns."""

    def find_key(self, key: str) -> int | None:
        return int(key) if key.isdecimal() and len(key) < 18 and int(key) < self.num_samples else None

    def sample_bytes(self, start: int, stop: int) -> Int64Array:
        offsets: Int64Array = self.file.offsets[start : stop + 1].astype(np.int64)
        return offsets[1:] - offsets[:-1]

    def read(self, sample: ViewedSample, part: ViewedPart, start: int = 0, size: int | None = None) -> bytes:
        wanted = max(0, part.size - start if size is None else min(size, part.size - start))
        try:
            content = self._files.get(self.file.storage_path).read_at(part.offset + start, wanted)
        except OSError as error:
            raise ShardError(f"{self.path} cannot be read: {error}", sample.shard) from error
        if len(content) < wanted:
            raise changed_shard(sample.shard, f"it ends before byte {part.offset + start + wanted}")
        return content

    def restore_command(self, sample: ViewedSample) -> str:
        return python_command(
            "from energon_dali.shards import JsonlFile, JsonlReader",
            f"sample = JsonlReader(JsonlFile({literal(self.path)})).read([0], [{sample.index}])[0]",
            "print(sample)",
        )

    def close(self) -> None:
        self._files.close()


ViewedDataset: TypeAlias = FolderDataset | JsonlDataset
"""A dataset whose samples are found by number."""
