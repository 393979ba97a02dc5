"""A JSONL file, by line."""

from __future__ import annotations

import numpy as np

from energon_dali.errors import DatasetError, ShardError
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import JsonlFile
from energon_dali.shards.index.extents import changed_shard
from energon_dali.shards.jsonl import PART
from energon_dali.view.dataset import OpenFiles, Rows, ViewedPart, ViewedSample, literal, python_command


class JsonlDataset:
    """A JSONL file.

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
        self.knows_image_sizes = False
        self._files = OpenFiles()

    def rows(self, split_part: str | None) -> Rows:
        return Rows(np.zeros(1, np.int64), np.array([self.num_samples], np.int64))

    def sample(self, index: int) -> ViewedSample:
        if not 0 <= index < self.num_samples:
            raise DatasetError(f"{self.path} has {self.num_samples:,} lines, and none with the number {index}.")
        start, end = (int(offset) for offset in self.file.offsets[index : index + 2])
        part = ViewedPart(0, PART, start, max(0, end - start))
        return ViewedSample(index, str(index), self.file.name, 0, index, (part,))

    def extents(self, shard: int) -> None:
        return None

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
