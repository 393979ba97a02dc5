"""Damaged and hostile files of a dataset: right samples, or errors of this package, quickly and with short messages."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sqlite3
import struct
import zlib
from pathlib import Path

import pytest

from energon_dali.errors import DatasetError, DatasetFormatError, EnergonDaliError, StorageError, UntrustedCodeError
from energon_dali.shards import ShardReader, WebdatasetFolder, prepare_dataset
from energon_dali.shards.index import extent_file
from energon_dali.shards.index.jsonl_index import prepare_jsonl
from energon_dali.shards.index.tar_index import ExtentsBuilder
from energon_dali.shards.jsonl import JsonlFile, JsonlReader
from energon_dali.shards.meta.splits import DEFAULT_NAME
from tests.shards.tars import captions

EXTREMES = (0, 1, 255, 256, 65_535, (1 << 31) - 1, (1 << 32) - 1, (1 << 40) + 7, (1 << 63) - 1, (1 << 64) - 1)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dataset")
    captions(root)
    prepare_dataset(root)
    return root


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "copy"))


def read_everything(root: Path) -> list[str]:
    """Reads all samples by name and by position; returns what went wrong, in words."""
    problems = []
    try:
        folder = WebdatasetFolder(str(root))
        folder.split_ranges("train")
        reader = ShardReader(folder)
    except EnergonDaliError as error:
        return [str(error)]
    for shard, count in enumerate(folder.shard_counts):
        for sample in range(min(count, 10)):
            reader.name(shard, sample)
            try:
                (found,) = reader.read([shard], [sample])
            except EnergonDaliError as error:
                problems.append(str(error))
                continue
            if isinstance(found, DatasetError):
                problems.append(str(found))
    reader.close()
    assert all(len(problem) < 2000 for problem in problems)
    return problems


def mutated(data: bytes, draw: random.Random, start: int, stop: int) -> bytes:
    """Returns data with a number in start ... stop - 1 replaced by an extreme or a random one."""
    content = bytearray(data)
    width = draw.choice((1, 2, 4, 8))
    place = draw.randrange(start, max(start + 1, stop - width + 1))
    if draw.random() < 0.7:
        place -= place % width
    number = draw.choice((*EXTREMES, draw.getrandbits(64), draw.getrandbits(12)))
    content[place : place + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(content[: len(data)])


def with_right_checksums(data: bytes) -> bytes:
    """Returns an extents.bin whose sections have the checksums that its table says."""
    content = bytearray(data)
    _, _, shards, table, _, _ = extent_file._HEADER.unpack_from(content)
    for number in range(min(shards, 10)):
        line = table + number * 64
        if line + 64 > len(content):
            break
        offset, size, names = struct.unpack_from("<3Q", content, line)
        struct.pack_into("<Q", content, line + 48, zlib.crc32(content[offset : offset + size + names]))
    return bytes(content)


def test_extents_with_right_checksums_and_wrong_numbers_are_refused_or_harmless(root: Path) -> None:
    file = root / ".nv-meta" / "extents.bin"
    good = file.read_bytes()
    draw = random.Random(5)
    seen: set[str] = set()
    for _ in range(400):
        changed = mutated(good, draw, *draw.choice(((0, 128), (128, len(good) - 192), (len(good) - 192, len(good)))))
        file.write_bytes(with_right_checksums(changed))
        seen.update(word for problem in read_everything(root) for word in ("damaged", "changed") if word in problem)
    assert seen == {"damaged", "changed"}


@pytest.mark.parametrize(
    "names",
    [
        b'{"part_names": "jpg", "formats": []}',
        b'{"part_names": [1, 2, 3], "formats": [""]}',
        b"[" * 60,
        b"{}",
        b"[]",
        b"1e400",
        b'{"part_names":["a","\\ud800","c"],"formats":["","jpeg"]}',
        b"\xff\xfe\x00",
        b'{"part_names": [], "formats": []}',
    ],
)
def test_extents_with_odd_names_are_refused(names: bytes, root: Path) -> None:
    file = root / ".nv-meta" / "extents.bin"
    content = bytearray(file.read_bytes())
    _, _, _, table, _, _ = extent_file._HEADER.unpack_from(content)
    offset, size, room, *_ = struct.unpack_from("<8Q", content, table)
    assert len(names) <= room
    content[offset + size : offset + size + len(names)] = names
    struct.pack_into("<Q", content, table + 16, len(names))
    file.write_bytes(with_right_checksums(bytes(content)))
    with pytest.raises(DatasetFormatError, match=r"extents\.bin is damaged in the section of shard 0"):
        WebdatasetFolder(str(root)).index.shard(0)


def test_extents_of_other_shard_names_are_not_used(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    # The same identity and the same counts: only the digest of the names differs.
    assert WebdatasetFolder(str(root)).index.source == "extents"
    info = root / ".nv-meta" / ".info.json"
    info.write_text(info.read_text().replace("shard_1.tar", "moved_1.tar"))
    (root / "shard_1.tar").rename(root / "moved_1.tar")
    with caplog.at_level(logging.WARNING):
        assert WebdatasetFolder(str(root)).index.source == "sqlite"
    assert "extents.bin belongs to another index" in caplog.text


def test_a_damaged_tar_index_jsonl_index_or_database_gives_our_errors(root: Path) -> None:
    meta = root / ".nv-meta"
    (meta / "extents.bin").unlink()
    draw = random.Random(6)
    for file in (meta / "index.sqlite", root / "shard_0.tar.idx"):
        if file.suffix == ".idx":
            (meta / "index.sqlite").unlink()
        good = file.read_bytes()
        for _ in range(250):
            changed = mutated(good, draw, 0, len(good))
            file.write_bytes(changed if draw.random() < 0.9 else changed[: draw.randrange(len(changed))])
            read_everything(root)
        file.write_bytes(good)
        assert not read_everything(root)
    lines = root / "lines.jsonl"
    lines.write_bytes(b'{"a": 1}\n' * 20)
    prepare_jsonl(str(lines))
    index = root / "lines.jsonl.idx"
    good = index.read_bytes()
    for _ in range(250):
        index.write_bytes(mutated(good, draw, 0, len(good)))
        try:
            reader = JsonlReader(JsonlFile(lines))
        except EnergonDaliError:
            continue
        reader.read([0] * 20, list(range(20)))
        reader.close()


def test_rows_of_other_kinds_are_refused(root: Path) -> None:
    meta = root / ".nv-meta"
    (meta / "extents.bin").unlink()
    file = meta / "index.sqlite"
    good = file.read_bytes()
    changes = [
        f"UPDATE {table} SET {column} = {value} WHERE rowid = 1"
        for table, column in (
            ("samples", "sample_key"),
            ("samples", "sample_index"),
            ("sample_parts", "sample_index"),
            ("sample_parts", "part_name"),
            ("sample_parts", "content_byte_offset"),
            ("sample_parts", "content_byte_size"),
        )
        for value in (
            "x'ff00'",
            "'t\xff'",
            "-1",
            "9223372036854775807",
            "1.5",
            "0",
            "NULL",
            "CAST(x'ff' AS TEXT)",
            "1099511627776",
        )
    ]
    changes += [
        "DELETE FROM samples",
        "DELETE FROM sample_parts WHERE rowid < 5",
        "DROP TABLE samples",
        "INSERT INTO sample_parts SELECT * FROM sample_parts",
        "UPDATE sample_parts SET tar_file_id = 0",
    ]
    accepted = set()
    for change in changes:
        file.write_bytes(good)
        database = sqlite3.connect(file)
        try:
            database.execute(change)
        except sqlite3.IntegrityError:
            continue
        finally:
            database.commit()
            database.close()
        if not read_everything(root):
            accepted.add(change)
    assert accepted == {
        "UPDATE samples SET sample_index = 0 WHERE rowid = 1",  # as it was
        "UPDATE sample_parts SET sample_index = 0 WHERE rowid = 1",  # as it was
        "UPDATE sample_parts SET part_name = 't\xff' WHERE rowid = 1",  # a name like any other
        "DELETE FROM sample_parts WHERE rowid < 5",  # samples of fewer parts
        "DROP TABLE samples",  # an index without it is not used: the headers of the shards are read
    }


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (
            "ALTER TABLE samples RENAME TO t; CREATE VIEW samples AS WITH RECURSIVE n(i) AS (SELECT 1 "
            "UNION ALL SELECT i FROM n) SELECT i AS tar_file_id, i AS sample_key, i AS sample_index FROM n",
            "has the 'view' 'samples'",
        ),
        (
            "DROP TABLE samples; CREATE TABLE samples (tar_file_id INTEGER, sample_index INTEGER, "
            "sample_key AS (hex(zeroblob(400000000))))",
            "has the generated column 'sample_key'",
        ),
        ("CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples; END", "has the 'trigger' 't'"),
        ("CREATE VIRTUAL TABLE v USING fts5(a)", "has the virtual table 'v'"),
    ],
)
def test_a_database_with_more_than_tables_is_refused(statements: str, message: str, root: Path) -> None:
    (root / ".nv-meta" / "extents.bin").unlink()
    database = sqlite3.connect(root / ".nv-meta" / "index.sqlite")
    database.executescript(statements)
    database.close()
    with pytest.raises(DatasetFormatError, match=message):
        WebdatasetFolder(str(root)).index.shard(0)


def test_a_query_that_does_not_end_is_interrupted(root: Path) -> None:
    from energon_dali.shards.documents.sqlite_file import SqliteFile

    file = SqliteFile(root / ".nv-meta" / "index.sqlite")
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        file.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n").fetchone()
    assert file.execute("SELECT count(*) FROM samples").fetchone() == (12,)
    file.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"shard_counts": ' * 100_000, "cannot be parsed"),
        ('{"shard_counts": ' + "[" * 900 + "]" * 900 + "}", "more than 64 levels"),
        ('{"shard_counts": {"a.tar": 1e400}}', "does not fit"),
        ('{"shard_counts": {"a.tar": 1' + "0" * 5000 + "}}", "cannot be parsed"),
        ('{"shard_counts": {"a.tar": 1' + "0" * 100 + "}}", "no `shard_counts`"),
        ('{"shard_counts": {"a.tar": true}}', "no `shard_counts`"),
        ('{"shard_counts": {"../other/x.tar": 3}}', "leads out of the dataset"),
        ('{"shard_counts": {"/etc/passwd": 3}}', "leads out of the dataset"),
        ('{"shard_counts": {"a\\u0000b": 3}}', "leads out of the dataset"),
        ('{"shard_counts": {"s3://bucket/x.tar": 3}}', "leads out of the dataset"),
        (b"\xff\xfe{", "cannot be parsed"),
        (b"\x00" * 100, "cannot be parsed"),
        ("null", "holds NoneType"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_a_hostile_info_file_is_refused(content: str | bytes, message: str, root: Path) -> None:
    (root / ".nv-meta" / ".info.json").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DatasetFormatError, match=message) as caught:
        WebdatasetFolder(str(root))
    assert ".info.json" in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("subflavors: " + "[" * 50_000, "more than 64 levels"),
        ("__module__: megatron.energon\n__class__: [x]\n", "which are not both text"),
        ("__class__: CrudeWebdataset\n__module__: [x]\n", "which are not both text"),
        ("__class__: {a: b}\n", "which are not both text"),
        ("sample_type: {__module__: {}, __class__: TextSample}\nfield_map: {text: txt}\n", "which are not both text"),
        ("__class__: CrudeWebdataset\nsplit_config: ../../../dev/zero\n", "leads out of the dataset"),
        ("__class__: CrudeWebdataset\nsplit_config: /etc/passwd\n", "leads out of the dataset"),
        ("__class__: CrudeWebdataset\nsplit_config: [a]\n", "it is not text"),
        (
            "__class__: CrudeWebdataset\nsubflavors: &a [" + "x, " * 1000 + "x]\nb: [" + "*a, " * 2000 + "*a]",
            "1,000,000 values",
        ),
        (
            "a: &a ["
            + "lol, " * 50
            + "]\n"
            + "".join(f"{x}: &{x} [{f'*{y}, ' * 5}]\n" for x, y in zip("bcdef", "abcde", strict=True))
            + "__class__: CrudeWebdataset\nsubflavors: *f\n",
            "has a, b, c",
        ),
        (
            "__class__: CrudeWebdataset\nsubflavors: &a [&b [" + "x, " * 100 + "x], *b, *b, *b, *b, *b, *b, *b, *b]\n",
            r"\.\.\.",
        ),
        ("? [a]\n: b\n", "a key is not text"),
        ("1: 2\n[]: 3\n", "a key is not text|cannot be parsed"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_a_hostile_dataset_yaml_is_refused(content: str, message: str, root: Path) -> None:
    (root / ".nv-meta" / "dataset.yaml").write_text(content)
    folder = WebdatasetFolder(str(root))
    with pytest.raises((DatasetFormatError, UntrustedCodeError), match=message) as caught:
        _ = folder.dataset_config
    assert len(str(caught.value)) < 1500


def test_the_split_of_dataset_yaml_stays_inside(root: Path) -> None:
    (root / "split.yaml").write_text("split_parts: {train: []}")
    (root / ".nv-meta" / "dataset.yaml").write_text("__class__: CrudeWebdataset\nsplit_config: ../split.yaml\n")
    with pytest.raises(DatasetFormatError, match=r"split_config='\.\./split.yaml'.*leads out of the dataset"):
        WebdatasetFolder(str(root)).split_ranges("train")


@pytest.mark.parametrize(
    "pattern", ["{0..99999999}", "{a,b}" * 40, "a{1", "x" * 5000 + "{a,b}"], ids=lambda text: text[:9]
)
@pytest.mark.parametrize("where", ["split_parts: {{train: ['{}']}}", "split_parts: {{train: []}}\nexclude: ['{}']"])
def test_brace_bombs_are_refused(where: str, pattern: str, root: Path) -> None:
    (root / ".nv-meta" / DEFAULT_NAME).write_text(where.format(pattern))
    with pytest.raises(DatasetFormatError, match=r"split\.yaml: the pattern .* (gives|cannot)") as caught:
        WebdatasetFolder(str(root)).split_ranges("train")
    assert len(str(caught.value)) < 1000


def test_a_shard_that_a_part_names_very_often_is_refused(root: Path) -> None:
    split = root / ".nv-meta" / DEFAULT_NAME
    split.write_text(json.dumps({"split_parts": {"train": ["shard_0.tar"] * 1_000}}))
    assert len(WebdatasetFolder(str(root)).split_ranges("train")) == 1_000
    split.write_text(json.dumps({"split_parts": {"train": ["shard_0{,}.tar"] * 20_000}}))
    with pytest.raises(DatasetFormatError, match=r"names the shard 'shard_0.tar' 40,000 times in 'train'.*repetitions"):
        WebdatasetFolder(str(root)).split_ranges("train")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "name", [".nv-meta/split.yaml", ".nv-meta/.info.json", ".nv-meta/index.uuid", "shard_0.tar", "shard_0.tar.idx"]
)
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused(kind: str, name: str, root: Path) -> None:
    file = root / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    if name.endswith(".idx"):
        (root / ".nv-meta" / "extents.bin").unlink()
        (root / ".nv-meta" / "index.sqlite").unlink()
    problems = read_everything(root)
    assert problems
    assert "is a pipe, a socket or a device" in problems[0]
    if name.endswith(".tar"):
        with pytest.raises((DatasetError, StorageError), match="is a pipe, a socket or a device"):
            prepare_dataset(root)


def test_a_part_name_that_is_not_text_is_refused_when_it_is_indexed() -> None:
    builder = ExtentsBuilder("a.tar")
    builder.add_sample("k")
    with pytest.raises(DatasetError, match=r"a part whose name .* is not valid UTF-8"):
        builder.add_part("jp\udc80g", 512, 1)


def test_a_large_document_is_refused_unread(root: Path) -> None:
    with (root / ".nv-meta" / "split.yaml").open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no disk
    with pytest.raises(DatasetFormatError, match=r"split\.yaml has 1,099,511,627,776 bytes"):
        WebdatasetFolder(str(root)).split_ranges("train")
    info = root / ".nv-meta" / ".info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "more": "x" * 1000}))
    (root / ".nv-meta" / "index.uuid").write_bytes(b"x" * 5000)
    with pytest.raises(DatasetFormatError, match=r"index\.uuid has 5,000 bytes"):
        assert WebdatasetFolder(str(root)).uuid is None
