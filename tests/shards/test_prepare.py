"""What prepare finds, writes and rejects; and that it writes the same files as Energon."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from energon_dali.decode.media_filter import MediaFilter
from energon_dali.errors import ConfigError, DatasetFormatError, DecodeError, ShardError, StorageError
from energon_dali.shards import PartFacts, RawSample, ShardReader, UnreadablePart, WebdatasetFolder, prepare_dataset
from energon_dali.shards.documents.braces import expand_braces
from energon_dali.shards.prepare import scanning
from energon_dali.shards.prepare.duplicate_keys import DuplicateKeysError, prefix_keys
from energon_dali.shards.prepare.media_tables import add_media_metadata
from energon_dali.shards.prepare.split_plan import split_by_patterns, split_by_ratio
from tests.shards.tars import captions, jpeg, write_tar

FIXTURE = Path(__file__).parent.parent / "data" / "energon_7_4_1"
"""A dataset prepared by megatron-energon 7.4.1: `energon prepare --split-ratio 1,1,0 --media-metadata-by-extension`."""


def tables(root: Path) -> dict[str, list[Any]]:
    """Returns the rows of all tables, and the names of tables and indexes."""
    db = sqlite3.connect(root / ".nv-meta" / "index.sqlite")
    names = ("samples", "sample_parts", "media_metadata")
    found = {name: sorted(db.execute(f"SELECT * FROM {name}")) for name in names}
    found["filters"] = sorted(db.execute("SELECT strategy, patterns FROM media_filters"))
    found["schema"] = sorted(db.execute("SELECT type, name FROM sqlite_master"))
    db.close()
    return found


def check(name: str, content: Callable[[], bytes]) -> PartFacts | None:
    if name != "jpg":
        return None
    if not content().startswith(b"\xff\xd8"):
        raise DecodeError("no JPEG", "", "screen")
    return PartFacts("jpeg", 8, 9)


def all_contents(root: Path) -> dict[str, dict[str, bytes]]:
    reader = ShardReader(WebdatasetFolder(str(root)))
    places = [reader.locate(number) for number in range(reader.folder.num_samples)]
    samples = reader.read([shard for shard, _ in places], [sample for _, sample in places])
    reader.close()
    found = {}
    for sample in samples:
        assert isinstance(sample, RawSample), sample
        found[sample.key] = {name: bytes(content) for name, content in sample.parts.items()}
    return found


# --- compared with Energon -------------------------------------------------------------------------------------------


def test_prepares_like_energon(tmp_path: Path) -> None:
    """Preparing the same shards gives the same files, byte for byte where the format leaves no choice."""
    for path in FIXTURE.glob("*.tar"):
        shutil.copy(path, tmp_path)
    prepare_dataset(tmp_path, split_ratio={"train": 1, "val": 1, "test": 0}, media_filter=MediaFilter("EXTENSION"))
    for shard in sorted(FIXTURE.glob("*.tar.idx")):
        assert (tmp_path / shard.name).read_bytes() == shard.read_bytes()
    assert tables(tmp_path) == tables(FIXTURE)
    assert (tmp_path / ".nv-meta/split.yaml").read_text() == (FIXTURE / ".nv-meta/split.yaml").read_text()
    ours, theirs = (json.loads((root / ".nv-meta/.info.json").read_text()) for root in (tmp_path, FIXTURE))
    assert list(ours["shard_counts"].items()) == list(theirs["shard_counts"].items())
    assert ours.keys() == theirs.keys()
    assert all_contents(tmp_path) == all_contents(FIXTURE)


@pytest.mark.parametrize("without", [(), ("index.sqlite",)])
def test_reads_what_energon_prepared(tmp_path: Path, without: tuple[str, ...]) -> None:
    root = tmp_path / "data"
    shutil.copytree(FIXTURE, root)
    for name in without:
        (root / ".nv-meta" / name).unlink()
    folder = WebdatasetFolder(str(root))
    assert folder.split_parts == ("train", "val", "test")
    assert [folder.split_ranges(part).num_samples for part in folder.split_parts] == [4, 4, 0]
    assert folder.dataset_config["field_map"] == {"image": "jpg,png", "caption": "txt"}
    found = all_contents(root)
    assert len(found) == 8
    assert {parts["txt"] for parts in found.values()} == {f"caption {n}".encode() for n in range(8)}
    assert folder.index.source == ("tar" if without else "sqlite")
    folder.index.close()


ENERGON_PROGRAM = """
import sys, json, hashlib
from megatron.energon import WorkerConfig, get_train_dataset, get_loader, TaskEncoder
class Raw(TaskEncoder):
    decoder = None
