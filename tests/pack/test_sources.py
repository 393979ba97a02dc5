"""Every kind of source becomes a dataset whose pixels and texts are those of the source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from energon_dali.errors import ConfigError, DatasetError, DatasetFormatError
from energon_dali.pack import PackResult
from energon_dali.shards import prepare_dataset
from energon_dali.shards.meta.dataset_config import CRUDE
from tests.pack.images_folder import caption, load, pack, png, same_pixels, write_images
from tests.shards.tars import write_tar


def test_folder_with_captions(tmp_path: Path) -> None:
    result = pack(write_images(tmp_path / "in", 12), tmp_path / "out", max_samples=5)
    assert [shard.samples for shard in result.shards] == [5, 5, 2]
    assert result.sample_type == "CaptioningSample"
    samples = load(result)
    assert sorted(samples) == [f"{'ab'[n % 2]}/img_{n:03d}" for n in (*range(0, 12, 2), *range(1, 12, 2))]
    for key, sample in samples.items():
        number = int(key[-3:])
        assert same_pixels(sample.image, number)
        assert sample.caption == caption(number)


def test_folder_without_captions_and_with_some(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 4, captions=False)
    assert pack(root, tmp_path / "plain").sample_type == "ImageSample"
    (root / "a" / "img.000.txt").write_text("one of four")
    crude = pack(root, tmp_path / "few")
    assert crude.sample_type == "ImageSample"
    assert crude.num_samples == 4
    for number in (1, 3):
        (root / "b" / f"img.00{number}.txt").write_text("now three of four")
    most = pack(root, tmp_path / "most")
    assert most.sample_type == "CaptioningSample"
    assert most.num_samples == 3
    assert [bad.what for bad in most.skipped] == ["a/img.002.png"]


def test_folder_of_folders_that_are_classes(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 4, captions=False)
    (root / "none.png").write_bytes(png(9))
    result = pack(root, tmp_path / "out", sample_type="ImageClassificationSample")
    assert {key: (sample.label, sample.label_name) for key, sample in load(result).items()} == {
        "a/img_000": (0, "a"),
        "a/img_002": (0, "a"),
        "b/img_001": (1, "b"),
        "b/img_003": (1, "b"),
    }
    assert [bad.what for bad in result.skipped] == ["none.png"]


def test_folder_with_captions_in_json_and_files_that_share_a_stem(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    for name in ("cat.png", "cat.webp", "dog.png"):
        (root / name).write_bytes(png(len(name)))
    (root / "cat.json").write_text('{"caption": "two cats"}')
    (root / "dog.png.json").write_text('{"caption": "a dog"}')
    result = pack(root, tmp_path / "out")
    assert {key: sample.caption for key, sample in load(result).items()} == {
        "cat": "two cats",
        "cat_webp": "two cats",
        "dog": "a dog",
    }


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json"])
def test_table(tmp_path: Path, suffix: str) -> None:
    root = write_images(tmp_path / "in", 6, captions=False)
    rows = [{"file_name": f"{'ab'[n % 2]}/img.{n:03d}.png", "text": caption(n), "score": n} for n in range(6)]
    rows.append({"file_name": "a/lost.png", "text": "gone", "score": 7})
    if suffix == "json":
        text = json.dumps(rows)
    elif suffix == "jsonl":
        text = "\n".join(map(json.dumps, rows))
    else:
        tab = "," if suffix == "csv" else "\t"
        text = "\n".join(["\ufeff" + tab.join(rows[0]), *(tab.join(map(str, row.values())) for row in rows)])
    (root / f"metadata.{suffix}").write_text(text, encoding="utf-8")
    result = pack(root, tmp_path / "out", split=(("train", "00000000[0-3]"), ("val", ".*")))
    assert result.split_samples == {"train": 4, "val": 2}
    assert [bad.reason for bad in result.skipped] == [f"'a/lost.png' does not exist in {root}"]
    samples = load(result) | load(result, "val")
    for number in range(6):
        sample = samples[f"{number:09d}"]
        assert same_pixels(sample.image, number)
        assert sample.caption == caption(number)


def test_table_of_questions_of_classes_and_of_columns_that_are_named(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 2, captions=False)
    path = root / "rows.jsonl"
    names = ["a/img.000.png", "b/img.001.png"]
    path.write_text("\n".join(json.dumps({"p": name, "query": "What?", "answer": [name, "x"]}) for name in names))
    (sample, _) = load(pack(path, tmp_path / "vqa", columns={"image": "p", "key": "p"})).values()
    assert (sample.__key__, sample.context, sample.answers) == ("a/img_000_png", "What?", [names[0], "x"])
    path.write_text("\n".join(json.dumps({"path": name, "label": number}) for number, name in enumerate(names)))
    samples = load(pack(path, tmp_path / "classes"))
    assert [sample.label for sample in samples.values()] == [0, 1]
    with pytest.raises(ConfigError, match=r"no column 'labl'\. Did you mean label"):
        pack(path, tmp_path / "wrong", columns={"label": "labl"})
    with pytest.raises(ConfigError, match="VQASample needs image and question"):
        pack(path, tmp_path / "wrong", sample_type="VQASample")


def conversation(number: int, image: Any) -> dict[str, Any]:
    turns = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": caption(number)}]
    return {"id": "same", "image": image, "conversations": turns}


def test_conversations(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 3, captions=False)
    rows = [
        conversation(0, "a/img.000.png"),
        conversation(1, ["b/img.001.png", "a/img.002.png"]),
        conversation(2, None),
    ]
    (root / "llava.json").write_text(json.dumps(rows))
    samples = load(pack(root, tmp_path / "out"), crude=True)
    assert same_pixels(samples["000000000"]["png"], 0)
    assert same_pixels(samples["000000001"]["0.png"], 1)
    assert same_pixels(samples["000000001"]["1.png"], 2)
    assert [sample["json"] for sample in samples.values()] == rows
    result = pack(root / "llava.json", tmp_path / "vqa", sample_type="VQASample")
    (sample,) = load(result).values()
    assert (sample.context, sample.answers) == ("What is it?", [caption(0)])
    assert len(result.skipped) == 2


def hugging_face_table(numbers: list[int]) -> pa.Table:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    table = pa.table(
        {
            "image": pa.array([{"bytes": png(n), "path": f"{n}.jpg"} for n in numbers], kind),
            "text": [caption(n) for n in numbers],
            "label": [n % 2 for n in numbers],
            "number": numbers,
        }
    )
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def test_hugging_face_parquet_with_splits(tmp_path: Path) -> None:
    root = tmp_path / "in" / "data"
    root.mkdir(parents=True)
    pq.write_table(hugging_face_table([0, 1, 2, 3, 4]), root / "train-00000-of-00001.parquet", row_group_size=2)
    pq.write_table(hugging_face_table([5, 6]), root / "validation-00000-of-00001.parquet")
    result = pack(tmp_path / "in", tmp_path / "out", shuffle=1, max_samples=3)
    assert result.split_samples == {"train": 5, "val": 2}
    samples = load(result) | load(result, "val")
    for number in range(7):
        sample = samples[f"{number:09d}"]
        assert same_pixels(sample.image, number)
        assert sample.caption == caption(number)
    classes = load(pack(tmp_path / "in", tmp_path / "classes", sample_type="ImageClassificationSample"))
    assert [(sample.label, sample.label_name) for sample in classes.values()][:2] == [(0, "cat"), (1, "dog")]
    crude = load(pack(tmp_path / "in", tmp_path / "crude", sample_type="CrudeWebdataset"), crude=True)
    assert crude["000000003"]["json"] == {"text": caption(3), "label": 1, "number": 3, "label_name": "dog"}


def test_hugging_face_saved_to_disk(tmp_path: Path) -> None:
    root = tmp_path / "in"
    for split, numbers in (("train", [0, 1, 2]), ("test", [3])):
        (root / split).mkdir(parents=True)
        table = hugging_face_table(numbers)
        with pa.ipc.new_stream(root / split / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
        (root / split / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (root / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    result = pack(root, tmp_path / "out")
    assert result.split_samples == {"train": 3, "test": 1}
    assert same_pixels(load(result, "test")["000000003"].image, 3)
    (root / "train" / "state.json").write_text('{"_data_files": [{"filename": "../../secret.arrow"}]}')
    with pytest.raises(DatasetFormatError, match="leads out of the dataset"):
        pack(root, tmp_path / "other")


def test_hugging_face_lists_of_images_and_a_damaged_row(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [[png(0), png(1)], [b"not an image"], [png(2)]]
    pq.write_table(pa.table({"images": rows, "texts": ["x", "y", "z"]}), tmp_path / "in" / "rows.parquet")
    result = pack(tmp_path / "in", tmp_path / "out", sample_type="CrudeWebdataset")
    samples = load(result, crude=True)
    assert same_pixels(samples["000000000"]["1.png"], 1)
    assert same_pixels(samples["000000002"]["0.png"], 2)
    assert [bad.what for bad in result.skipped] == ["rows.parquet, block 0, row 1"]
    (tmp_path / "in" / "rows.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DatasetFormatError, match="cannot be read as Parquet"):
        pack(tmp_path / "in", tmp_path / "other")


def test_lists_of_images_become_crude_samples(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 4, captions=False)
    images = [["a/img.000.png", "b/img.001.png"], ["a/img.002.png"]]
    rows = [{"images": each, "caption": "two words"} for each in images]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = pack(root / "metadata.jsonl", tmp_path / "out")
    assert result.sample_type == "CrudeSample"
    samples = load(result, crude=True)
    assert same_pixels(samples["000000000"]["1.png"], 1)
    assert same_pixels(samples["000000001"]["0.png"], 2)
    assert samples["000000001"]["txt"] == "two words"
    with pytest.raises(ConfigError, match=r"CaptioningSample has one image, and the column 'images' holds lists"):
        pack(root / "metadata.jsonl", tmp_path / "other", sample_type="CaptioningSample")


def test_hugging_face_lists_of_images_become_crude_samples(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"images": [[png(0), png(1)]], "question": ["Which?"], "answer": ["Both."]})
    pq.write_table(table, tmp_path / "in" / "rows.parquet")
    result = pack(tmp_path / "in", tmp_path / "out")
    assert result.sample_type == "CrudeSample"
    (sample,) = load(result, crude=True).values()
    assert same_pixels(sample["1.png"], 1)
    assert sample["json"]["question"] == "Which?"


def last_document(result: PackResult) -> Any:
    return list(load(result, crude=True).values())[-1]["json"]


def test_columns_that_only_later_rows_have(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 1, captions=False)
    rows: list[dict[str, Any]] = [{"image": "a/img.000.png"}] * 150
    rows += [{"image": "a/img.000.png", "license": "CC0", "origin": "x"}]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    crude: dict[str, Any] = {"sample_type": CRUDE}
    assert last_document(pack(root / "metadata.jsonl", tmp_path / "all", **crude)) == {"license": "CC0", "origin": "x"}
    chosen = pack(root / "metadata.jsonl", tmp_path / "chosen", metadata=("license",), **crude)
    assert last_document(chosen) == {"license": "CC0"}


def test_tars_are_written_again(tmp_path: Path) -> None:
    for shard in range(2):
        files = {}
        for number in range(shard * 4, shard * 4 + 4):
            files |= {f"k{number % 4}.png": png(number), f"k{number % 4}.txt": caption(number).encode()}
        write_tar(tmp_path / "in" / f"s{shard}.tar", files)
    result = pack(tmp_path / "in", tmp_path / "out", max_samples=3)
    samples = load(result)
    assert sorted(samples) == sorted([*(f"k{n}" for n in range(4)), *(f"k{n}_2" for n in range(4))])
    assert same_pixels(samples["k1_2"].image, 5)
    assert samples["k1_2"].caption == caption(5)


def test_tars_keep_their_split_and_their_samples(tmp_path: Path) -> None:
    root = tmp_path / "in"
    for shard in range(2):
        write_tar(
            root / f"s{shard}.tar", {f"{shard}{n}.{part}": png(n) for n in range(2) for part in ("png", "mask.png")}
        )
    prepare_dataset(root, split_patterns=[("train", "s0"), ("val", "s1")])
    config = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "ImageSample"},
        "field_map": {"image": "mask.png"},
    }
    (root / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(config))
    result = pack(root, tmp_path / "out")
    assert result.split_samples == {"train": 2, "val": 2}
    assert list(load(result, "val")) == ["10", "11"]
    assert yaml.safe_load((tmp_path / "out" / ".nv-meta" / "dataset.yaml").read_text()) == config
    write_tar(root / "other" / "s2.tar", {"x.mask.png": png(0)})  # nobody prepared it
    assert pack(root, tmp_path / "again").num_samples == 4


def test_what_cannot_be_told_apart_is_asked(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 2)
    write_tar(root / "x.tar", {"k.png": png(0)})
    (root / "metadata.csv").write_text("file_name,text\na/img.000.png,x\n")
    with pytest.raises(ConfigError, match=r"could be tars or table\. Choose with --kind"):
        pack(root, tmp_path / "out")
    assert pack(root, tmp_path / "folder", kind="folder").num_samples == 2
    assert pack(root, tmp_path / "tars", kind="tars").num_samples == 1
    assert pack(root, tmp_path / "table", kind="table").num_samples == 1
    with pytest.raises(ConfigError, match=r"holds it\. Give another folder"):
        pack(root, root)
    with pytest.raises(ConfigError, match="did not write"):
        pack(root, tmp_path / "in" / "a", kind="folder")


def test_shards_inside_the_source_are_not_packed(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 3)
    pack(root, root / "shards")
    assert pack(root, root / "shards").was_complete


def test_a_source_that_changes(tmp_path: Path) -> None:
    root = write_images(tmp_path / "in", 3)
    pack(root, tmp_path / "out")
    (root / "a" / "new.png").write_bytes(png(9))
    with pytest.raises(DatasetError, match="The source has changed since"):
        pack(root, tmp_path / "out")
    with pytest.raises(ConfigError, match="begun with max_samples=10000, and max_samples=2 was given"):
        pack(root, tmp_path / "out", max_samples=2)
    (root / "a" / "new.txt").write_text("new")
    assert pack(root, tmp_path / "out", overwrite=True, max_samples=2).num_samples == 4
    shutil.rmtree(tmp_path / "out" / ".nv-meta")
    assert pack(root, tmp_path / "out", max_samples=2).num_samples == 4
