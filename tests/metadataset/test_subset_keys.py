"""`subset: {keys: file}` keeps the samples that a file names: in blends, joins, states, plans, and jobs of steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.cli.info import _count
from energon_dali.diagnosis.seen_samples import find_seen
from energon_dali.diagnosis.step_plan import plan_steps
from energon_dali.errors import ConfigError, DatasetFormatError, EmptyDatasetError, EnergonDaliError
from energon_dali.metadataset.loader import prepare_metadataset
from energon_dali.metadataset.reference import Subset
from energon_dali.metadataset.resolve import resolve
from energon_dali.shards import StoragePath, WebdatasetFolder, prepare_jsonl
from energon_dali.shards.sample_keys import find_samples
from energon_dali.shards.subset_file import SampleName, parse_subset, read_subset_file, subset_lines, text_lines
from tests.datasets.oracle import check_resume, config
from tests.loader.dataset_folder import prepare, write_shards

SECOND = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
COUNT = 40
CHOSEN = ["k003", "k004", "k011", "k025", "k026", "k027", "k039"]


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty samples in four shards, and a second dataset of fifteen in three folders."""
    folder = tmp_path_factory.mktemp("keys")
    texts = {f"k{number:03d}": {"txt": f"text {number}".encode()} for number in range(COUNT)}
    prepare(write_shards(folder / "data", texts, 4), {"text": "txt"}, "TextSample")
    same = folder / "same"
    for shard in range(3):
        write_shards(same / f"part{shard}", {f"{shard}-{number}": {"txt": b"x"} for number in range(5)}, 1)
    prepare(same, {"text": "txt"}, "TextSample")
    keys_file(folder / "chosen.txt", CHOSEN)
    return folder


def keys_file(path: Path, keys: Iterable[str]) -> Path:
    path.write_text("".join(f"{key}\n" for key in keys))
    return path


def keys_of(path: Any, subset: Any = None, split_part: str = "train", **options: Any) -> list[str]:
    found = get_val_dataset(
        path, split_part=split_part, worker_config=config(), task_encoder=Encoder(), subset=subset, **options
    )
    return [sample.__key__ for sample in found]


def metadataset(folder: Path, node: dict[str, Any], name: str = "mix.yaml") -> Path:
    file = folder / name
    file.write_text(json.dumps({**SECOND, "splits": {"train": node}}))
    return file


# --- files -----------------------------------------------------------------------------------------------------------


def test_text_and_json_lines_name_samples(folder: Path, tmp_path: Path) -> None:
    text = "\ufeffk003\r\n\n k 4 \nk003\nünï/ç.ödé"
    assert parse_subset(text.encode(), "/x.txt") == [SampleName("k003"), SampleName(" k 4 "), SampleName("ünï/ç.ödé")]
    lines = ['"a"', '{"key": "b", "score": 0.5}', '{"shard": "s/t.tar", "key": "c\\nd"}', '{"key": "b"}', ""]
    found = parse_subset("\n".join(lines).encode(), "/x.jsonl")
    assert found == [SampleName("a"), SampleName("b"), SampleName("c\nd", "s/t.tar")]
    file = tmp_path / "again.jsonl"
    file.write_text(subset_lines(found))
    assert read_subset_file(StoragePath.of(file)) == found


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "k003", "with a key per line"),
        ("x.jsonl", "k003", "x.jsonl:1: .*names no sample"),
        ("x.jsonl", '"k003"\n{"shard": "a"}', "x.jsonl:2: .*no `key`"),
        ("x.jsonl", '{"key": 3}', "have to be text"),
        ("x.jsonl", "3", "neither an object nor text"),
        ("x.jsonl", '{"key": ' + "[" * 3000, "x.jsonl:1"),
        ("x.txt", b"k003\n\xff", "x.txt:2"),
        ("x.txt", "k" * 100_000, "100,000 bytes"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, folder: Path, name: str, content: Any, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ConfigError, DatasetFormatError), match=message):
        keys_of(folder / "data", {"keys": str(file)})


