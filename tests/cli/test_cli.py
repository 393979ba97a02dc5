"""The commands, called as a user types them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from energon_dali import __version__
from energon_dali.cli.main import main
from energon_dali.decode.formats import ImageHeader
from energon_dali.shards import ShardReader, WebdatasetFolder, prepare_dataset
from tests.av.corpus import VideoRecipe, audio_file, encode_video, video_file
from tests.shards.tars import captions, jpeg, write_tar


def run(*words: object, answers: str = "") -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=answers)


def ok(*words: object, answers: str = "") -> str:
    done = run(*words, answers=answers)
    assert done.exit_code == 0, done.output
    return done.output


QUIET = ("--non-interactive", "--no-progress", "--num-workers", 1)
RATIO = ("--non-interactive", "--split-ratio", "1,0,0")


def dataset_yaml(root: Path, name: str = "dataset.yaml") -> Any:
    return yaml.safe_load((root / ".nv-meta" / name).read_text())


def test_version_and_help() -> None:
    assert __version__ in ok("-V")
    assert "prepare-media" in ok("-h")


def test_prepare_with_field_map_and_info(tmp_path: Path) -> None:
    captions(tmp_path, shards=4)
    field_map = '{"image": "jpg", "caption": "txt"}'
    ratio = ("--split-ratio", "2,1,1")
    ok("prepare", tmp_path, *QUIET, *ratio, "--sample-type", "CaptioningSample", "--field-map", field_map)
    assert dataset_yaml(tmp_path) == {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": {"image": "jpg", "caption": "txt"},
    }
    shown = ok("info", tmp_path)
    assert "CaptioningSample" in shown
    assert "train: 8 samples (50.0%) in 2 shards" in shown
    assert "val: 4 samples (25.0%) in 1 shard" in shown
    refused = run("prepare", tmp_path, *QUIET, *ratio)
    assert refused.exit_code == 1
    assert "--force-overwrite" in refused.output
    ok("prepare", tmp_path, *QUIET, *ratio, "--force-overwrite", "--shuffle-tars")


def test_info_of_a_crude_dataset_and_of_one_without_a_type(tmp_path: Path) -> None:
    captions(tmp_path)
    ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0")
    assert "unknown" in ok("info", tmp_path)
    ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0", "--force-overwrite", "--sample-type", "CrudeWebdataset")
    assert dataset_yaml(tmp_path) == {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    assert "CrudeSample" in ok("info", tmp_path)


def test_a_field_map_that_fits_no_sample_is_told(tmp_path: Path) -> None:
    captions(tmp_path)
    words = (*QUIET, "--split-ratio", "1,0,0", "--sample-type", "CaptioningSample", "--force-overwrite", "--field-map")
    told = ok("prepare", tmp_path, *words, '{"image": "jpeg,png", "caption": "txt"}')
    assert "Warning: no sample has a part 'jpeg,png' for the field 'image'; there are jpg, meta.json, txt." in told
    assert "Warning" not in ok("prepare", tmp_path, *words, '{"image": "jpeg,jpg", "caption": "meta.json[caption]"}')


def test_prepare_asks_what_is_not_given(tmp_path: Path) -> None:
    captions(tmp_path)
    questions = ("--no-progress", "--num-workers", 1)
    # ratio; create a dataset.yaml; class 0 (CaptioningSample); field map; image: no such part, then jpg; caption
    ok("prepare", tmp_path, *questions, answers="1,1,1\ny\n0\ny\npng\njpg\ntxt\n")
    config = dataset_yaml(tmp_path)
    assert config["sample_type"]["__class__"] == "CaptioningSample"
    assert config["field_map"] == {"image": "jpg", "caption": "txt"}
    # already prepared: continue; ratio; create; the last class (crude)
    ok("prepare", tmp_path, *questions, answers="y\n1,1,1\ny\n11\n")
    assert dataset_yaml(tmp_path)["__class__"] == "CrudeWebdataset"
    ok("prepare", tmp_path, *questions, answers="n\n")


def test_sample_loader_template_is_python_and_is_not_overwritten(tmp_path: Path) -> None:
    captions(tmp_path)
    words = (*QUIET, "--split-ratio", "1,0,0", "--sample-type", "VQASample", "--force-overwrite")
    ok("prepare", tmp_path, *words)
    loader = tmp_path / ".nv-meta/sample_loader.py"
    compile(loader.read_text(), "loader", "exec")
    assert 'context=raw["PART"]' in loader.read_text()
    loader.write_text("# mine")
    ok("prepare", tmp_path, *words)
    assert loader.read_text() == "# mine"
    assert dataset_yaml(tmp_path)["part_filter"] == "sample_loader.py:part_filter"


@pytest.mark.parametrize("exclude", [False, True])
def test_unreadable_images_are_listed_and_can_be_excluded(tmp_path: Path, exclude: bool) -> None:
    files = {"good.jpg": jpeg(8, 8), "bad.jpg": b"this is text", "cut.png": b"\x89PNG\r\n\x1a\n", "text.txt": b""}
    write_tar(tmp_path / "a.tar", files)
    words = ("--split-ratio", "1,0,0", *(["--exclude-unreadable"] if exclude else []))
    shown = ok("prepare", tmp_path, *QUIET, *words)
    assert "2 media parts cannot be parsed" in shown
    assert "a.tar  bad  jpg" in shown
    assert "unreadable.json" in shown
    assert WebdatasetFolder(str(tmp_path)).split_ranges("train").num_samples == (2 if exclude else 4)


def test_header_facts_reach_the_index(tmp_path: Path) -> None:
    captions(tmp_path, shards=1)
    ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0")
    folder = WebdatasetFolder(str(tmp_path))
    extents = folder.index.shard(0)
    sizes = zip(extents.array("part_width").tolist(), extents.array("part_height").tolist(), strict=True)
    assert list(sizes)[::3] == [(8, 9), (9, 9), (10, 9), (11, 9)]
    header = ImageHeader.from_label(extents.formats[extents.part_format[0]], 8, 9)
    assert header is not None
    assert (header.format, header.color, header.bit_depth, header.dali_decodable) == ("jpeg", "gray", 8, True)
    folder.index.close()


def test_split_parts_exclude_and_index_only(tmp_path: Path) -> None:
    captions(tmp_path, shards=4)
    parts = ("--split-parts", "train:shard_{0..1}", "--split-parts", "val:shard_2")
    ok(
        "prepare",
        tmp_path,
        *QUIET,
        *parts,
        "--exclude",
        "_3",
        "--dataset-yaml-name",
        "crude.yaml",
        "--sample-type",
        "CrudeWebdataset",
    )
    folder = WebdatasetFolder(str(tmp_path), dataset_config="crude.yaml")
    assert len(folder.shard_names) == 3
    assert [folder.split_ranges(part).num_samples for part in folder.split_parts] == [8, 4]
    (tmp_path / "shard_0.tar.idx").unlink()
    assert "Indexed 12 samples" in ok("prepare", tmp_path, "--tar-index-only", *QUIET)
    assert (tmp_path / "shard_0.tar.idx").exists()


@pytest.mark.parametrize("name", ["../../x.yaml", "/x.yaml", "split.yaml", "dataset.json", ".info.yaml", "sub/x.yaml"])
def test_prepare_writes_the_configuration_into_the_dataset(tmp_path: Path, name: str) -> None:
    captions(tmp_path / "a" / "data")
    before = sorted(tmp_path.rglob("*"))
    crude = ("--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset")
    result = run("prepare", tmp_path / "a" / "data", *QUIET, *crude, "--dataset-yaml-name", name)
    assert result.exit_code == 1
    assert "in .nv-meta" in result.output or "into .nv-meta" in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_a_wrong_command_suggests_the_right_one() -> None:
    wrong = run("previw")
    assert wrong.exit_code == 2
    assert "No such command 'previw'. Did you mean preview?" in wrong.output
    assert "There are: analyze-debug, bench, " in run("zzz").output


def test_info_of_a_checkpoint_names_its_command(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{}")
    for path in (tmp_path, tmp_path / "rank0.json"):
        shown = run("info", path)
        assert shown.exit_code == 1
        assert f"`energon-dali checkpoint info {path}` shows loader states" in shown.output
    (tmp_path / "rank0.json").unlink()
    assert "is not prepared" in run("info", tmp_path).output


def test_what_pack_wrote_can_be_used_as_it_is(tmp_path: Path) -> None:
    captions(tmp_path)
    ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0")
    again = run("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0")
    assert again.exit_code == 1
    assert "is already prepared, as `energon-dali pack` leaves what it writes" in again.output


def test_duplicates_are_fixed_where_that_is_wanted(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, {"k.jpg": jpeg(8, 8)})
    refused = run("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0")
    assert refused.exit_code == 1
    assert "'k' in a.tar and b.tar" in refused.output
    ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0", "--fix-duplicates")
    assert WebdatasetFolder(str(tmp_path)).num_samples == 2


def test_keys_that_come_back_in_their_shard_are_not_fixed_by_its_name(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("k.jpg", jpeg(8, 8)), ("l.jpg", jpeg(8, 8)), ("k.txt", b"")])
    before = (tmp_path / "a.tar").read_bytes()
    refused = run("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0", "--fix-duplicates")
    assert refused.exit_code == 1
    assert "follow one another" in refused.output
    assert "--fix-duplicates" not in refused.output
    assert (tmp_path / "a.tar").read_bytes() == before


def test_media_tables(tmp_path: Path) -> None:
    captions(tmp_path)
    ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0", "--media-metadata-by-glob", "*.jpg,*.png")
    words = ("--no-progress", "--num-workers", 1)
    assert "Described 12 media" in ok("prepare-media", tmp_path, "--media-metadata-by-header", *words)
    none = run("prepare-media", tmp_path, *words)
    assert none.exit_code == 2
    assert "Give one of" in none.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--non-interactive",), "--split-ratio is required"),
        (("--non-interactive", "--split-ratio", "1,2"), "give three numbers"),
        (("--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "Nothing"), "is not known"),
        (("--non-interactive", "--split-parts", "train"), "has no colon"),
        (
            ("--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "TextSample", "--field-map", "{"),
            "is not JSON",
        ),
        (
            ("--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "TextSample", "--field-map", '{"a": "b"}'),
            "which TextSample does not have",
        ),
        (
            (*RATIO, "--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg"}'),
            "--field-map lacks caption, which CaptioningSample needs",
        ),
        ((*RATIO, "--sample-type", "VQASample", "--field-map", "{}"), "lacks context, image"),
        (("--tar-index-only", "--media-metadata-by-header"), "cannot be combined"),
        (("--non-interactive", "--split-ratio", "1,0,0", "--exclude", "tar"), "holds no .tar file"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    captions(tmp_path)
    done = run("prepare", tmp_path, *words)
    assert done.exit_code != 0
    assert message in done.output


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "is not a folder" in run("prepare", tmp_path / "x").output
    assert "is not a folder" in run("info", tmp_path / "x").output


def test_the_samples_of_each_part_are_shown_and_an_empty_part_is_warned_of(tmp_path: Path) -> None:
    captions(tmp_path, shards=4)
    shown = ok("prepare", tmp_path, *QUIET, "--split-ratio", "8,1,1")
    assert "- train: 12 samples in 3 shards" in shown
    assert "- val: 0 samples in 0 shards" in shown
    assert "Warning: val got no sample." in shown
    assert "about 10 shards" in shown
    enough = ok("prepare", tmp_path, *QUIET, "--split-ratio", "2,1,1", "--force-overwrite")
    assert "- val: 4 samples in 1 shard" in enough
    assert "Warning" not in enough
    assert "Warning" not in ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0", "--force-overwrite")


def test_a_part_that_is_empty_because_its_samples_are_excluded(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"good.jpg": jpeg(8, 8), "bad.jpg": b"text", "bad.png": b"text"})
    write_tar(tmp_path / "b.tar", {"worse.jpg": b"text"})
    parts = ("--split-parts", "train:a", "--split-parts", "val:b", "--exclude-unreadable")
    shown = ok("prepare", tmp_path, *QUIET, *parts)
    assert "- train: 1 sample in 1 shard" in shown
    assert "Warning: val got no sample." in shown


def test_a_folder_of_pictures_is_told_how_to_become_shards(tmp_path: Path) -> None:
    folder = tmp_path / "my pictures"
    for name in ("cat.jpg", "cat.txt", "cat-2.jpg", "cat-2.txt", "dogs/dog.jpg", ".hidden"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg(8, 8) if name.endswith("jpg") else b"text")
    refused = run("prepare", folder, *QUIET, "--split-ratio", "1,0,0")
    assert refused.exit_code == 1
    command = next(line for line in refused.output.splitlines() if "tar -cf" in line)
    subprocess.run(command, shell=True, check=True)
    shards = tmp_path / "my pictures-shards"
    assert f"energon-dali prepare '{shards}'" in refused.output
    ok("prepare", shards, *QUIET, "--split-ratio", "1,0,0")
    reader = ShardReader(WebdatasetFolder(str(shards)))
    found = {sample.key: sorted(sample.parts) for sample in reader.read([0] * 3, [0, 1, 2])}
    reader.close()
    assert found == {"cat-2": ["jpg", "txt"], "cat": ["jpg", "txt"], "dogs/dog": ["jpg"]}


def test_media_indices(tmp_path: Path) -> None:
    scattered = encode_video(VideoRecipe(container="mpegts"))
    files = {"a.mp4": video_file("h264-mp4"), "b.mp4": scattered, "c.mp4": scattered, "d.mp3": audio_file("mp3")}
    write_tar(tmp_path / "videos.tar", files)
    ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0")
    words = ("--no-progress", "--media-metadata-by-extension")
    shown = ok("prepare-media", tmp_path, *words)
    assert "Described 4 media" in shown
    assert "Indexed 2 of 4 videos and audio files" in shown
    assert "2 will be read whole: Its packets are not stored in one piece" in shown
    index = tmp_path / ".nv-meta" / "media_index.bin"
    assert index.exists()
    index.unlink()
    assert "Indexed" not in ok("prepare-media", tmp_path, *words, "--no-media-index")
    assert not index.exists()


@pytest.mark.parametrize("command", ["prepare", "info", "lint", "prepare-media"])
def test_an_empty_path_and_that_of_what_was_prepared(tmp_path: Path, command: str) -> None:
    captions(tmp_path)
    ok("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0")
    words = {"prepare": [*QUIET, "--split-ratio", "1,0,0"], "prepare-media": ["--media-metadata-by-header"]}
    empty = run(command, "", *words.get(command, []))
    assert empty.exit_code != 0
    assert "The path is empty" in empty.output
    inner = run(command, tmp_path / ".nv-meta", *words.get(command, []))
    assert inner.exit_code != 0
    assert f"Give the dataset it belongs to: {tmp_path}" in inner.output


def as_program(*words: object, out: Any = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "energon_dali", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, env=environment)


@pytest.mark.parametrize("words", [("info",), ("prepare", *QUIET, "--split-ratio", "1,0,0", "--force-overwrite")])
def test_an_output_that_cannot_be_written_is_said_in_one_line(tmp_path: Path, words: tuple[object, ...]) -> None:
    captions(tmp_path, shards=1)
    prepare_dataset(tmp_path)
    with open("/dev/full", "w") as full:
        done = as_program(words[0], tmp_path, *words[1:], out=full)
    assert done.returncode == 1
    assert done.stderr == "Error: Could not write the output: No space left on device.\n"


def test_a_command_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing is most of a short command's time: Ctrl-C during it ends the command like any other."""

    def interrupt(name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("energon_dali.cli.main.importlib.import_module", interrupt)
    done = run("info", "anywhere")
    assert (done.exit_code, done.output.strip()) == (1, "Aborted!")
    assert run("--version").exit_code == 0


def test_an_unknown_command_and_the_list_of_all() -> None:
    assert "No such command 'infos'" in run("infos").output
    assert all(name in ok("--help") for name in ("checkpoint", "doctor", "info", "lint", "prepare", "prepare-media"))


@pytest.mark.parametrize("command", ["info", "lint", "plan", "prepare", "prepare-media", "preview", "view"])
def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path, command: str) -> None:
    folder = tmp_path / os.fsdecode(b"b\xe9")
    captions(folder)
    prepare_dataset(str(folder.rename(tmp_path / "good")))
    (tmp_path / "good").rename(folder)
    more = {"plan": ("--step", 0), "prepare-media": ("--media-metadata-by-header",)}
    done = run(command, folder, *more.get(command, ()))
    assert done.exit_code == 1
    assert "is not valid UTF-8. Rename the folder" in done.output


