"""What is damaged, missing or malicious in a source is named and left out, and never leads out of the source."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from energon_dali.errors import ConfigError, DatasetError, DatasetFormatError, StorageError
from energon_dali.pack import files
from energon_dali.pack.record import UniqueKeys, clean_key
from energon_dali.pack.sources import table as table_module
from energon_dali.shards.storage import retry
from tests.pack.images_folder import load, pack, png, same_pixels, write_images


def table(root: Path, *rows: dict[str, object]) -> Path:
    path = root / "metadata.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_paths_stay_inside_the_source(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 2, captions=False)
    outside = tmp_path / "secret.png"
    outside.write_bytes(png(9))
    (root / "link.png").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path)
    (root / "inner.png").symlink_to(root / "a" / "img.000.png")
    paths = ["../secret.png", str(outside), "a/../../secret.png", "link.png", "folder/secret.png", "http://x/y.png"]
    paths += ["a\0.png", "a", "b/img.001.png", "a/../b/img.001.png", str(root / "a" / "img.000.png"), "inner.png"]
    rows = table(root, *({"image": path} for path in paths))
    result = pack(rows, tmp_path / "out")
    assert result.num_samples == 4
    assert [bad.what for bad in result.skipped] == [f"line {number}" for number in range(1, 9)]
    assert sum("--allow-outside" in bad.reason for bad in result.skipped) == 5
    assert pack(rows, tmp_path / "all", allow_outside=True).num_samples == 9
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "x.png").write_bytes(png(0))
    (tmp_path / "plain" / "x.txt").write_text("x")
    (tmp_path / "plain" / "y.txt").symlink_to("/etc/passwd")
    (tmp_path / "plain" / "y.png").write_bytes(png(1))
    assert [bad.what for bad in pack(tmp_path / "plain", tmp_path / "links").skipped] == ["y.png"]


def test_text_that_is_not_utf_8_costs_its_conversation(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 1, captions=False)
    lines = [
        json.dumps({"image": "a/img.000.png", "conversations": [{"from": "human", "value": value}]})
        for value in ("before", "cut off \ud83d", "after")
    ]
    (root / "chats.jsonl").write_text("\n".join(lines))
    result = pack(root / "chats.jsonl", tmp_path / "out")
    assert result.num_samples == 2
    assert [(bad.what, bad.reason) for bad in result.skipped] == [("line 2", "its text is not UTF-8")]


def test_storage_that_fails_while_packing_costs_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that were left out would stay so: a finished shard is not packed again."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    root = write_images(tmp_path / "in", 4)
    real, errors = files.read_regular, [OSError(errno.ESTALE, "stale")]

    def read(path: str, *arguments: int) -> bytes:
        if errors and path.endswith("002.png"):
            raise errors[0] if len(errors) > 1 else errors.pop()
        return real(path, *arguments)

    monkeypatch.setattr(files, "read_regular", read)
    assert pack(root, tmp_path / "once").num_samples == 4
    errors += [OSError(errno.ESTALE, "stale")] * 2
    with pytest.raises(StorageError, match=r"img\.002\.png \(5 attempts\).*stale"):
        pack(root, tmp_path / "always")
    errors[:] = [FileNotFoundError(errno.ENOENT, "gone")]
    with pytest.raises(DatasetError, match=r"img\.002\.png is gone, and had"):
        pack(root, tmp_path / "always")
    assert pack(root, tmp_path / "always").num_samples == 4


def test_names_in_every_script_and_loops_of_links(tmp_path: Path) -> None:
    root = tmp_path / "in"
    names = ["ünï/çødé 图片", "a.b/c.d.e", "__hidden__/x", "back\\slash", "x" * 200, "new\nline"]
    for number, name in enumerate(names):
        file = root / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(number))
    (root / "loop").symlink_to(root)
    (root / "self.png").symlink_to("self.png")
    Path(os.fsdecode(os.fsencode(root) + b"/latin\xe9.png")).write_bytes(png(6))
    result = pack(root, tmp_path / "out")
    samples = load(result)
    expected = ["ünï/çødé 图片", "a_b/c_d_e", "k__hidden__/x", "back_slash", "x" * 200, "new_line", "latin_xe9"]
    assert all(same_pixels(samples[key].image, number) for number, key in enumerate(expected))
    assert len(samples) == 7
    assert [bad.what for bad in result.skipped] == ["self.png"]


def test_keys_are_valid_and_unique() -> None:
    keys = UniqueKeys()
    assert [keys.add(clean_key(text)) for text in ("a.b", "a_b", "a_b_2", "a_b", "//", "")] == [
        "a_b",
        "a_b_2",
        "a_b_2_2",
        "a_b_3",
        "sample",
        "sample_2",
    ]
    long = clean_key("ä" * 500)
    assert len(long.encode()) <= 240
    assert long != clean_key("ä" * 501)


def test_broken_images_and_texts_among_many(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 8)
    (root / "a" / "img.000.png").write_bytes(png(0)[:20])
    (root / "a" / "img.002.png").write_bytes(b"")
    (root / "a" / "img.004.txt").write_bytes(b"caf\xe9")
    (root / "b" / "img.001.json").write_text("{broken")
    (root / "b" / "img.003.pkl").write_bytes(b"cos\nsystem\n.")
    result = pack(root, tmp_path / "out")
    assert result.num_samples == 4
    assert sorted(bad.what.partition(" ")[0] for bad in result.skipped) == [
        "a/img.000.png",
        "a/img.002.png",
        "a/img.004.png",
        "b/img.001.png",
    ]
    assert sorted(load(result)) == ["a/img_006", "b/img_003", "b/img_005", "b/img_007"]
    with pytest.raises(DatasetError, match=r"a/img\.000\.png .*Without --strict it would be left out"):
        pack(root, tmp_path / "strict", strict=True)
    for file in root.rglob("*.png"):
        file.write_bytes(b"nothing")
    with pytest.raises(DatasetError, match=r"None of 8 samples can be packed\. The first one, a/img\.000\.png"):
        pack(root, tmp_path / "nothing")


def test_empty_folders_and_folders_of_other_things(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    with pytest.raises(DatasetFormatError, match="holds no files"):
        pack(root, tmp_path / "out")
    (root / "movie.iso").write_bytes(b"x")
    with pytest.raises(DatasetFormatError, match="holds no image, video, audio or text among 1 files"):
        pack(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_images(tmp_path / "in", 2, captions=False)
    monkeypatch.setattr(table_module, "MAX_FIELD_BYTES", 1000)
    path = root / "rows.csv"
    image = "a/img.000.png"
    path.write_bytes(f"file,text\n{image},ok\n{image}\n{image},b,c\n{image},caf".encode() + b"\xe9\n")
    result = pack(path, tmp_path / "out")
    assert result.num_samples == 1
    assert [bad.what for bad in result.skipped] == ["line 3", "line 4", "line 5"]
    path.write_text(f'file,text\n{image},"{"x" * 2000}\n')
    with pytest.raises(DatasetFormatError, match="cannot be read at line 2"):
        pack(path, tmp_path / "huge")
    path.write_text("file,file\na,b\n")
    with pytest.raises(DatasetFormatError, match="two columns with the same name"):
        pack(path, tmp_path / "twice")
    path.write_text(",".join(map(str, range(10_001))) + "\n")
    with pytest.raises(DatasetFormatError, match="has 10,001 columns, and at most 10,000 are allowed"):
        pack(path, tmp_path / "wide")
    path.write_text("image,text\nlost.png,a\n")
    with pytest.raises(DatasetFormatError, match=rf"'lost.png' does not exist in {root}.* that with --media-root"):
        pack(path, tmp_path / "lost")
    path = root / "rows.jsonl"
    path.write_text('{"image": "a/img.000.png"}\n[1]\n{"image": \n' + "[" * 3000 + "\n")
    result = pack(path, tmp_path / "jsonl")
    assert [bad.what for bad in result.skipped] == ["line 2", "line 3", "line 4"]
    path.write_text('{"image": "a/img.000.png"}\n' + "x" * 5000)
    with pytest.raises(DatasetFormatError, match="more than 4,000 bytes in line 2"):
        pack(path, tmp_path / "long")


def test_a_file_that_shrinks_while_it_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_images(tmp_path / "in", 3)
    from energon_dali.pack import run

    begin = run._continue_or_begin

    def shrink(*arguments: object) -> object:
        done = begin(*arguments)  # type: ignore[arg-type]
        (root / "b" / "img.001.txt").write_text("x")
        return done

    monkeypatch.setattr(run, "_continue_or_begin", shrink)
    with pytest.raises(DatasetError, match="Pack a source that does not change"):
        pack(root, tmp_path / "out")


def test_two_runs_at_once(tmp_path: Path) -> None:
    from energon_dali.pack.run import _locked
    from energon_dali.shards import StoragePath

    root = write_images(tmp_path / "in", 2)
    pack(root, tmp_path / "out")
    with _locked(StoragePath.of(tmp_path / "out")), pytest.raises(ConfigError, match="Another run is packing into"):
        pack(root, tmp_path / "out")