@pytest.mark.parametrize("key", ["a\nb", "a\r", " ", "", "\ufeffa"])
def test_plain_text_holds_no_key_that_it_would_read_as_another(key: str) -> None:
    with pytest.raises(ConfigError, match=r"Export JSON lines \(\.jsonl\)"):
        text_lines([SampleName("fine"), SampleName(key)])
    assert parse_subset(subset_lines([SampleName(key)]).encode(), "x.jsonl") == [SampleName(key)]
    spaces = [SampleName(" a"), SampleName("b "), SampleName("c\td")]
    assert parse_subset(text_lines(spaces).encode(), "x.txt") == spaces


def test_files_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = keys_file(tmp_path / "x.txt", CHOSEN)
    monkeypatch.setattr("energon_dali.shards.subset_file.MAX_SUBSET_SAMPLES", 5)
    with pytest.raises(DatasetFormatError, match="8 lines, and may have 5"):
        read_subset_file(StoragePath.of(file))
    monkeypatch.setattr("energon_dali.shards.subset_file.MAX_SUBSET_BYTES", 5)
    with pytest.raises(DatasetFormatError, match="files of its kind may have 5"):
        read_subset_file(StoragePath.of(file))
    with pytest.raises(ConfigError, match="is missing"):
        read_subset_file(StoragePath.of(tmp_path / "y.txt"))


# --- choosing --------------------------------------------------------------------------------------------------------


def test_samples_are_chosen_by_their_keys(folder: Path, tmp_path: Path) -> None:
    data = folder / "data"
    assert keys_of(data, {"keys": folder / "chosen.txt"}) == CHOSEN
    assert keys_of(data, {"keys": str(folder / "chosen.txt"), "range": [4, 26]}) == ["k004", "k011", "k025"]
    again = keys_file(tmp_path / "again.txt", [*reversed(CHOSEN), *CHOSEN])
    assert keys_of(data, {"keys": str(again)}) == CHOSEN  # order and repetitions mean nothing
    with pytest.raises(ConfigError, match=r"needs some of `range`, `keys` and `where`"):
        Subset.of({"key": "x.txt"})
    for wrong in ("", 3, "nothing://x.txt", "/etc/passwd"):
        with pytest.raises(ConfigError):
            Subset.of({"keys": wrong})


def test_a_training_run_delivers_each_chosen_sample_once_per_epoch(folder: Path) -> None:
    dataset = get_train_dataset(
        folder / "data",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        task_encoder=Encoder(),
        subset={"keys": folder / "chosen.txt"},
        shuffle_buffer_size=10,
        max_samples_per_sequence=3,
        repeat=False,
    )
    with get_savable_loader(dataset) as loader:
        assert sorted(sample.__key__ for sample in loader) == CHOSEN


def test_names_with_a_shard_read_the_index_of_this_shard_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = WebdatasetFolder(folder / "same", allow_imports=True)
    read: list[int] = []
    shard = type(data.index).shard
    monkeypatch.setattr(type(data.index), "shard", lambda self, number: read.append(number) or shard(self, number))
    name = SampleName("1-3", data.shard_names[1])
    found = find_samples(data, [name])
    assert (found.numbers.tolist(), read) == ([8], [1])
    assert find_samples(data, [name, SampleName("2-0"), SampleName("1-3")]).numbers.tolist() == [8, 10]


def test_what_the_dataset_does_not_have_is_an_error(folder: Path, tmp_path: Path) -> None:
    def message(names: list[Any]) -> str:
        file = tmp_path / "wrong.jsonl"
        file.write_text("".join(json.dumps(name) + "\n" for name in names))
        with pytest.raises(ConfigError) as caught:
            keys_of(folder / "data", {"keys": str(file)})
        return str(caught.value)

    many = message(["k003", *(f"x{number}" for number in range(8))])
    assert "names 8 of 9 samples" in many
    assert "x0, x1, x2, x3, x4 and 3 more" in many
    assert "For 'K003.jpg', there is 'k003'." in message(["K003.jpg"])
    assert "For 'images/k004', there is 'k004'." in message(["k003", "images/k004"])
    assert "For 'k0033', there is" in message(["k0033"])
    assert "no shard 'shards_001.tar'; there is 'shard_001.tar'" in message([{"key": "k3", "shard": "shards_001.tar"}])
    assert "Another shard has 'k003'" in message([{"key": "k003", "shard": "shard_003.tar"}])


