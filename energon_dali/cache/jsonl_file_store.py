"""Lines of a JSONL file, by number."""

from __future__ import annotations

import os
from typing import Any

from energon_dali.cache.file_store import FileStore
from energon_dali.calls import explain_call
from energon_dali.errors import DatasetError, FileMissingError
from energon_dali.samples.base import SourceInfo
from energon_dali.shards import StoragePath
from energon_dali.shards.jsonl import JsonlFile, JsonlReader


class JsonlFileStore(FileStore[bytes]):
    """Reads lines of a prepared JSONL file: `store["5.json"]`, or `store["5"]`, is the sixth.

    Picklable and thread-safe.

    Args:
        path: The `.jsonl` file.

    Raises:
        DatasetFormatError: It is not prepared, or has changed since.
        StorageError: It cannot be read.
    """

    @explain_call
    def __init__(self, path: str | os.PathLike[str] | StoragePath) -> None:
        self.file = JsonlFile(path)
        self._reader = JsonlReader(self.file)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Returns (line, where it was read).

        Args:
            key: Number of the line, blank lines not counted, with or without the suffix `.json`.

        Raises:
            FileMissingError: There is no such line.
            DatasetError: It cannot be read.
        """
        number = key.removesuffix(".json")
        if not (number.isascii() and number.isdigit() and int(number) < self.file.num_samples):
            raise FileMissingError(
                f"{self.file.path} has no line {key!r}. Its lines are 0.json to {self.file.num_samples - 1}.json."
            )
        (raw,) = self._reader.read([0], [int(number)])
        if isinstance(raw, DatasetError):
            raise raw
        source = SourceInfo(
            dataset_path=self.file.path, index=int(number), shard_name=raw.shard, file_names=(f"{raw.key}.json",)
        )
        return bytes(raw.parts["json"]), source

    def get_path(self) -> str:
        return self.file.path

    def close(self) -> None:
        self._reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "_reader": self._reader}

    def __repr__(self) -> str:
        return f"JsonlFileStore({self.file.path})"
