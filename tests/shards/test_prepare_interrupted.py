"""Preparing leaves either the old dataset or the new one if it is rejected, interrupted, killed, or fills the disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from energon_dali.decode.media_filter import MediaFilter
from energon_dali.errors import ConfigError, DatasetFormatError, ShardError, StorageError
from energon_dali.shards import PartFacts, WebdatasetFolder, prepare_dataset
from energon_dali.shards.prepare import building
from energon_dali.shards.prepare.media_tables import add_media_metadata
from tests.full_disk import largest_file
from tests.shards.tars import captions, write_tar

ROOT = Path(__file__).parents[2]
PROGRAM = """
import itertools, json, os, sys
from energon_dali.shards import RawSample, ShardReader, WebdatasetFolder, prepare_dataset

root, ratio = sys.argv[1], json.loads(sys.argv[2])
WRITES = {"open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate",
          "ctypes.dlsym", "sqlite3.connect", "tempfile.mkdtemp"}

def prepare_until(instant):
    events = itertools.count()
    def hook(event, args):
        is_write = event in WRITES and (event != "open" or args[1] not in ("r", "rb", None) or args[2] & os.O_CREAT)
        if is_write and next(events) == instant:
            os._exit(9)  # as SIGKILL does: nothing is cleaned up
    sys.addaudithook(hook)
    try:
        prepare_dataset(root, split_ratio=ratio)
    finally:
        os._exit(1 if sys.exc_info()[0] else 0)

def look():
    folder = WebdatasetFolder(root)
    reader = ShardReader(folder)
    places = [reader.locate(number) for number in range(folder.num_samples)]
    samples = reader.read([shard for shard, _ in places], [sample for _, sample in places])
    assert all(isinstance(sample, RawSample) for sample in samples), samples
    source = folder.index.source
    reader.close()
    return [folder.uuid, folder.shard_counts, {part: list(names) for part, names in folder.split.split_parts.items()},
            source]

before, seen = look(), []
for instant in itertools.count():
    child = os.fork()
    if child == 0:
        prepare_until(instant)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), status
    seen.append(look())
    if status == 0:
        break
print(json.dumps([before, seen]))
"""


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def leftovers(root: Path) -> list[Path]:
    return list(root.rglob(".energon-dali-*")) + list(root.rglob("*.tmp"))


@pytest.mark.parametrize("is_changed", [False, True], ids=["the same shards", "a new shard"])
def test_killed_at_every_instant(tmp_path: Path, is_changed: bool) -> None:
    captions(tmp_path, shards=2, samples=2)
    ratio = {"train": 1, "val": 1}
    prepare_dataset(tmp_path, split_ratio=ratio)
    (tmp_path / ".nv-meta" / "dataset.yaml").write_text("subflavors: {of: user}")
    if is_changed:
        write_tar(tmp_path / "shard_0b.tar", {"new.txt": b"new"})
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(ratio)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    before, seen = json.loads(done.stdout)
    assert before[3] == "extents"
    assert len(seen) > 25, "the instants between all writes"
    first_new = next((number for number, found in enumerate(seen) if found != before), len(seen))
    assert all(found == seen[-1] for found in seen[first_new:])
    assert (first_new < len(seen)) == is_changed
    if is_changed:
        split = {"train": ["shard_0.tar"], "val": ["shard_0b.tar", "shard_1.tar"]}
        assert seen[-1][1:] == [[2, 1, 2], split, "extents"]
    assert (tmp_path / ".nv-meta" / "dataset.yaml").read_text() == "subflavors: {of: user}"
    assert leftovers(tmp_path) == [], "those of the killed ones are removed too"


def interrupt(name: str, content: Callable[[], bytes]) -> PartFacts:
    raise KeyboardInterrupt


def damage(root: Path) -> None:
    (root / "shard_1.tar").write_bytes((root / "shard_1.tar").read_bytes()[:700])
    with pytest.raises(ShardError, match="nothing was written"):
        prepare_dataset(root)


def repeat_a_key(root: Path) -> None:
    write_tar(root / "shard_9.tar", {"s1_0.txt": b""})
    with pytest.raises(DatasetFormatError, match="not unique"):
        prepare_dataset(root)


def press_ctrl_c(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        prepare_dataset(root, check_part=interrupt)


def fill_the_disk(root: Path) -> None:
    with largest_file(3000), pytest.raises(StorageError, match=r"Could not write .*ulimit -f"):
        prepare_dataset(root)


def fill_the_disk_late(root: Path) -> None:
    with largest_file(30000), pytest.raises(StorageError, match=r"Could not write .*ulimit -f"):
        prepare_dataset(root, media_filter=MediaFilter("EXTENSION"))


def misname_the_split(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"split\.txt"):
        prepare_dataset(root, split_config="split.txt")


@pytest.mark.parametrize(
    "spoil", [damage, repeat_a_key, press_ctrl_c, fill_the_disk, fill_the_disk_late, misname_the_split]
)
def test_what_is_refused_changes_no_file(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    root = tmp_path / "data"
    captions(root)
    prepare_dataset(root)
    uuid, files = WebdatasetFolder(str(root)).uuid, snapshot(root)
    write_tar(root / "shard_0.tar", {"other.txt": b"another size"})
    changed = snapshot(root)
    spoil(root)
    after = snapshot(root)
    assert {name: content for name, content in after.items() if not name.endswith(".tar")} == {
        name: content for name, content in changed.items() if not name.endswith(".tar")
    }
    shutil.rmtree(root)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    prepare_dataset(root)
    assert WebdatasetFolder(str(root)).uuid == uuid, "saved states fit again"


def test_a_first_preparation_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    captions(tmp_path)
    files = snapshot(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        prepare_dataset(tmp_path, check_part=interrupt)
    assert snapshot(tmp_path) == files
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_describing_media_leaves_the_old_table(tmp_path: Path) -> None:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    files = snapshot(tmp_path)
    with largest_file(3000), pytest.raises(StorageError, match="Could not write"):
        add_media_metadata(tmp_path, MediaFilter("EXTENSION"))
    assert snapshot(tmp_path) == files


def test_file_systems_that_cannot_exchange_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two renames follow each other there; after a kill between them, the next preparation repairs the folder."""
    monkeypatch.setattr(building, "_exchange", lambda one, other: False)
    captions(tmp_path)
    prepare_dataset(tmp_path)
    uuid = WebdatasetFolder(str(tmp_path)).uuid
    prepare_dataset(tmp_path)
    assert WebdatasetFolder(str(tmp_path)).uuid == uuid
    killed = tmp_path / ".energon-dali-prepare-killed"
    killed.mkdir()
    (killed / "owner.lock").touch()
    shutil.copytree(tmp_path / ".nv-meta", killed / "new-meta")
    (tmp_path / ".nv-meta").rename(killed / "old-meta")
    prepare_dataset(tmp_path)
    assert WebdatasetFolder(str(tmp_path)).uuid == uuid
    assert leftovers(tmp_path) == []