def test_lines_of_a_jsonl_file_are_named_by_number(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(9)))
    prepare_jsonl(str(file))
    from energon_dali.diagnosis.step_plan import uncooked_encoder

    def found(names: list[str]) -> list[str]:
        chosen = keys_file(tmp_path / "chosen.txt", names)
        dataset = get_val_dataset(
            file,
            split_part="train",
            worker_config=config(),
            task_encoder=uncooked_encoder(),
            subset={"keys": chosen},
        )
        return [sample["__key__"] for sample in dataset]

    assert found(["7", "2"]) == ["2", "7"]
    for wrong in ("9", "-1", "02", "x", "\uff19"):
        with pytest.raises(ConfigError, match="number of its line, 0 to 8"):
            found([wrong])


def test_samples_in_another_part_of_the_split_are_left_out(folder: Path, tmp_path: Path) -> None:
    data = prepare(
        write_shards(tmp_path / "data", {f"k{n:03d}": {"txt": b"x"} for n in range(40)}, 4),
        {"text": "txt"},
        "TextSample",
    )
    parts = {"train": ["shard_000.tar", "shard_001.tar"], "val": ["shard_002.tar"], "test": ["shard_003.tar"]}
    (data / ".nv-meta" / "split.yaml").write_text(json.dumps({"split_parts": parts, "exclude": []}))
    chosen = {"keys": keys_file(tmp_path / "some.txt", CHOSEN[:-1])}
    assert keys_of(data, chosen) == CHOSEN[:3]
    assert keys_of(data, chosen, "val") == CHOSEN[3:-1]
    with pytest.raises(EmptyDatasetError, match="in other parts of the split"):
        keys_of(data, chosen, "test")
    with pytest.raises(EmptyDatasetError, match="it names none"):
        keys_of(data, {"keys": keys_file(tmp_path / "none.txt", [])})


# --- metadatasets ----------------------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_metadataset(folder: Path) -> None:
    file = metadataset(folder, {"path": "data", "subset": {"keys": "chosen.txt"}})
    assert keys_of(file) == CHOSEN
    (source,) = resolve(str(file), "train").sources
    assert _count(source) == "up to 40"
    with pytest.raises(EnergonDaliError, match=r"mix.yaml.*subset.*does not name samples"):
        keys_of(metadataset(folder, {"path": "data", "subset": {"keys": "../../etc/passwd"}}))
    keys_file(folder / "wrong.txt", ["k1"])
    with pytest.raises(ConfigError, match=r"mix.yaml.*wrong.txt names 1 of 1 samples"):
        keys_of(metadataset(folder, {"path": "data", "subset": {"keys": "wrong.txt"}}))


def test_a_remote_metadataset_names_no_local_file() -> None:
    from energon_dali.metadataset.context import Context
    from energon_dali.metadataset.document import document_from_dict

    node = document_from_dict({"subset": {"keys": "/home/x.txt"}}, StoragePath.of("s3://bucket/mix")).root
    with pytest.raises(DatasetFormatError, match="a remote metadataset must not name"):
        Context("train").with_subset(node, node.value["subset"])
    value = {"keys": "../lists/x.txt"}
    found = Context("train").with_subset(node, value).subset
    assert found is not None
    assert str(found.keys) == "s3://bucket/lists/x.txt"


def test_keys_are_those_of_a_single_dataset(folder: Path) -> None:
    blend = {"blend": [{"path": "data"}, {"path": "same"}], "subset": {"keys": "chosen.txt"}}
    with pytest.raises(EnergonDaliError, match="Keys are those of a single dataset"):
        keys_of(metadataset(folder, blend))
    inner = metadataset(folder, {"path": "data"}, "inner.yaml")
    for path, subset in ((inner, {"keys": folder / "chosen.txt"}), (metadataset(folder, blend["blend"][0]), None)):
        if subset is not None:
            with pytest.raises(EnergonDaliError, match="Keys are those of a single dataset"):
                keys_of(path, subset)
    outer = metadataset(folder, {"path": "inner.yaml", "subset": {"keys": "chosen.txt"}})
    with pytest.raises(EnergonDaliError, match="Keys are those of a single dataset"):
        keys_of(outer)
    half = {"blend": [{"path": "data", "subset": {"keys": "chosen.txt"}}], "subset": {"range": ["0%", "50%"]}}
    assert keys_of(metadataset(folder, half)) == CHOSEN[:3]