def test_names_do_not_command_the_terminal(tmp_path: Path) -> None:
    for shard, image in (("a\x1b[2J.tar", b"x"), ("b.tar", jpeg(8, 9))):
        write_tar(tmp_path / shard, {f"{shard[0]}\x1b]0;k\x07.{part}": image for part in ("jpg", "t\x1bxt")})
    prepare = ("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0")
    first = ok(*prepare)
    assert "- a\\x1b[2J.tar" in first
    assert "a\\x1b]0;k\\x07" in first
    assert "jpg, t\\x1bxt" in first
    words = ("--sample-type", "TextSample", "--force-overwrite", "--field-map", '{"text": "txt"}')
    shown = [first, ok(*prepare, *words), ok("plan", tmp_path, "--step", 0, "--batch-size", 1)]
    shown.append(run("lint", tmp_path).output)
    shown.append(run("preview", tmp_path, "--count", 1).output)
    (tmp_path / ".nv-meta" / "dataset.yaml").write_text("__class__: CrudeWebdataset")
    shown.append(ok("preview", tmp_path, "--count", 1))
    shown += [run("preview", tmp_path, "--index", number).output for number in range(2)]
    for text in shown:
        assert "\\x1b" in text, text
        assert not {"\x1b", "\x07"} & set(text), text


def test_a_dataset_yaml_that_is_there_is_kept(tmp_path: Path) -> None:
    captions(tmp_path)
    prepare = ("prepare", tmp_path, *QUIET, "--split-ratio", "1,0,0", "--force-overwrite")
    assert "You will have to add a dataset.yaml manually." in ok(*prepare)
    ok(*prepare, "--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg", "caption": "txt"}')
    kept = dataset_yaml(tmp_path)
    for words in ((), ("--skip-dataset-yaml",)):
        printed = ok(*prepare, *words)
        assert "Kept the dataset.yaml that is there." in printed
        assert "manually" not in printed
        assert "Warning" not in printed
    captions_of_another_kind = {"a.png": b"", "a.txt": b""}
    for shard in tmp_path.glob("*.tar"):
        write_tar(shard, {shard.stem + name: content for name, content in captions_of_another_kind.items()})
    assert "Warning: no sample has a part 'jpg' for the field 'image'; there are png, txt." in ok(*prepare)
    assert dataset_yaml(tmp_path) == kept
    (tmp_path / ".nv-meta" / "dataset.yaml").write_text("sample_type: [")
    printed = ok(*prepare)
    assert "Warning: " in printed
    assert "dataset.yaml" in printed