def test_a_link_in_place_of_the_folder_stays_one(tmp_path: Path) -> None:
    captions(tmp_path / "data")
    (tmp_path / "meta").mkdir()
    (tmp_path / "data" / ".nv-meta").symlink_to("../meta")
    prepare_dataset(tmp_path / "data")
    prepare_dataset(tmp_path / "data")
    assert (tmp_path / "data" / ".nv-meta").is_symlink()
    assert (tmp_path / "meta" / "extents.bin").is_file()
    assert leftovers(tmp_path) == []


def test_folders_of_dead_processes_are_removed_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    with building.building_folder(building.StoragePath.of(tmp_path), None) as live:
        old, young = (tmp_path / ".nv-meta" / f".energon-dali-prepare-{name}" for name in ("old", "young"))
        for folder in (old, young):  # as they were made before, without a lock
            folder.mkdir()
            (folder / "index.sqlite").touch()
        for path in (old / "index.sqlite", old):
            os.utime(path, (1, 1))
        building.tidy(building.StoragePath.of(tmp_path))
        assert live.is_dir()
        assert young.is_dir()
        assert not old.exists()
    assert not live.exists()


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    captions(tmp_path)
    meta = tmp_path / ".nv-meta"
    prepare_dataset(tmp_path)
    (meta / "sample_loader.py").write_text("code")
    (meta / "more").mkdir()
    (meta / "more" / "file").write_text("of another program")
    (meta / "link").symlink_to("nowhere")
    (meta / "unreadable.json").write_text("[]")
    prepare_dataset(tmp_path, split_config="split2.yaml", check_part=lambda name, content: PartFacts("any"))
    assert (meta / "sample_loader.py").read_text() == "code"
    assert (meta / "more" / "file").read_text() == "of another program"
    assert (meta / "link").is_symlink()
    assert (meta / "split.yaml").is_file()
    assert not (meta / "unreadable.json").exists()


def test_a_folder_for_the_index_on_another_disk(tmp_path: Path) -> None:
    captions(tmp_path / "data")
    prepare_dataset(tmp_path / "data", tmp_path=tmp_path / "temporary")
    assert WebdatasetFolder(str(tmp_path / "data")).num_samples == 12
    assert list((tmp_path / "temporary").iterdir()) == []
    assert leftovers(tmp_path) == []
