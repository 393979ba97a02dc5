from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_dali import RetryPolicy, ShardError
from energon_dali.shards import RawSample, ShardReader, WebdatasetFolder, prepare_dataset, shard_reader
from energon_dali.shards.shard_reader import CHUNK_BYTES, KEPT_CHUNK_BYTES
from energon_dali.shards.storage import local
from energon_dali.shards.storage.store import ReadScope, read_scope
from tests.shards.tars import write_tar

SAMPLES = 400
WINDOW = 100


def content_of(number: int) -> bytes:
    """Returns between 1 and 5,000 bytes: less than a small part, and more."""
    return random.Random(number).randbytes(1 + number * 37 % 5000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(2):
        first = shard * SAMPLES
        write_tar(tmp_path / f"{shard}.tar", {f"{n:06}.bin": content_of(n) for n in range(first, first + SAMPLES)})
    prepare_dataset(tmp_path)
    return tmp_path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of shards, in bytes."""
    sizes: list[int] = []

    def pread(fd: int, size: int, offset: int, read: object = os.pread) -> bytes:
        sizes.append(size)
        return read(fd, size, offset)  # type: ignore[operator]

    monkeypatch.setattr(local.os, "pread", pread)
    return sizes


def in_windows(seed: int) -> list[int]:
    """Returns the numbers of all samples, shuffled within windows."""
    order: list[int] = []
    for start in range(0, 2 * SAMPLES, WINDOW):
        order += random.Random(seed + start).sample(range(start, start + WINDOW), WINDOW)
    return order


def read(reader: ShardReader, order: list[int], at_once: int) -> list[RawSample]:
    samples = []
    for start in range(0, len(order), at_once):
        places = [reader.locate(number) for number in order[start : start + at_once]]
        samples += reader.read([shard for shard, _ in places], [sample for _, sample in places])
    assert all(isinstance(sample, RawSample) for sample in samples)
    return samples  # type: ignore[return-value]


def test_small_parts_are_taken_out_of_chunks(folder: Path, reads: list[int]) -> None:
    reader = ShardReader(WebdatasetFolder(str(folder)))
    reader.expect_order(WINDOW, SAMPLES)
    order = in_windows(1)
    for number, sample in zip(order, read(reader, order, 32), strict=True):
        assert bytes(sample.parts["bin"]) == content_of(number)
    size = sum(os.path.getsize(folder / f"{shard}.tar") for shard in range(2))
    chunks = -(-size // CHUNK_BYTES) + 2
    large = sum(len(content_of(number)) + 512 >= shard_reader.SMALL_BYTES for number in order)
    assert len(reads) <= large + 2 * chunks, "each chunk once, and a sample that crosses its border"
    reader.close()


def test_single_samples_are_read_alone(folder: Path, reads: list[int]) -> None:
    reader = ShardReader(WebdatasetFolder(str(folder)))
    reader.expect_order(WINDOW, SAMPLES)
    read(reader, in_windows(2)[:50], 1)
    assert max(reads) < CHUNK_BYTES, "a blend takes one sample of each of its datasets"


def test_a_window_over_everything_reads_no_chunks(folder: Path, reads: list[int]) -> None:
    reader = ShardReader(WebdatasetFolder(str(folder)))
    reader.expect_order(2 * SAMPLES, 1)
    read(reader, in_windows(3), 32)
    assert max(reads) < CHUNK_BYTES


def test_chunks_that_serve_few_samples_are_given_up(
    folder: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shard_reader, "KEPT_CHUNK_BYTES", CHUNK_BYTES
    )  # room for one: each is gone when it is wanted again
    reader = ShardReader(WebdatasetFolder(str(folder)))
    reader.expect_order(WINDOW, SAMPLES)
    order = list(range(2 * SAMPLES))
    random.Random(4).shuffle(order)
    for number, sample in zip(order, read(reader, order, 16), strict=True):
        assert bytes(sample.parts["bin"]) == content_of(number)
    assert reads.count(CHUNK_BYTES) < 120
    reads.clear()
    read(reader, order, 16)
    assert CHUNK_BYTES not in reads


def test_a_chunk_that_cannot_be_read_loses_none_of_its_samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = 0

    def pread(fd: int, size: int, offset: int, read: Callable[[int, int, int], bytes] = os.pread) -> bytes:
        nonlocal chunks
        if size == CHUNK_BYTES:  # a bad sector somewhere in it
            chunks += 1
            raise OSError(errno.EIO, "bad sector")
        return read(fd, size, offset)

    monkeypatch.setattr(local.os, "pread", pread)
    reader = ShardReader(WebdatasetFolder(str(folder)))
    reader.expect_order(WINDOW, SAMPLES)
    order = in_windows(6)
    for number, sample in zip(order, read(reader, order, 32), strict=True):
        assert bytes(sample.parts["bin"]) == content_of(number)
    size = sum(os.path.getsize(folder / f"{shard}.tar") for shard in range(2))
    assert 0 < chunks <= size // CHUNK_BYTES, "each is tried once"


def test_their_memory_has_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_reader, "KEPT_CHUNK_BYTES", 3 * CHUNK_BYTES)
    readers = [ShardReader(WebdatasetFolder(str(folder))) for _ in range(3)]
    for reader in readers:
        reader.expect_order(WINDOW, SAMPLES)
        read(reader, in_windows(5), 32)
    chunks = [chunk for reader in readers for shard in reader._open.values() for chunk in shard.chunks.values()]
    assert 0 < sum(map(len, chunks)) <= 3 * CHUNK_BYTES < KEPT_CHUNK_BYTES
    for reader in readers:
        shards = list(reader._open.values())
        reader.close()
        assert not any(shard.chunks for shard in shards)


def test_a_shard_that_fails_is_not_asked_for_chunks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def pread(fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        raise OSError(errno.EIO, "bad disk")

    reader = ShardReader(WebdatasetFolder(str(folder)))
    reader.expect_order(WINDOW, SAMPLES)
    read(reader, [0], 1)
    with monkeypatch.context() as patch, read_scope(ReadScope(RetryPolicy(attempts=2), outlasts_stores=False)):
        patch.setattr(local.os, "pread", pread)
        numbers = list(range(1, 1 + WINDOW))
        failed = reader.read([0] * len(numbers), numbers)
    assert all(isinstance(sample, ShardError) for sample in failed)
    assert sizes.count(CHUNK_BYTES) <= 1
    assert len(sizes) <= len(numbers) + 2
    reader.close()
