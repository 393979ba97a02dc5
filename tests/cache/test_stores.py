"""File stores: files by name in tar shards, folders and JSONL files, decoded files, and parts of the current sample."""

from __future__ import annotations

import os
import pickle
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from energon_dali import DaliDecoder, SampleDecoder
from energon_dali.cache import (
    DecodeFileStore,
    FileStore,
    FileStoreDecoder,
    JsonlFileStore,
    PrimaryFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    open_store,
    resolve_store,
)
from energon_dali.decode import MediaHandle
from energon_dali.decode.media_filter import MediaFilter
from energon_dali.errors import ConfigError, DatasetError, DatasetFormatError, DecodeError, FileMissingError, ShardError
from energon_dali.samples.base import CrudeSample, SourceInfo
from energon_dali.samples.kinds import TextSample
from energon_dali.samples.media_metadata import AVMetadata, ImageMetadata, read_media_metadata, write_media_metadata
from energon_dali.shards import StoragePath, prepare_dataset, prepare_jsonl
from energon_dali.shards.prepare.media_tables import add_media_metadata
from tests.cache.files import Numbers, two_shards
from tests.loader.dataset_folder import picture
from tests.shards.tars import captions, write_tar


def test_files_of_shards_are_found_by_name_from_any_thread_and_process(tmp_path: Path) -> None:
    folder = two_shards(tmp_path)
    store = WebdatasetFileStore(folder)
    names = [f"dir/s{shard}_{number}" for shard in range(2) for number in range(5)] * 4
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda name: (store[f"{name}.txt"], store[f"{name}.big.bin"]), names))
    for name, ((text, place), (big, _)) in zip(names, found, strict=True):
        shard, number = name[5], int(name[7])
        assert text == f"text {shard} {number}".encode()
        assert big == bytes([number]) * 5000
        assert place == SourceInfo(
            dataset_path=str(folder), index=f"{name}.txt", shard_name=f"{shard}.tar", file_names=(f"{name}.txt",)
        )
    copy = pickle.loads(pickle.dumps(store))
    assert copy["dir/s1_2.txt"][0] == b"text 1 2"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, store["dir/s0_3.txt"][0])
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 100) == b"text 0 3"
    assert store.get_path() == str(folder)
    store.close()
    assert store["dir/s0_3.txt"][0] == b"text 0 3"


@pytest.mark.parametrize("name", ["dir/s0_9.txt", "dir/s0_0.jpg", "s0_0.txt", "dir/s0_0", "", "\udcff.txt"])
def test_a_name_that_is_not_there_is_an_error_of_its_own(name: str, tmp_path: Path) -> None:
    store = WebdatasetFileStore(two_shards(tmp_path))
    with pytest.raises(FileMissingError, match="has no file"):
        store[name]
    with pytest.raises(KeyError):
        store.get(name)