def test_a_join_is_chosen_by_the_keys_of_its_first_dataset(folder: Path) -> None:
    extra = [f"k{number:03d}" for number in range(COUNT) if number != 4]
    prepare(
        write_shards(folder / "right", {key: {"txt": b"right"} for key in reversed(extra)}, 3),
        {"text": "txt"},
        "TextSample",
    )
    node = {
        "join": [{"path": "data"}, {"path": "right", "nonmatch": "skip"}],
        "joiner": {"__module__": "megatron.energon", "__class__": "TextSample"},
        "subset": {"keys": "chosen.txt"},
    }
    file = metadataset(folder, node, "join.yaml")
    prepare_metadataset(file)
    assert keys_of(file) == [key for key in CHOSEN if key != "k004"]


def blend_of(folder: Path) -> Path:
    keys_file(folder / "odd.txt", [f"k{number:03d}" for number in range(1, COUNT, 2)])
    return metadataset(
        folder,
        {
            "blend": [
                {"path": "data", "weight": 3, "subset": {"keys": "chosen.txt"}},
                {"path": "data", "weight": 1, "subset": {"keys": "odd.txt"}, "subflavors": {"from": "odd"}},
            ]
        },
        "blend.yaml",
    )


def test_a_blend_continues_exactly(folder: Path) -> None:
    file = blend_of(folder)

    def make() -> Any:
        return get_train_dataset(
            file,
            worker_config=config(2),
            batch_size=2,
            task_encoder=Encoder(),
            shuffle_buffer_size=8,
            max_samples_per_sequence=2,
        )

    check_resume(make, count=24, every=5, view=lambda batch: (batch.__key__, batch.__restore_key__))
    seen = Counter(key for batch in islice(make(), 60) for key in batch.__key__)
    odd = {f"k{number:03d}" for number in range(1, COUNT, 2)}
    assert set(seen) <= {*CHOSEN, *odd}


def test_another_list_of_keys_is_another_dataset_and_a_moved_file_is_not(folder: Path, tmp_path: Path) -> None:
    def loader(keys: Path) -> Any:
        dataset = get_train_dataset(
            folder / "data",
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=1,
            task_encoder=Encoder(),
            subset={"keys": keys},
        )
        return get_savable_loader(dataset)

    with loader(folder / "chosen.txt") as first:
        expected = [batch.__key__ for batch in islice(iter(first), 6)]
        state = first.save_state_rank()
        following = [batch.__key__ for batch in islice(iter(first), 3)]
    assert len(expected) == 6
    with loader(keys_file(tmp_path / "moved.txt", reversed(CHOSEN))) as moved:
        moved.restore_state_rank(state)
        assert [batch.__key__ for batch in islice(iter(moved), 3)] == following
    with (
        loader(keys_file(tmp_path / "other.txt", CHOSEN[1:])) as other,
        pytest.raises(EnergonDaliError, match="ranges"),
    ):
        other.restore_state_rank(state)


def test_steps_plans_and_what_was_seen_follow_from_the_keys(folder: Path) -> None:
    file = blend_of(folder)

    def dataset(rank: int) -> Any:
        return get_train_dataset(
            file,
            worker_config=WorkerConfig(rank=rank, world_size=2, num_workers=0),
            batch_size=2,
            global_batch_size=8,
            task_encoder=Encoder(),
        )

    delivered: Counter[str] = Counter()
    by_step: dict[tuple[int, int], list[str]] = {}
    states = []
    for rank in range(2):
        with get_savable_loader(dataset(rank)) as loader:
            for number, batch in enumerate(islice(iter(loader), 10)):
                by_step.setdefault((number // 2, rank), []).extend(batch.__key__)
                delivered.update(batch.__key__)
            states.append(loader.save_state_rank())
    planned: dict[tuple[int, int], list[str]] = {}
    for batch in plan_steps(dataset(0), range(5)):
        planned.setdefault((batch.step, batch.rank), []).extend(sample.key for sample in batch.samples)
    assert planned == by_step
    found = find_seen(dataset(0), states)
    counts: Counter[str] = Counter()
    for one in found:
        counts[found.sources[one.source].reader.indexed(one.shard, one.index).key] += one.seen
    assert counts == delivered
