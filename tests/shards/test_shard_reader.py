"""Samples are read as they are in the tar, with every kind of index; a changed shard is an error, never wrong bytes."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from energon_dali.errors import DatasetError, DatasetFormatError, ShardError
from energon_dali.shards import RawSample, ShardExtents, ShardReader, WebdatasetFolder, prepare_dataset
from energon_dali.shards.index import extent_file
from energon_dali.shards.index.extents import COLUMNS
from energon_dali.shards.index.scattered_extents import ScatteredExtents
from tests.shards.tars import captions, write_tar

SOURCES = {"extents": (), "sqlite": ("extents.bin",), "tar": ("extents.bin", "index.sqlite")}


def read_all(reader: ShardReader, order: list[int]) -> list[RawSample | DatasetError]:
    places = [reader.locate(number) for number in order]
    return reader.read([shard for shard, _ in places], [sample for _, sample in places])


def contents(sample: RawSample | DatasetError) -> dict[str, bytes]:
    assert isinstance(sample, RawSample), sample
    return {name: bytes(content) for name, content in sample.parts.items()}


@pytest.fixture
def dataset(tmp_path: Path) -> tuple[Path, dict[str, dict[str, bytes]]]:
    expected = captions(tmp_path)
    prepare_dataset(tmp_path)
    return tmp_path, expected


@pytest.mark.parametrize("source", SOURCES)
def test_reads_every_sample_in_any_order(source: str, dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    root, expected = dataset
    for name in SOURCES[source]:
        (root / ".nv-meta" / name).unlink()
    reader = ShardReader(WebdatasetFolder(str(root)))
    order = list(range(12)) * 2
    random.Random(3).shuffle(order)
    samples = read_all(reader, order)
    assert reader.folder.index.source == source
    for number, sample in zip(order, samples, strict=True):
        assert isinstance(sample, RawSample)
        assert contents(sample) == expected[sample.key]
        assert list(sample.parts) == list(expected[sample.key])
        assert (sample.index, sample.key) == (number, f"s{sample.shard_index}_{sample.sample_index}")
        assert sample.shard == f"shard_{sample.shard_index}.tar"
        assert reader.index_of(sample.shard_index, sample.sample_index) == number
    reader.close()


@pytest.mark.parametrize("wanted", [{"jpg"}, {"txt"}, {"jpg", "meta.json"}, set()])
def test_only_wanted_parts_come(wanted: set[str], dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    root, expected = dataset
    reader = ShardReader(WebdatasetFolder(str(root)), wanted.__contains__)
    for sample in read_all(reader, [0, 5, 11]):
        assert isinstance(sample, RawSample)
        assert contents(sample) == {k: v for k, v in expected[sample.key].items() if k in wanted}
    reader.close()


def test_a_filter_that_raises_stop_iteration_ends_no_epoch(dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    reader = ShardReader(WebdatasetFolder(str(dataset[0])), lambda name: next(iter(())))
    with pytest.raises(RuntimeError, match=r"part_filter raised StopIteration for a part of shard_0\.tar"):
        reader.read([0], [0])


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_unusual_names_and_gaps(form: int, tmp_path: Path) -> None:
    """Long names, non-ASCII names, large unwanted parts, and files between the parts of a sample."""
    long = "d" * 60 + "/" + "k" * 60
    files = [("ä.jpg", b"1"), ("ä.big", bytes(50_000)), ("__meta__", b"no part"), ("ä.txt", b"2"), ("plain", b"?")]
    files += [(f"{long}.jpg", b"3"), (f"{long}.big", bytes(2_000_000)), (f"{long}.txt", b"")]
    write_tar(tmp_path / "a.tar", files, form)
    prepare_dataset(tmp_path)
    every = ShardReader(WebdatasetFolder(str(tmp_path)))
    some = ShardReader(WebdatasetFolder(str(tmp_path)), lambda name: name != "big")
    assert [contents(sample) for sample in some.read([0, 0], [0, 1])] == [
        {"jpg": b"1", "txt": b"2"},
        {"jpg": b"3", "txt": b""},
    ]
    first, second = every.read([0, 0], [0, 1])
    assert contents(first) == {"jpg": b"1", "big": bytes(50_000), "txt": b"2"}
    assert contents(second) == {"jpg": b"3", "big": bytes(2_000_000), "txt": b""}
    every.close()
    some.close()


def test_pickled_reader_reads_on(dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    root, expected = dataset
    reader = ShardReader(WebdatasetFolder(str(root)), max_open_shards=1)
    read_all(reader, [0, 4, 8, 0])
    copy: ShardReader = pickle.loads(pickle.dumps(reader))
    (sample,) = read_all(copy, [7])
    assert contents(sample) == expected["s1_3"]
    reader.close()
    (sample,) = read_all(reader, [7])  # a closed reader opens again
    assert contents(sample) == expected["s1_3"]
    reader.close()
    copy.close()


@pytest.mark.parametrize("source", SOURCES)
def test_a_bad_shard_loses_only_its_samples(source: str, dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    root, expected = dataset
    for name in SOURCES[source]:
        (root / ".nv-meta" / name).unlink()
    (root / "shard_1.tar").unlink()
    reader = ShardReader(WebdatasetFolder(str(root)))
    good, bad, other, bad_again = read_all(reader, [0, 5, 11, 6])
    assert contents(good) == expected["s0_0"]
    assert contents(other) == expected["s2_3"]
    for error in (bad, bad_again):
        assert isinstance(error, ShardError)
        assert error.shard == "shard_1.tar"
        assert "is missing" in str(error)
    reader.close()


@pytest.mark.parametrize("source", ["extents", "sqlite"])
def test_a_shard_of_other_samples_is_noticed(source: str, dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    """One sample less moves all that follow: each of them is an error, and none has the bytes of another."""
    root, expected = dataset
    for name in SOURCES[source]:
        (root / ".nv-meta" / name).unlink()
    files = {
        f"{key}.{part}": data for key, parts in expected.items() if key.startswith("s1") for part, data in parts.items()
    }
    for part in ("jpg", "txt", "meta.json"):
        del files[f"s1_1.{part}"]
    write_tar(root / "shard_1.tar", files | {"pad.bin": bytes(3000)})
    reader = ShardReader(WebdatasetFolder(str(root)))
    for number, sample in enumerate(read_all(reader, [4, 5, 6, 7])):
        if isinstance(sample, RawSample):
            assert contents(sample) == expected[f"s1_{number}"]
        else:
            assert "changed since it was indexed" in str(sample)
            assert "shard_1.tar" in str(sample)
    assert isinstance(read_all(reader, [5])[0], ShardError)
    reader.close()


@pytest.mark.parametrize("change", [512, -512])
def test_a_shard_of_another_size_is_noticed_when_it_is_opened(
    change: int, dataset: tuple[Path, dict[str, dict[str, bytes]]]
) -> None:
    """Even where the samples that are read are still there."""
    root, expected = dataset
    size = (root / "shard_1.tar").stat().st_size
    os.truncate(root / "shard_1.tar", size + change)
    reader = ShardReader(WebdatasetFolder(str(root)))
    good, bad = read_all(reader, [0, 4])
    assert contents(good) == expected["s0_0"]
    assert isinstance(bad, ShardError)
    assert f"it has {size + change} bytes and had {size}" in str(bad)
    reader.close()


def test_the_shard_that_was_not_used_lately_is_dropped(dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    reader = ShardReader(WebdatasetFolder(str(dataset[0])), max_open_shards=2)
    for shards, kept in (([0, 1], {0, 1}), ([0], {0, 1}), ([2], {0, 2}), ([1], {1, 2})):
        reader.read(shards, [0] * len(shards))
        assert set(reader._open) == kept
    reader.close()


def test_only_slow_reads_in_a_row_make_a_disk_slow(dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    reader = ShardReader(WebdatasetFolder(str(dataset[0])))
    for _ in range(3):
        for seconds in (1.0, 1.0, 1.0, 0.0):
            reader.note_speed(seconds, 1, 1000)
            assert reader.planned_reads(10, 1) is None
    reader.read([0], [0])
    for _ in range(5):  # the first one opened a shard, and says nothing of the disk
        assert reader.planned_reads(10, 1) is None
        reader.note_speed(1.0, 1, 1000)
    reads = reader.planned_reads(10, 1)
    assert reads is not None
    reads.close()
    reader.close()


@pytest.mark.parametrize("source", ["extents", "sqlite"])
def test_a_shard_that_shrank_is_noticed_while_it_is_open(
    source: str, dataset: tuple[Path, dict[str, dict[str, bytes]]]
) -> None:
    root, expected = dataset
    for name in SOURCES[source]:
        (root / ".nv-meta" / name).unlink()
    reader = ShardReader(WebdatasetFolder(str(root)))
    read_all(reader, [4])
    size = reader.folder.index.shard(1).parts(3)[0][1]
    for cut in (size + 1, size, size - 1, size - 400, size - 512):
        os.truncate(root / "shard_1.tar", cut)
        good, bad = read_all(reader, [4, 7])
        assert contents(good) == expected["s1_0"]
        assert isinstance(bad, ShardError)
        assert "ends before" in str(bad)
    reader.close()


def test_extents_of_another_index_are_not_used(
    dataset: tuple[Path, dict[str, dict[str, bytes]]], caplog: pytest.LogCaptureFixture
) -> None:
    root, _ = dataset
    old = root / "old.bin"
    shutil.copy(root / ".nv-meta" / "extents.bin", old)
    files = {"new.jpg": b"1", "new.txt": b"2"}
    write_tar(root / "shard_0.tar", files)
    prepare_dataset(root)
    shutil.copy(old, root / ".nv-meta" / "extents.bin")
    reader = ShardReader(WebdatasetFolder(str(root)))
    (sample,) = reader.read([0], [0])
    assert contents(sample) == {"jpg": b"1", "txt": b"2"}
    assert reader.folder.index.source == "sqlite"
    assert "belongs to another index" in caplog.text
    reader.close()


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("extents.bin", lambda data: data[:200], "bytes and should have"),
        ("extents.bin", lambda data: b"garbage", "does not begin like"),
        ("extents.bin", lambda data: data[:150] + b"\x55" + data[151:], "is damaged in the section"),
        ("index.sqlite", lambda data: b"garbage" * 999, "cannot be read"),
    ],
)
def test_damaged_index_is_named(
    name: str, damage: object, message: str, dataset: tuple[Path, dict[str, dict[str, bytes]]]
) -> None:
    root, _ = dataset
    path = root / ".nv-meta" / name
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    if name != "extents.bin":
        (root / ".nv-meta" / "extents.bin").unlink()
    reader = ShardReader(WebdatasetFolder(str(root)))
    (error,) = reader.read([0], [0])
    assert isinstance(error, DatasetFormatError)
    assert name in str(error)
    assert message in str(error)
    assert "energon-dali prepare" in str(error)
    reader.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        (b"1234567", "not a list of 8-byte offsets"),
        (bytes([9] * 8 + [1] * 8), "do not grow"),
        (bytes(24), "changed since it was indexed"),
    ],
)
def test_without_other_indexes_the_tar_index_is_checked(
    content: bytes | None, message: str, dataset: tuple[Path, dict[str, dict[str, bytes]]]
) -> None:
    root, expected = dataset
    for name in SOURCES["tar"]:
        (root / ".nv-meta" / name).unlink()
    (root / "shard_0.tar.idx").unlink()
    if content is not None:
        (root / "shard_0.tar.idx").write_bytes(content)
    reader = ShardReader(WebdatasetFolder(str(root)))
    bad, good = reader.read([0, 1], [0, 0])
    assert isinstance(bad, DatasetError)
    assert message in str(bad)
    assert "energon-dali prepare" in str(bad)
    assert contents(good) == expected["s1_0"]
    reader.close()


def test_a_forked_process_reads_on(dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    """A child that inherits an open reader opens its own files, and closing them leaves the parent's open."""
    root, _ = dataset
    program = f"""
import os
from energon_dali.shards import ShardReader, WebdatasetFolder
reader = ShardReader(WebdatasetFolder({str(root)!r}))
reader.read([0, 1], [0, 0])
child = os.fork()
if child == 0:
    (sample,) = reader.read([1], [2])
    reader.close()
    os._exit(0 if sample.key == "s1_2" else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
(sample,) = reader.read([1], [3])
print(status, sample.key)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["0", "s1_3"], done.stderr


def test_asking_for_what_is_not_there(dataset: tuple[Path, dict[str, dict[str, bytes]]]) -> None:
    reader = ShardReader(WebdatasetFolder(str(dataset[0])))
    too_far, no_shard = reader.read([0, 9], [4, 0])
    assert "has 4 samples, and sample 4" in str(too_far)
    assert "has 3 shards, and shard 9" in str(no_shard)
    with pytest.raises(DatasetError, match="has 12 samples, and sample 12"):
        reader.locate(12)
    reader.close()


def test_entries_that_are_read_one_by_one_are_those_of_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that takes samples from everywhere reads entries of the index instead of mapping it, if it is large."""
    captions(tmp_path)
    prepare_dataset(tmp_path)
    mapped, scattered = ShardReader(WebdatasetFolder(str(tmp_path))), ShardReader(WebdatasetFolder(str(tmp_path)))
    small = ShardReader(WebdatasetFolder(str(tmp_path)))
    for reader in (small, scattered):
        reader.expect_order(100_000, 10)
    assert type(small.folder.index.shard(0)) is ShardExtents
    monkeypatch.setattr(extent_file, "MAPPED_AT_ONCE_BYTES", 0)
    mapped.expect_order(100_000, 100_000)
    for shard, count in enumerate(mapped.folder.shard_counts):
        one, other = mapped.folder.index.shard(shard), scattered.folder.index.shard(shard)
        assert (type(one), type(other)) == (ShardExtents, ScatteredExtents)
        for name, _ in COLUMNS:
            assert list(getattr(one, name)) == list(getattr(other, name)) == one.array(name).tolist()
            assert one.array(name).tolist() == other.array(name).tolist()
        rows = [shard] * count, list(range(count))
        random.Random(shard).shuffle(rows[1])
        assert [repr(raw) for raw in mapped.read(*rows)] == [repr(raw) for raw in scattered.read(*rows)]
    for reader in (small, mapped, scattered):
        reader.close()