def test_a_shard_that_changed_gives_no_other_files_bytes(tmp_path: Path) -> None:
    folder = two_shards(tmp_path)
    store = WebdatasetFileStore(folder)
    (folder / "0.tar").write_bytes((folder / "1.tar").read_bytes())
    with pytest.raises(ShardError, match="changed since it was indexed"):
        store["dir/s0_0.txt"]
    (folder / "1.tar").unlink()
    with pytest.raises(ShardError, match=r"1\.tar is missing"):
        store["dir/s1_0.txt"]
    (folder / ".nv-meta" / "index.sqlite").unlink()
    with pytest.raises(DatasetFormatError, match=r"index\.sqlite is missing.*energon-dali prepare"):
        WebdatasetFileStore(folder)["dir/s1_0.txt"]
    (folder / ".nv-meta" / "index.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(DatasetFormatError, match="cannot be read"):
        WebdatasetFileStore(folder)["dir/s1_0.txt"]
    with pytest.raises(DatasetFormatError, match="not prepared"):
        WebdatasetFileStore(tmp_path / "..")


def test_a_folder_gives_its_files_and_no_others(tmp_path: Path) -> None:
    inside = tmp_path / "base"
    (inside / "sub").mkdir(parents=True)
    (inside / "sub" / "a.txt").write_bytes(b"inside")
    (tmp_path / "base2").mkdir()
    (tmp_path / "base2" / "secret").write_bytes(b"secret")
    (inside / "near").symlink_to(inside / "sub" / "a.txt")
    (inside / "far").symlink_to(tmp_path / "base2" / "secret")
    (inside / "folder").symlink_to(tmp_path / "base2")
    os.mkfifo(inside / "pipe")
    store = pickle.loads(pickle.dumps(SystemFileStore(inside)))
    assert store["sub/a.txt"] == (
        b"inside",
        SourceInfo(dataset_path=str(inside), index="sub/a.txt", shard_name=str(inside), file_names=("sub/a.txt",)),
    )
    assert store["near"][0] == store["sub/../sub/./a.txt"][0] == b"inside"
    for name in (
        "../base2/secret",
        "sub/../../base2/secret",
        str(tmp_path / "base2" / "secret"),
        "far",
        "folder/secret",
        "",
        "..",
        "/etc/passwd",
        "a\0b",
    ):
        with pytest.raises(DatasetError, match="leads out of"):
            store[name]
    for name in ("pipe", "sub"):
        with pytest.raises(DatasetError, match=r"a pipe|Is a directory"):
            store[name]
    with pytest.raises(FileMissingError, match=r"has no file 'none\.txt'"):
        store["none.txt"]
    assert SystemFileStore(inside, follow_links=True)["folder/secret"][0] == b"secret"
    anything = SystemFileStore()
    assert anything[str(inside / "sub" / "a.txt")][0] == b"inside"
    with pytest.raises(DatasetError, match="not an absolute path"):
        anything["sub/a.txt"]


def test_lines_of_a_jsonl_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n": 0}\n\n{"n": 1}\n')
    prepare_jsonl(str(path))
    store = pickle.loads(pickle.dumps(JsonlFileStore(path)))
    assert store["1.json"][0] == store["1"][0] == b'{"n": 1}'  # defect 12: without .json it raised a NameError
    assert store["1"][1].file_names == ("1.json",)
    for name in ("2.json", "-1", "1.txt", "\u0661", ""):
        with pytest.raises(FileMissingError, match="has no line"):
            store[name]
    assert DecodeFileStore(store, decoder=SampleDecoder())["1.json"][0] == {"n": 1}


def test_get_adds_the_source_once(tmp_path: Path) -> None:
    store = Numbers(1)
    crude = CrudeSample({"__key__": "k", "__sources__": None})
    sample = TextSample(__key__="k", __restore_key__=(), text="", __sources__=())
    for target in (crude, sample, None, 3):
        assert store.get("7", target) == b"7"
        assert store.get("7", target) == b"7"
    assert crude["__sources__"] == sample.__sources__ == (store["7"][1],)


def test_names_with_a_dot_are_of_the_current_sample(tmp_path: Path) -> None:
    primary = PrimaryFileStore(WebdatasetFileStore(two_shards(tmp_path)), "dir/s1_2")
    sample: dict[str, Any] = {}
    assert primary.get(".txt", sample) == primary["dir/s1_2.txt"][0] == b"text 1 2"
    assert primary[".big.bin"][0] == bytes([2]) * 5000
    assert primary["dir/s0_0.txt"][0] == b"text 0 0"
    assert sample["__sources__"][0].file_names == ("dir/s1_2.txt",)


class Upper(FileStoreDecoder):
    def decode(self, fname: str, data: bytes) -> Any:
        return fname, data.decode().upper()


def test_decoded_stores(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.b.jpg").write_bytes(picture(1))
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    (folder / "plain").write_bytes(b"bytes")
    (folder / "t.json").write_bytes(b"[1]")
    store = SystemFileStore(folder)
    here = DecodeFileStore(store, decoder=SampleDecoder(image_decode="torchrgb8"))
    later = DecodeFileStore(store, decoder=DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu"))
    handle, place = later["a.b.jpg"]
    assert isinstance(handle, MediaHandle)
    assert handle.source == place
    assert (handle.decode() == here["a.b.jpg"][0]).all()
    for decoded in (here, later):
        assert decoded["t.json"][0] == [1]
        assert decoded["plain"][0] == b"bytes"
        with pytest.raises(DecodeError, match=r"broken\.jpg of .*images"):
            decoded["broken.jpg"]
    assert isinstance(SampleDecoder(), FileStoreDecoder)
    assert DecodeFileStore(store, decoder=Upper())["plain"][0] == ("plain", "BYTES")
    with pytest.raises(ConfigError, match="has no decode"):
        DecodeFileStore(store, decoder=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reference", "place", "is_folder"),
    [
        ("data", "/base/data", False),
        ("../data/", "/data", False),
        ("/data", "/data", False),
        ("filesystem://images/a", "/base/images/a", True),
        ("filesystem:///images", "/images", True),
        ("filesystem+msc://profile/images", "msc://profile/images", True),
        ("msc://profile/data", "msc://profile/data", False),
        ("s3://bucket/data/", "s3://bucket/data", False),
        ({"path": "data"}, "/base/data", False),
        ({"fs_path": "data"}, "/base/data", True),
        ({"fs_path": "s3://b/x"}, "s3://b/x", True),
    ],
)
def test_references_as_energon_writes_them(reference: Any, place: str, is_folder: bool) -> None:
    assert resolve_store(reference, StoragePath("/base")) == (StoragePath(place), is_folder)


@pytest.mark.parametrize(
    "reference", ["", "filesystem://", {}, {"path": 3}, {"path": "a", "fs_path": "b"}, 3, "x+msc://a"]
)
def test_other_references_are_refused(reference: Any) -> None:
    with pytest.raises(ConfigError, match="does not name a store"):
        open_store(reference)


def test_open_store_gives_the_kind_of_the_place(tmp_path: Path) -> None:
    folder = two_shards(tmp_path / "shards")
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}\n")
    prepare_jsonl(str(path))
    base = StoragePath.of(tmp_path)
    kinds: list[tuple[Any, type[FileStore[Any]]]] = [
        ("shards", WebdatasetFileStore),
        ("x.jsonl", JsonlFileStore),
        ("filesystem://shards", SystemFileStore),
        (folder, WebdatasetFileStore),
    ]
    for reference, kind in kinds:
        assert type(open_store(reference, base)) is kind
    assert isinstance(open_store("shards", base, decoder=SampleDecoder()), DecodeFileStore)


def test_media_metadata_by_name(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"a.jpg": picture(1, size=(40, 30)), "a.txt": b"t"})
    prepare_dataset(str(tmp_path), split_ratio={"train": 1.0}, media_filter=MediaFilter("EXTENSION"))
    store = DecodeFileStore(WebdatasetFileStore(tmp_path), decoder=SampleDecoder())
    assert store.get_media_metadata("a.jpg") == ImageMetadata(width=40, height=30, format="JPEG", mode="RGB")
    assert PrimaryFileStore(store, "a").get_media_metadata(".jpg").width == 40  # type: ignore[attr-defined]
    with pytest.raises(FileMissingError, match=r"no media metadata of 'a\.txt'"):
        store.get_media_metadata("a.txt")
    folder = tmp_path / "plain"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "b.png").write_bytes(picture(2, "png", (20, 10)))
    (folder / "t.txt").write_bytes(b"t")
    for _ in range(2):
        assert add_media_metadata(str(folder), MediaFilter("HEADER")).described == 1
    assert SystemFileStore(folder).get_media_metadata("sub/b.png").width == 20  # type: ignore[attr-defined]
    (folder / "c.tar").write_bytes(b"")
    with pytest.raises(DatasetFormatError, match="holds tar shards such as"):
        add_media_metadata(str(folder), MediaFilter("HEADER"))
    with pytest.raises(DatasetError, match="has no media metadata"):
        Numbers().get_media_metadata("7")
    facts = AVMetadata(video_fps=25.0)
    assert read_media_metadata(*write_media_metadata(facts)) == facts
    with pytest.raises(DatasetFormatError, match="cannot be understood"):
        read_media_metadata("smell", "{}")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sample_parts SET content_byte_offset = -512",
        "UPDATE sample_parts SET content_byte_offset = 9223372036854775807",
        "UPDATE sample_parts SET content_byte_size = 1099511627776",
        "UPDATE sample_parts SET content_byte_size = -1",
        "UPDATE sample_parts SET content_byte_size = 'x'",
        "UPDATE sample_parts SET tar_file_id = 7; UPDATE samples SET tar_file_id = 7",
        "DROP TABLE sample_parts",
        "DROP TABLE samples; CREATE VIEW samples AS SELECT 0 AS tar_file_id, 'a' AS sample_key, 0 AS sample_index",
    ],
)
def test_an_index_with_wrong_numbers_gives_our_errors(change: str, tmp_path: Path) -> None:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    assert WebdatasetFileStore(tmp_path)["s0_0.txt"][0] == b"caption s0_0"
    database = sqlite3.connect(tmp_path / ".nv-meta" / "index.sqlite")
    database.executescript(change)
    database.close()
    with pytest.raises(DatasetError):
        WebdatasetFileStore(tmp_path)["s0_0.txt"]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "3", '{"width": [1]}', '{"width": 1}', '{"width": 1' + "0" * 5000 + "}", "{"]
)
def test_odd_media_metadata_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(DatasetFormatError, match="cannot be understood") as caught:
        read_media_metadata("image", text)
    assert len(str(caught.value)) < 1000
