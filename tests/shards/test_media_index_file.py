"""The file `media_index.bin`: prepare-media writes it anywhere and takes over shards; damage of it is refused."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.remote.s3_server import S3Server
from energon_dali.av import MediaFile
from energon_dali.av.media_indexing import MediaIndexer, index_media
from energon_dali.av.media_indices import MediaIndices
from energon_dali.av.stored_index import pack_media_index
from energon_dali.decode.media_filter import MediaFilter
from energon_dali.errors import DatasetFormatError
from energon_dali.shards import StoragePath, WebdatasetFolder, prepare_dataset
from energon_dali.shards.index import media_index_file
from energon_dali.shards.index.media_index_file import (
    MEDIA_INDEX_NAME,
    MediaIndexFile,
    MediaIndexFileWriter,
    MediaSection,
    entry_without_index,
    place_of_name,
)
from energon_dali.shards.prepare import scanning
from energon_dali.shards.prepare.media_tables import MediaCounts, add_media_metadata
from tests.av.corpus import audio_file, video_file
from tests.shards.tars import write_tar

ROOT = Path(__file__).parents[2]
VIDEOS = ("h264-aac-mp4", "vp9-opus-webm", "mpeg4-mp3-avi", "h264-b-mkv", "hevc-mp4")
BY_SUFFIX = MediaFilter("EXTENSION")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def content_of(number: int) -> tuple[str, bytes]:
    """Returns (suffix, content) of a video, of which there are five."""
    name = VIDEOS[number % len(VIDEOS)]
    return name.rpartition("-")[2], video_file(name)


def write_shard(root: Path, number: int, samples: int = 3) -> None:
    files: dict[str, bytes] = {}
    for sample in range(samples):
        suffix, content = content_of(number + sample)
        files |= {f"s{number}_{sample}.{suffix}": content, f"s{number}_{sample}.txt": b"a video"}
    files[f"s{number}_x.mp3"] = audio_file("mp3")
    files[f"s{number}_y.mp4"] = b"not a video"
    write_tar(root / f"shard_{number}.tar", files)


def write_dataset(root: Path, shards: int = 3) -> WebdatasetFolder:
    for number in range(shards):
        write_shard(root, number)
    prepare_dataset(root)
    return WebdatasetFolder(str(root))


@dataclass(frozen=True)
class CountingIndexer:
    """Counts in a file what it indexes, in any process."""

    path: str
    version: str = MediaIndexer().version

    def __call__(self, content: bytes) -> bytes:
        with open(self.path, "ab") as file:
            file.write(b".")
        return MediaIndexer()(content)

    def taken(self) -> int:
        """Returns how many media were indexed since the last call."""
        path = Path(self.path)
        count = len(path.read_bytes()) if path.exists() else 0
        path.unlink(missing_ok=True)
        return count


def table_of(root: Path) -> list[tuple[str, str, str]]:
    with sqlite3.connect(root / ".nv-meta" / "index.sqlite") as db:
        return sorted(db.execute("SELECT entry_key, metadata_type, metadata_json FROM media_metadata"))


def file_of(root: Path) -> bytes:
    return (root / ".nv-meta" / MEDIA_INDEX_NAME).read_bytes()


def check_all(folder: WebdatasetFolder, indices: MediaIndices) -> int:
    """Compares every entry with an index of the part; returns how many media have one."""
    found = 0
    for number, name in enumerate(folder.shard_names):
        shard = (folder.root / name).read_bytes()
        extents = folder.index.shard(number)
        for sample in range(extents.num_samples):
            for part, offset, size in extents.parts(sample):
                index = indices.find(number, offset)
                assert indices.find(number, offset + 512) is None
                if part == "txt" or size < 100:
                    assert index is None
                    assert "not selected" in indices.reason(number, offset)
                    continue
                with MediaFile(shard[offset : offset + size]) as file:
                    expected = index_media(file)
                assert index is not None
                assert pack_media_index(index) == pack_media_index(expected)
                assert indices.reason(number, offset) == ""
                found += 1
    return found


def test_every_medium_of_a_dataset_is_found(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    missing = MediaIndices.of_folder(folder)
    assert missing.find(0, 512) is None
    assert "energon-dali prepare-media" in missing.obstacle
    plain = add_media_metadata(tmp_path, BY_SUFFIX)
    assert (plain.described, plain.indexed) == (12, 0)
    assert not (tmp_path / ".nv-meta" / MEDIA_INDEX_NAME).exists()
    rows = table_of(tmp_path)
    counts = add_media_metadata(tmp_path, BY_SUFFIX, index_media=MediaIndexer())
    assert counts == MediaCounts(described=12, indexed=12)
    assert table_of(tmp_path) == rows, "Energon's table does not depend on it"
    indices = MediaIndices.of_folder(folder)
    assert indices.obstacle == ""
    assert check_all(folder, indices) == 12
    assert check_all(folder, pickle.loads(pickle.dumps(indices))) == 12
    assert indices.find(99, 512) is None
    indices.close()
    assert check_all(folder, indices) == 12


def test_reasons_are_stored_and_counted(tmp_path: Path) -> None:
    scattered = video_file("h264-mp4")
    write_tar(tmp_path / "a.tar", {"one.mp4": scattered, "two.mp4": video_file("h264-mkv")})
    prepare_dataset(tmp_path)

    counts = add_media_metadata(tmp_path, BY_SUFFIX, index_media=_Refusing())
    assert (counts.indexed, counts.without_index) == (0, 2)
    assert dict(counts.reasons) == {"It is in the way": 2}
    folder = WebdatasetFolder(str(tmp_path))
    indices = MediaIndices.of_folder(folder)
    (_, offset, _), *_ = folder.index.shard(0).parts(0)
    assert indices.find(0, offset) is None
    assert indices.reason(0, offset) == "It is in the way"


class _Refusing:
    version = "none"

    def __call__(self, content: bytes) -> bytes:
        return entry_without_index("It is in the way")


def test_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path, shards=6)
    add_media_metadata(tmp_path, BY_SUFFIX, index_media=MediaIndexer())
    alone = file_of(tmp_path)
    (tmp_path / ".nv-meta" / MEDIA_INDEX_NAME).unlink()
    monkeypatch.setattr(scanning, "INDEXED_BYTES_PER_WORKER", 1)
    add_media_metadata(tmp_path, BY_SUFFIX, index_media=MediaIndexer(), num_workers=2)
    assert file_of(tmp_path) == alone


@pytest.mark.sweep
def test_a_ray_cluster_writes_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    write_dataset(tmp_path, shards=4)
    add_media_metadata(tmp_path, BY_SUFFIX, index_media=MediaIndexer())
    alone = file_of(tmp_path)
    (tmp_path / ".nv-meta" / MEDIA_INDEX_NAME).unlink()
    add_media_metadata(tmp_path, BY_SUFFIX, index_media=MediaIndexer(), ray_address="local")
    assert file_of(tmp_path) == alone


def test_only_new_and_changed_shards_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, indexer = tmp_path / "data", CountingIndexer(str(tmp_path / "count"))
    write_dataset(root, shards=2)
    add_media_metadata(root, BY_SUFFIX, index_media=indexer)
    assert indexer.taken() == 8
    first = file_of(root)
    add_media_metadata(root, BY_SUFFIX, index_media=indexer)
    assert indexer.taken() == 0
    assert file_of(root) == first

    write_shard(root, 2)
    prepare_dataset(root, media_filter=BY_SUFFIX)
    folder = WebdatasetFolder(str(root))
    stale = MediaIndices.of_folder(folder)
    assert stale.find(0, 512) is None
    assert "was made for other samples" in stale.obstacle
    assert "was made for other samples" in caplog.text
    counts = add_media_metadata(root, BY_SUFFIX, index_media=indexer)
    assert indexer.taken() == 4, "the new shard"
    assert counts == MediaCounts(described=12, indexed=12)
    assert check_all(folder, MediaIndices.of_folder(folder)) == 12
    taken_over = file_of(root)
    (root / ".nv-meta" / MEDIA_INDEX_NAME).unlink()
    add_media_metadata(root, BY_SUFFIX, index_media=indexer)
    assert indexer.taken() == 12
    assert file_of(root) == taken_over

    content = bytearray((root / "shard_1.tar").read_bytes())
    content[700:720] = bytes(20)
    (root / "shard_1.tar").write_bytes(content)
    add_media_metadata(root, BY_SUFFIX, index_media=indexer)
    assert indexer.taken() in (3, 4), "the changed shard, one of whose files may be damaged now"

    add_media_metadata(root, MediaFilter("GLOB", ("*.mp4",)), index_media=indexer)
    assert indexer.taken() > 0, "other media are selected"


def test_shards_whose_descriptions_were_dropped_are_read_again(tmp_path: Path) -> None:
    root, indexer = tmp_path / "data", CountingIndexer(str(tmp_path / "count"))
    write_dataset(root, shards=2)
    add_media_metadata(root, BY_SUFFIX, index_media=indexer)
    rows = table_of(root)
    prepare_dataset(root)  # writes the tables again, without media
    indices = MediaIndices.of_folder(WebdatasetFolder(str(root)))
    assert indices.obstacle == "", "the samples are the same, and so are their indices"
    indexer.taken()
    add_media_metadata(root, BY_SUFFIX, index_media=indexer)
    assert indexer.taken() == 8
    assert table_of(root) == rows


def test_an_interrupted_run_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, indexer = tmp_path / "data", CountingIndexer(str(tmp_path / "count"))
    write_dataset(root, shards=3)

    def stop(scans: Sequence[object], total: int) -> object:
        for number, scan in enumerate(scans):
            if number == 2:
                raise KeyboardInterrupt
            yield scan

    with pytest.raises(KeyboardInterrupt):
        add_media_metadata(root, BY_SUFFIX, index_media=indexer, progress=stop)  # type: ignore[arg-type]
    assert indexer.taken() == 12, "the third shard was scanned too"
    assert not (root / ".nv-meta" / MEDIA_INDEX_NAME).exists()
    add_media_metadata(root, BY_SUFFIX, index_media=indexer)
    assert indexer.taken() == 0
    folder = WebdatasetFolder(str(root))
    assert check_all(folder, MediaIndices.of_folder(folder)) == 12


PROGRAM = """
import itertools, os, sys
from energon_dali.av.media_indexing import MediaIndexer
from energon_dali.decode.media_filter import MediaFilter
from energon_dali.shards.prepare.media_tables import add_media_metadata