config = WorkerConfig(rank=0, world_size=1, num_workers=0)
dataset = get_train_dataset(sys.argv[1], worker_config=config, batch_size=None, shuffle_buffer_size=None,
                            max_samples_per_sequence=None, repeat=False, task_encoder=Raw())
found = {s.__key__: [hashlib.sha256(s.image).hexdigest(), s.caption.decode()] for s in get_loader(dataset)}
print("RESULT" + json.dumps(found))
"""


if ENERGON_PYTHON := os.environ.get("ENERGON_PYTHON"):

    def test_energon_reads_what_is_prepared_here(tmp_path: Path) -> None:
        """Runs if an interpreter with megatron-energon is given; the comparison of files above always runs."""
        expected = captions(tmp_path)
        prepare_dataset(tmp_path)
        sample_type = "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}\n"
        (tmp_path / ".nv-meta/dataset.yaml").write_text(sample_type + "field_map: {image: jpg, caption: txt}\n")
        command = [ENERGON_PYTHON, "-c", ENERGON_PROGRAM, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert "RESULT" in done.stdout, done.stderr
        assert json.loads(done.stdout.partition("RESULT")[2]) == {
            key: [hashlib.sha256(parts["jpg"]).hexdigest(), parts["txt"].decode()] for key, parts in expected.items()
        }


# --- what is written -------------------------------------------------------------------------------------------------


def test_tar_index_holds_the_starts_and_the_end(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"a.x": bytes(5), "b.x": bytes(600), "b.y": b""})
    prepare_dataset(tmp_path)
    assert struct.unpack("<3Q", (tmp_path / "a.tar.idx").read_bytes()) == (0, 1024, 3072)


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_finds_facts_of_media_and_what_cannot_be_read(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "BYTES_PER_WORKER", 1)
    write_tar(tmp_path / "b/one.tar", {"k.jpg": jpeg(8, 9), "k.txt": b"no jpeg, and no matter", "bad{1}.jpg": b"text"})
    write_tar(tmp_path / "b/two.tar", {"m.jpg": jpeg(8, 9)})
    result = prepare_dataset(tmp_path, check_part=check, exclude_unreadable=True, num_workers=workers)
    assert result.shard_counts == {"b/one.tar": 2, "b/two.tar": 1}
    assert result.part_names == ["jpg", "txt"]
    assert result.unreadable == [UnreadablePart("b/one.tar", "bad{1}", "jpg", "no JPEG (screen)")]
    assert json.loads((tmp_path / ".nv-meta/unreadable.json").read_text())[0]["key"] == "bad{1}"
    folder = WebdatasetFolder(str(tmp_path))
    assert folder.split.exclude == ("b/one.tar/bad{1}",)
    assert folder.split_ranges("train").stop.tolist() == [1, 1]
    extents = folder.index.shard(0)
    assert extents.array("part_width").tolist() == [8, 0, 0]
    assert [extents.formats[number] for number in extents.part_format] == ["jpeg", "", ""]
    folder.index.close()


def test_splits_by_ratio_patterns_and_shuffled(tmp_path: Path) -> None:
    captions(tmp_path, shards=10, samples=1)
    ratio = {"train": 8, "val": 1, "test": 1}
    parts = prepare_dataset(tmp_path, split_ratio=ratio).split_parts
    assert [len(names) for names in parts.values()] == [8, 1, 1]
    shuffled = prepare_dataset(tmp_path, split_ratio=ratio, shuffle_seed=42).split_parts
    assert shuffled != parts
    assert sorted(chain(*shuffled.values())) == sorted(chain(*parts.values()))
    patterns = [("train", "shard_[0-6]"), ("val", "shard_{8..9}.tar")]
    parts = prepare_dataset(tmp_path, split_patterns=patterns).split_parts
    assert parts == {"train": [f"shard_{n}.tar" for n in range(7)], "val": ["shard_8.tar", "shard_9.tar"]}


def test_tar_index_only_keeps_the_split(tmp_path: Path) -> None:
    captions(tmp_path)
    prepare_dataset(tmp_path, split_ratio={"train": 1, "val": 2})
    before = (tmp_path / ".nv-meta/split.yaml").read_text()
    (tmp_path / "shard_0.tar.idx").unlink()
    prepare_dataset(tmp_path, tar_index_only=True)
    assert (tmp_path / "shard_0.tar.idx").exists()
    assert (tmp_path / ".nv-meta/split.yaml").read_text() == before


def test_an_index_of_the_same_samples_keeps_its_identity(tmp_path: Path) -> None:
    def prepared(**options: Any) -> str:
        prepare_dataset(tmp_path, **options)
        return WebdatasetFolder(str(tmp_path)).uuid

    samples = captions(tmp_path)
    first = prepared()
    assert prepared() == prepared(tar_index_only=True) == first
    other = prepared(split_ratio={"train": 1, "val": 2})
    assert other != first, "names of join indices that Energon reads do not tell parts apart"
    assert prepared(split_ratio={"train": 1, "val": 2}) == other
    extents, uuid_file = tmp_path / ".nv-meta" / "extents.bin", tmp_path / ".nv-meta" / "index.uuid"
    keys = {f"s0_{number}": f"s0_{number}" for number in range(3)} | {"s0_3": "x0_3"}
    files = {f"{new}.{part}": samples[old][part] for old, new in keys.items() for part in samples[old]}
    write_tar(tmp_path / "shard_0.tar", files)
    changed = prepared()
    assert changed != first, "a key is another, at the same place"
    extents.unlink()
    assert prepared() == changed, "index.sqlite says that the samples are the same"
    extents.write_bytes(extents.read_bytes()[:-8])
    assert prepared() == changed, "the same"
    assert prepared(check_part=lambda name, content: PartFacts("any", 1, 1)) == changed, (
        "facts of media are not samples"
    )
    uuid_file.write_text("of another program")
    assert prepared() == "of another program", "index.sqlite is of the program that wrote last"
    extents.unlink()
    (tmp_path / ".nv-meta" / "index.sqlite").unlink()
    assert len(prepared()) == 36, "nothing says that the samples are the same"
    uuid_file.write_text("\x1b" * 100)
    assert len(prepared()) == 36, "no identity that could be stored"
    assert prepared(shards=["shard_1.tar", "shard_0.tar", "shard_2.tar"]) != prepared()


# --- what is rejected ------------------------------------------------------------------------------------------------


def test_all_bad_shards_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    captions(tmp_path)
    (tmp_path / "shard_1.tar").write_bytes((tmp_path / "shard_1.tar").read_bytes()[:700])
    (tmp_path / "shard_2.tar").write_bytes(b"")
    write_tar(tmp_path / "shard_3.tar", {"no_part": b""})
    with pytest.raises(ShardError, match=r"3 of 4 shards.*(?s:.*)cut off(?s:.*)is empty(?s:.*)holds no sample"):
        prepare_dataset(tmp_path)
    assert not (tmp_path / ".nv-meta/.info.json").exists()


@pytest.mark.parametrize("name", ["x.tgz", "x.tar.gz"])
def test_compressed_shards_are_refused(tmp_path: Path, name: str) -> None:
    captions(tmp_path)
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    with pytest.raises(DatasetFormatError, match=rf"compressed shards, such as {name}"):
        prepare_dataset(tmp_path)


def test_a_shard_whose_name_is_not_text_is_refused(tmp_path: Path) -> None:
    captions(tmp_path)
    os.rename(tmp_path / "shard_0.tar", os.fsencode(tmp_path) + b"/\xfc.tar")
    with pytest.raises(DatasetFormatError, match=r"'\\udcfc.tar', whose name is not valid UTF-8"):
        prepare_dataset(tmp_path)


def test_duplicate_keys_are_named_and_can_be_made_unique(tmp_path: Path) -> None:
    for name in ("a/s.tar", "b/s.tar"):
        write_tar(tmp_path / name, {"k.jpg": name.encode(), f"{name[0]}.jpg": b"", "__meta__/x.y": b"kept"})
    with pytest.raises(DuplicateKeysError, match=r"'k' in a/s.tar and b/s.tar.*(?s:.*)--fix-duplicates"):
        prepare_dataset(tmp_path)
    prefix_keys(tmp_path, ["a/s.tar", "b/s.tar"])
    prepare_dataset(tmp_path)
    found = all_contents(tmp_path)
    assert found == {
        "a/s/k": {"jpg": b"a/s.tar"},
        "a/s/a": {"jpg": b""},
        "b/s/k": {"jpg": b"b/s.tar"},
        "b/s/b": {"jpg": b""},
    }


def test_making_keys_unique_can_be_repeated_and_refuses_a_damaged_shard(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"k.jpg": b"1", "l.jpg": b"2", "m.jpg": b"3"})
    prefix_keys(tmp_path, ["a.tar"])
    once = (tmp_path / "a.tar").read_bytes()
    prefix_keys(tmp_path, ["a.tar"])
    assert (tmp_path / "a.tar").read_bytes() == once
    damaged = bytearray(once)
    damaged[2 * 1024 + 5] ^= 1  # the third header, which tarfile takes for the end
    (tmp_path / "a.tar").write_bytes(damaged)
    with pytest.raises(ShardError, match="damaged header at byte 2048"):
        prefix_keys(tmp_path, ["a.tar"])
    assert (tmp_path / "a.tar").read_bytes() == damaged


@given(
    st.lists(st.integers(0, 100) | st.sampled_from([0.1, 0.2, 0.7, 0.6, 0.3, 1e-3]), min_size=1, max_size=5),
    st.integers(0, 200),
)
def test_a_ratio_gives_each_shard_to_one_part(weights: list[float], count: int) -> None:
    assume(sum(weights) > 0)
    shards = [f"{number}.tar" for number in range(count)]
    parts = split_by_ratio(shards, {str(number): weight for number, weight in enumerate(weights)})
    assert list(chain.from_iterable(parts.values())) == shards


@pytest.mark.parametrize("weights", [(7, 2, 1), (0.7, 0.2, 0.1), (70.0, 20.0, 10.0)])
def test_a_ratio_whose_shares_do_not_add_up_to_1_in_floats(weights: tuple[float, ...]) -> None:
    parts = split_by_ratio([f"{number}.tar" for number in range(100)], dict(zip("abc", weights, strict=True)))
    assert [len(part) for part in parts.values()] == [70, 20, 10]
    with pytest.raises(ConfigError, match="positive sum"):
        split_by_ratio(["a.tar"], {"train": float("nan")})


def test_a_preparation_meanwhile_keeps_its_index(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"k.jpg": jpeg(8, 8)})
    prepare_dataset(tmp_path)

    def prepare_again(scans: Iterable[Any], total: int) -> Iterator[Any]:
        write_tar(tmp_path / "b.tar", {"l.jpg": jpeg(8, 9)})
        prepare_dataset(tmp_path)
        yield from scans

    media = MediaFilter("EXTENSION")
    with pytest.raises(StorageError, match=r"index\.sqlite was replaced while.*run the command again"):
        add_media_metadata(tmp_path, media, progress=prepare_again)
    assert WebdatasetFolder(str(tmp_path)).num_samples == 2
    with closing(sqlite3.connect(tmp_path / ".nv-meta" / "index.sqlite")) as index:
        assert index.execute("SELECT count(*) FROM samples").fetchone() == (2,)
    add_media_metadata(tmp_path, media)
    assert len(tables(tmp_path)["media_metadata"]) == 2


def test_a_key_that_comes_back_in_its_shard_is_a_duplicate(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("k.jpg", b""), ("l.jpg", b""), ("k.txt", b"")])
    with pytest.raises(DuplicateKeysError, match=r"'k' in a.tar and a.tar.*(?s:.*)follow one another"):
        prepare_dataset(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_ratio": {"train": 1}, "split_patterns": [("train", ".*")]}, "were both given"),
        ({"split_ratio": {"train": 0.0}}, "positive sum"),
        ({"split_patterns": [("train", "shard_*.tar")]}, "matches none of the 3 shards"),
        ({"split_patterns": [("train", "*.tar")]}, "cannot be understood"),
        (
            {"split_config": "../../split.yaml"},
            "cannot be written into .nv-meta: give the name of a file without a fol",
        ),
        ({"split_config": "/split.yaml"}, "'/split.yaml' cannot be written"),
        ({"split_config": ".info.json"}, "does not begin with a full stop"),
        ({"split_config": "split.txt"}, "ends in .yaml or .json"),
        ({"split_config": "dataset.yaml"}, "name of another file"),
        ({"shards": ["../other.tar"]}, "'../other.tar' leads out of the dataset"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    captions(tmp_path / "data")
    (tmp_path / "other.tar").write_bytes((tmp_path / "data" / "shard_0.tar").read_bytes())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        prepare_dataset(tmp_path / "data", **options)
    assert sorted(tmp_path.rglob("*")) == before


PIECES = ["a", "b", "1", ".", ".*", "?", "*", "+", "[ab]", "(a|b)", "|", r"\.", r"\d", "^", "$", "/", "{a,b}", r"\{2\}"]


@given(
    st.lists(st.text("ab1/.\n", min_size=1, max_size=4), min_size=1, max_size=6, unique=True),
    st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), min_size=1, max_size=2),
)
def test_patterns_take_the_shards_that_they_match(shards: list[str], pieces: list[list[str]]) -> None:
    patterns = ["".join(chosen) for chosen in pieces]
    expected: list[str] = []
    try:
        for pattern in patterns:
            expressions = [re.compile(expanded) for expanded in expand_braces([pattern])]
            matched = [shard for shard in shards if any(expression.match(shard) for expression in expressions)]
            assume(matched)
            expected += [shard for shard in matched if shard not in expected]
    except (re.error, ValueError):
        with pytest.raises(ConfigError, match="cannot be understood"):
            split_by_patterns(shards, [("train", pattern) for pattern in patterns])
        return
    assert split_by_patterns(shards, [("train", pattern) for pattern in patterns]) == {"train": expected}


class Name(str):
    """Counts how often it is compared with the start of a pattern."""

    comparisons = 0

    def startswith(self, *arguments: Any) -> bool:
        Name.comparisons += 1
        return super().startswith(*arguments)


def test_a_pattern_for_each_shard_is_compared_with_few() -> None:
    shards: list[str] = [Name(f"shard_{number:05d}.tar") for number in range(5_000)]
    patterns = [("train", "shard_{00000..04999}.tar"), *[("val", "shard_00007.tar")] * 100_000]
    Name.comparisons = 0
    assert split_by_patterns(shards, patterns) == {"train": shards, "val": ["shard_00007.tar"]}
    assert Name.comparisons < 3 * len(shards)


# --- media -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "media",
    [MediaFilter("GLOB", ("*.jpg", "s1_*")), MediaFilter("HEADER"), MediaFilter("EXTENSION")],
    ids=lambda media: media.strategy,
)
def test_media_are_described_each_way(tmp_path: Path, media: MediaFilter) -> None:
    expected = captions(tmp_path)
    prepare_dataset(tmp_path)
    assert add_media_metadata(tmp_path, media).described == 12
    db = sqlite3.connect(tmp_path / ".nv-meta/index.sqlite")
    rows = dict(db.execute("SELECT entry_key, metadata_json FROM media_metadata"))
    db.close()
    assert rows.keys() == {f"{key}.jpg" for key in expected}
    assert rows["s1_2.jpg"] == '{"width":10,"height":9,"format":"JPEG","mode":"L"}'
    folder = WebdatasetFolder(str(tmp_path))
    assert folder.index.source == "extents"
    folder.index.close()


def test_sound_is_described(tmp_path: Path) -> None:
    import io
    import wave

    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(4 * 4000))
    described = MediaFilter("EXTENSION")("k.wav", out.getvalue)
    assert described is not None
    assert described[0] == "av"
    assert json.loads(described[1]) == {
        "audio_duration": 0.5,
        "audio_channels": 2,
        "audio_sample_rate": 8000,
        "audio_num_samples": 4000,
    }
    assert MediaFilter("EXTENSION")("k.wav", lambda: b"no sound") is None


def test_only_one_way_to_find_media() -> None:
    with pytest.raises(ConfigError, match="More than one"):
        MediaFilter.parse("*.jpg", True, False)
    with pytest.raises(ConfigError, match="GLOB needs patterns"):
        MediaFilter("GLOB")


def test_a_part_that_a_sample_has_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for text in (b"one", b"two"):
            member = tarfile.TarInfo("k.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    with pytest.raises(ShardError, match="the part 'txt' of the sample 'k' twice"):
        prepare_dataset(str(tmp_path))
