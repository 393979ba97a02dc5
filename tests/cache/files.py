"""Stores for the tests of this folder."""

from __future__ import annotations

import threading
from pathlib import Path

from energon_dali.cache import FileStore
from energon_dali.errors import FileMissingError
from energon_dali.samples.base import SourceInfo
from tests.shards.tars import write_tar


class Numbers(FileStore[bytes]):
    """A store whose file "7" holds b"7" `size` times. It counts reads, and can be told to wait."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.reads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        self.reads.append(key)
        self.gate.wait(10)
        if not key.isdigit():
            raise FileMissingError(f"no file {key!r}")
        return key.encode() * self.size, source(key)

    def get_path(self) -> str:
        return "numbers"


def source(key: str) -> SourceInfo:
    return SourceInfo(dataset_path="numbers", index=key, shard_name="numbers", file_names=(key,))


def two_shards(folder: Path) -> Path:
    """Writes and prepares a dataset of ten samples in two shards, and returns its folder."""
    from energon_dali.shards import prepare_dataset

    for shard in range(2):
        files = {}
        for number in range(5):
            key = f"dir/s{shard}_{number}"
            files[f"{key}.txt"] = f"text {shard} {number}".encode()
            files[f"{key}.big.bin"] = bytes([number]) * 5000
        write_tar(folder / f"{shard}.tar", files)
    prepare_dataset(str(folder), split_ratio={"train": 1.0})
    return folder