root, instants = sys.argv[1], [int(instant) for instant in sys.argv[2:]]

def index_until(instant):
    events = itertools.count()
    def hook(event, args):
        if event in EVENTS and next(events) == instant:
            os._exit(9)  # as SIGKILL does: nothing is cleaned up
    EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "sqlite3.connect", "os.fsync"}
    sys.addaudithook(hook)
    try:
        add_media_metadata(root, MediaFilter("EXTENSION"), index_media=MediaIndexer())
    finally:
        os._exit(1 if sys.exc_info()[0] else 0)

for instant in instants:
    child = os.fork()
    if child == 0:
        index_until(instant)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), status
    print(status)
"""


@pytest.mark.parametrize("instants", [4, pytest.param(20, marks=pytest.mark.sweep)])
def test_killed_at_any_instant(tmp_path: Path, instants: int) -> None:
    root = tmp_path / "data"
    folder = write_dataset(root, shards=3)
    add_media_metadata(root, BY_SUFFIX, index_media=MediaIndexer())
    expected, rows = file_of(root), table_of(root)
    (root / ".nv-meta" / MEDIA_INDEX_NAME).unlink()
    chosen = sorted(random.Random(instants).sample(range(5, 90), instants))
    command = [sys.executable, "-c", PROGRAM, str(root), *map(str, chosen)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert "9" in done.stdout.split()
    path = root / ".nv-meta" / MEDIA_INDEX_NAME
    assert not path.exists() or path.read_bytes() == expected, "all of it or nothing"
    add_media_metadata(root, BY_SUFFIX, index_media=MediaIndexer())
    assert file_of(root) == expected
    assert table_of(root) == rows
    assert check_all(folder, MediaIndices.of_folder(folder)) == 12
    assert not list(root.rglob(".energon-dali-*"))


def test_a_plain_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    names = []
    for number in range(5):
        suffix, content = content_of(number)
        names.append(f"deep/{number}.{suffix}" if number % 2 else f"{number}.{suffix}")
        (tmp_path / names[-1]).write_bytes(content)
    (tmp_path / "readme.txt").write_bytes(b"text")
    counts = add_media_metadata(tmp_path, BY_SUFFIX, index_media=MediaIndexer())
    assert counts == MediaCounts(described=5, indexed=5)
    indices = MediaIndices(StoragePath.of(tmp_path), {})
    for name in names:
        index = indices.find_file(name)
        assert index is not None
        with MediaFile(str(tmp_path / name)) as file:
            assert pack_media_index(index) == pack_media_index(index_media(file))
    assert indices.find_file("readme.txt") is None
    assert "not selected" in indices.reason(0, place_of_name("readme.txt"))


def test_a_remote_dataset_fetches_a_section_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "buckets" / "data" / "set"
    local = write_dataset(root, shards=3)
    with S3Server(tmp_path / "buckets") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        counts = add_media_metadata("s3://data/set", BY_SUFFIX, index_media=MediaIndexer())
        assert counts == MediaCounts(described=12, indexed=12)
        folder = WebdatasetFolder("s3://data/set")
        places = [folder.index.shard(0).parts(sample)[0][1] for sample in range(3)]
        indices = MediaIndices.of_folder(folder)
        assert indices.obstacle == ""
        server.reset()
        assert all(indices.find(0, place) for place in places)
        assert server.counters()["requests_by_suffix"].get("bin") == 1
        server.reset()
        indices.fetch([0, 1, 2, 7])
        assert server.counters()["requests_by_suffix"].get("bin") == 2, "the first one was fetched"
        server.reset()
        assert indices.find(2, folder.index.shard(2).parts(0)[0][1])
        assert server.counters()["requests_by_suffix"].get("bin") is None
        monkeypatch.setattr(media_index_file, "_WHOLE_SECTION_BYTES", 100)
        indices.close()
        assert indices.obstacle == ""
        server.reset()
        assert all(indices.find(0, place) for place in places)
        assert server.counters()["requests_by_suffix"].get("bin") == 1 + len(places), "the columns, and each entry"
        assert check_all(folder, indices) == 12
    assert check_all(local, MediaIndices.of_folder(local)) == 12


# --- damage -----------------------------------------------------------------------------------------------------------


def small_file(path: Path) -> list[list[tuple[int, bytes]]]:
    """Writes a file of three sections; returns their entries."""
    sections = [[(512 * (at + 1), bytes([1 + at] * (3 * at + number))) for at in range(4)] for number in range(1, 4)]
    with MediaIndexFileWriter(path) as writer:
        for number, entries in enumerate(sections):
            writer.add(MediaSection(f"{number}.tar", "1 x", "maker", 4, 4), list(reversed(entries)))
        writer.finish("uuid", {f"{number}.tar": 4 for number in range(3)})
    return sections


def read_all(path: Path) -> list[list[tuple[int, bytes]]]:
    file = MediaIndexFile(StoragePath.of(path))
    try:
        return [
            [(place, bytes(file.entry(number, place) or b"")) for place, _ in file.entries(number)]
            for number in range(file.num_sections)
        ]
    finally:
        file.close()


def test_any_damage_of_the_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / MEDIA_INDEX_NAME
    sections = small_file(path)
    content = path.read_bytes()
    assert read_all(path) == sections
    refused = 0
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            found = read_all(path)
        except DatasetFormatError:
            refused += 1
            continue
        # Entries have checksums of their own, and the identity is compared by those who open the file.
        assert [[place for place, _ in section] for section in found] == [[512, 1024, 1536, 2048]] * 3
    assert refused > len(content) // 2
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at])
        with pytest.raises(DatasetFormatError, match="energon-dali prepare-media"):
            read_all(path)


def test_a_file_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / MEDIA_INDEX_NAME
    small_file(path)
    file = MediaIndexFile(StoragePath.of(path))
    assert file.entry(1, 512)
    os.truncate(path, 200)
    with pytest.raises(DatasetFormatError, match=r"has 200 bytes and had \d+ when it was opened"):
        file.entry(1, 512)


def test_files_with_the_same_hash_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / MEDIA_INDEX_NAME
    with MediaIndexFileWriter(path) as writer:
        writer.add(MediaSection("", "", "", 4, 4), [(7, b"\1a"), (3, b"\1b"), (7, b"\1c"), (9, b"\1d")])
        writer.finish("", {})
    assert read_all(path) == [[(3, b"\1b"), (9, b"\1d")]]


def test_an_empty_dataset_of_media(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"one.txt": b"text"})
    prepare_dataset(tmp_path)
    assert add_media_metadata(tmp_path, BY_SUFFIX, index_media=MediaIndexer()) == MediaCounts()
    indices = MediaIndices.of_folder(WebdatasetFolder(str(tmp_path)))
    assert indices.find(0, 512) is None
    assert indices.obstacle == ""


def test_a_damaged_entry_is_an_error_and_a_copied_dataset_is_whole(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "data", shards=1)
    add_media_metadata(tmp_path / "data", BY_SUFFIX, index_media=MediaIndexer())
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = WebdatasetFolder(str(tmp_path / "copy"))
    assert check_all(copy, MediaIndices.of_folder(copy)) == 4
    path = tmp_path / "data" / ".nv-meta" / MEDIA_INDEX_NAME
    content = bytearray(path.read_bytes())
    content[-200] ^= 255
    path.write_bytes(content)
    indices = MediaIndices.of_folder(folder)
    places = [part[1] for sample in range(5) for part in folder.index.shard(0).parts(sample)]
    outcomes = []
    for place in places:
        try:
            outcomes.append(indices.find(0, place) is not None)
        except DatasetFormatError:
            outcomes.append("damaged")
    assert outcomes.count("damaged") == 1, "one sample fails"
    assert list(itertools.compress(outcomes, outcomes)).count(True) == 3
    assert json.dumps(outcomes)
