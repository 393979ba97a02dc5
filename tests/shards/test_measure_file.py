"""The file of measures: narrow columns, right values or an error for damaged files, and pickles by path."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.plan.measured import BUILT_IN, NOT_MEASURED, smallest_width
from energon_dali.shards.measures.description import BLOCK, HEADER, MAGIC, MAX_VALUE, ShardFacts
from energon_dali.shards.measures.measure_file import MeasureFile
from energon_dali.shards.measures.writer import MeasureWriter
from energon_dali.shards.storage import StoragePath

COUNTS = (5, BLOCK, 300)
NAMES = (*BUILT_IN, "lines")
ALL = np.arange(sum(COUNTS))


def values() -> Any:
    rows = np.stack([ALL % 100, ALL % 3, ALL, ALL * ALL, ALL * 0 + 7], axis=1)
    rows[::11] = NOT_MEASURED
    return rows


def write(folder: Path, **changes: Any) -> StoragePath:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    rows = values()
    with MeasureWriter(scratch) as writer:
        writer.add((), rows[:1])  # a chunk of which nothing could be measured comes first
        for first in range(1, len(rows), 10_000):
            writer.add(NAMES, rows[first : first + 10_000])
        facts = {
            "uuid": "some-uuid",
            "shards": [ShardFacts(f"{n}.tar", count, f"layout {n}") for n, count in enumerate(COUNTS)],
            "encoder": "module:Class",
            "fingerprint": {"measuring": "1"},
            "reasons": {"load: DecodeError": int((rows[:, 0] < 0).sum())},
        }
        writer.finish(folder / "measures.bin", **{**facts, **changes})
    return StoragePath.of(folder / "measures.bin")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> StoragePath:
    return write(tmp_path_factory.mktemp("measures"))


def test_values_come_back_in_any_order(written: StoragePath) -> None:
    file = MeasureFile(written)
    order = np.random.default_rng(1).permutation(len(ALL))
    for column, name in enumerate(NAMES):
        np.testing.assert_array_equal(file.take(name, order), values()[order, column])
    known = values()[:, 0] >= 0
    tokens = np.where(known, values()[:, 0] + values()[:, 1], NOT_MEASURED)
    np.testing.assert_array_equal(file.take("tokens", ALL), tokens)
    assert file.take("lines", ALL[:0]).tolist() == []
    assert file.names == NAMES
    assert file.num_samples == len(ALL)


def test_columns_are_as_narrow_as_their_values(written: StoragePath) -> None:
    columns = {column.name: column for column in MeasureFile(written).description.columns}
    assert [columns[name].width for name in NAMES] == [1, 1, 4, 8, 1]
    known = values()[values()[:, 0] >= 0]
    for number, name in enumerate(NAMES):
        column = columns[name]
        assert (column.smallest, column.largest, column.total) == (
            int(known[:, number].min()),
            int(known[:, number].max()),
            int(known[:, number].sum()),
        )


@pytest.mark.parametrize(("largest", "width"), [(0, 1), (127, 1), (128, 2), (1 << 31, 8), (MAX_VALUE, 8)])
def test_the_width_of_a_value(largest: int, width: int) -> None:
    assert smallest_width(largest) == width


def test_files_are_compared_and_pickled_by_identity(written: StoragePath, tmp_path: Path) -> None:
    file, other = MeasureFile(written), MeasureFile(write(tmp_path, uuid="another-uuid"))
    again = pickle.loads(pickle.dumps(file))
    assert again == file
    assert hash(again) == hash(file)
    assert len(pickle.dumps(file)) < 500
    assert other != file
    content = pickle.dumps(other)
    write(tmp_path)
    with pytest.raises(DatasetFormatError, match="was written again"):
        pickle.loads(content)


@pytest.mark.parametrize(("name", "numbers"), [("words", [0]), ("lines", [-1]), ("lines", [len(ALL)])])
def test_what_is_not_there_is_an_error(written: StoragePath, name: str, numbers: list[int]) -> None:
    with pytest.raises(ConfigError):
        MeasureFile(written).take(name, np.array(numbers))


def test_a_dataset_without_samples_and_one_of_which_nothing_was_measured(tmp_path: Path) -> None:
    for count in (0, 3):
        with MeasureWriter(tmp_path) as writer:
            writer.add((), np.zeros((count, 0), np.int64))
            shards = [ShardFacts("0.tar", count, "")]
            writer.finish(
                tmp_path / "m.bin", uuid="", shards=shards, encoder="", fingerprint={}, reasons={"load": count}
            )
        file = MeasureFile(StoragePath.of(tmp_path / "m.bin"))
        assert file.take("tokens", np.arange(count)).tolist() == [NOT_MEASURED] * count


def readable(path: StoragePath) -> dict[str, Any] | None:
    """Returns all values of a file, None if it is refused."""
    try:
        file = MeasureFile(path)
        return {name: file.take(name, ALL) for name in NAMES}
    except (DatasetFormatError, ConfigError):
        return None


def test_no_flipped_byte_changes_a_value(written: StoragePath, tmp_path: Path) -> None:
    """Every byte outside of padding is covered by a checksum."""
    good = written.read_bytes()
    expected = readable(written)
    assert expected is not None
    draw = random.Random(3)
    _, description, size, *_ = HEADER.unpack_from(good)
    path = StoragePath.of(tmp_path / "m.bin")
    places = [draw.randrange(*bounds) for bounds in ((0, 128), (128, description), (description, len(good)))] + [
        draw.randrange(len(good)) for _ in range(300)
    ]
    refused = 0
    for place in places:
        content = bytearray(good)
        content[place] ^= 1 << draw.randrange(8)
        path.local.write_bytes(bytes(content))
        found = readable(path)
        if found is None:
            refused += 1
        else:
            assert all(np.array_equal(found[name], expected[name]) for name in NAMES)
    assert refused > 290
    assert size > 0


def test_files_that_are_cut_off_are_refused(written: StoragePath, tmp_path: Path) -> None:
    good = written.read_bytes()
    path = StoragePath.of(tmp_path / "m.bin")
    for length in (0, 7, 64, 127, 128, 1000, len(good) // 2, len(good) - 1):
        path.local.write_bytes(good[:length])
        assert readable(path) is None
    path.local.write_bytes(good + b"\0")
    assert readable(path) is None


def test_a_file_that_shrinks_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path)
    file = MeasureFile(path)
    file.take("lines", ALL)
    with path.local.open("r+b") as content:
        content.truncate(4096)
    with pytest.raises(DatasetFormatError, match="when it was opened"):
        file.take("lines", ALL)


def hostile(good: bytes, change: Any) -> bytes:
    """Returns a file whose description was changed, with the right checksum."""
    _, offset, size, _, _ = HEADER.unpack_from(good)
    found = json.loads(good[offset : offset + size])
    change(found)
    content = json.dumps(found).encode()
    header = HEADER.pack(MAGIC, offset, len(content), offset + len(content), hashlib.sha256(content).digest())
    return header + good[HEADER.size : offset] + content


CHANGES: dict[str, Any] = {
    "no columns": lambda found: found.update(columns=[]),
    "a column twice": lambda found: found["columns"].append(found["columns"][0]),
    "a column beyond the end": lambda found: found["columns"][0].update(offset=1 << 40),
    "a column before the beginning": lambda found: found["columns"][0].update(offset=-64),
    "a wide column": lambda found: found["columns"][0].update(width=8),
    "a strange width": lambda found: found["columns"][0].update(width=3),
    "a width that is text": lambda found: found["columns"][0].update(width="i4"),
    "checksums that are missing": lambda found: found["columns"][0].update(checksums=[]),
    "a name that is taken": lambda found: found["columns"][4].update(name="tokens"),
    "a name with spaces": lambda found: found["columns"][4].update(name="a b"),
    "more samples": lambda found: found["shards"].append(["x.tar", 1 << 31, ""]),
    "a negative count": lambda found: found["shards"][0].__setitem__(1, -5),
    "shards without counts": lambda found: found.update(shards=[["x.tar"]]),
    "shards that are a number": lambda found: found.update(shards=5),
    "a fingerprint that is a list": lambda found: found.update(fingerprint=[1]),
    "reasons that are numbers": lambda found: found.update(reasons=[[1, 2]]),
    "a largest value that is too small": lambda found: found["columns"][2].update(largest=5),
    "no uuid": lambda found: found.pop("uuid"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_hostile_descriptions_with_right_checksums_are_refused(
    written: StoragePath, tmp_path: Path, change: Any
) -> None:
    path = StoragePath.of(tmp_path / "m.bin")
    path.local.write_bytes(hostile(written.read_bytes(), lambda found: None))
    assert readable(path) is not None
    path.local.write_bytes(hostile(written.read_bytes(), change))
    assert readable(path) is None


def test_names_may_not_change_between_samples(tmp_path: Path) -> None:
    with MeasureWriter(tmp_path) as writer:
        writer.add(BUILT_IN, np.zeros((2, 4), np.int64))
        with pytest.raises(ValueError, match="lines"):
            writer.add(NAMES, np.zeros((2, 5), np.int64))
