"""Metadatasets in training: shares, orders, resume, and the options of a call."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    Cooker,
    DaliDecoder,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    stateless,
)
from energon_dali.errors import ConfigError, DatasetError, DatasetFormatError, StateError
from energon_dali.shards import prepare_dataset
from energon_dali.shards.index.jsonl_index import prepare_jsonl
from tests.datasets.oracle import check_resume, config
from tests.loader.dataset_folder import captioning_dataset, prepare, write_shards
from tests.part import sampled

GOLDEN = Path(__file__).parent.parent / "data" / "energon_7_4_1_mix"
SECOND = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}

pytestmark = pytest.mark.filterwarnings("ignore:.*subflavor is deprecated:DeprecationWarning")


@stateless
def cook(sample: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=str(sample["json"]))


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


def mix(node: dict[str, Any]) -> dict[str, Any]:
    return {**SECOND, "splits": {"train": node}}


def texts(folder: Path, count: int, prefix: str = "k", shards: int = 1) -> str:
    samples = {f"{prefix}{number:03d}": {"txt": b"text"} for number in range(count)}
    prepare(write_shards(folder, samples, shards), {"text": "txt"}, "TextSample")
    return str(folder)


def key_of(sample: Any) -> tuple[Any, ...]:
    return (sample.__key__, json.dumps(sample.__subflavors__, sort_keys=True), tuple(map(str, sample.__restore_key__)))


@pytest.mark.parametrize(
    ("name", "split"),
    sampled([("second.yaml", "train"), ("first.yaml", "train"), ("epochs.yaml", "train"), ("join.yaml", "val")], 3),
)
def test_a_metadataset_resumes_after_every_sample(name: str, split: str) -> None:
    def make() -> Any:
        return get_train_dataset(
            GOLDEN / name,
            split_part=split,
            worker_config=config(2),
            batch_size=None,
            shuffle_buffer_size=4,
            max_samples_per_sequence=2,
            task_encoder=Encoder(),
        )

    check_resume(make, count=45, view=key_of)
    tree = make()
    for sample in islice(tree, 20):
        again = tree.restore_sample(json.loads(json.dumps(sample.__restore_key__)))
        assert key_of(again) == key_of(sample)


def test_validation_resumes_after_every_sample_over_epochs() -> None:
    def make() -> Any:
        return get_val_dataset(
            GOLDEN / "second.yaml", split_part="test", worker_config=config(2), batch_size=None, task_encoder=Encoder()
        )

    check_resume(make, count=70, epochs=2, view=key_of)


@pytest.mark.parametrize("repetitions", [0.5, 1.25])
def test_fractional_repetitions_are_exact_over_all_streams(repetitions: float, tmp_path: Path) -> None:
    first = {"path": texts(tmp_path / "a", 12, "a", 2), "repetitions": repetitions}
    node = {"blend_epochized": [first, {"path": texts(tmp_path / "b", 7, "b")}]}
    dataset = get_train_dataset(mix(node), worker_config=config(3), max_samples_per_sequence=2, repeat=False)
    chosen = []
    for _ in range(2):
        counts = Counter(sample.__key__ for sample in dataset)
        assert sum(count for key, count in counts.items() if key[0] == "a") == 12 * repetitions
        assert all(counts[key] - int(repetitions) in (0, 1) for key in counts if key[0] == "a")
        assert {counts[f"b{number:03d}"] for number in range(7)} == {1}
        chosen.append(counts)
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize(
    ("train", "exclude"),
    [
        (["shard_000.tar"], []),
        (["shard_001.tar", "shard_000.tar"], []),
        (["shard_000.tar", "shard_001.tar"], ["shard_001.tar/k008"]),
    ],
)
def test_a_state_is_refused_where_the_split_changed_since(train: list[str], exclude: list[str], tmp_path: Path) -> None:
    path = texts(tmp_path / "a", 12, shards=2)

    def make() -> Any:
        node = {"blend": [{"path": path}, {"path": path, "split_part": "val"}]}
        return get_savable_loader(get_train_dataset(mix(node), worker_config=config(2)))

    state = make().save_state_rank()
    prepare_dataset(path, split_patterns=[("train", ".*"), ("val", ".*")])
    make().restore_state_rank(state)  # the same shards, prepared again
    (Path(path) / ".nv-meta" / "split.yaml").write_text(
        json.dumps({"split_parts": {"train": train, "val": ["shard_000.tar", "shard_001.tar"]}, "exclude": exclude})
    )
    with pytest.raises(StateError, match=r"\.ranges was '12-\w+', is '\d+-\w+' \(other samples: the split"):
        make().restore_state_rank(state)


def test_one_path_named_twice_comes_in_two_orders(tmp_path: Path) -> None:
    path = texts(tmp_path / "a", 40, shards=4)
    node = {"blend": [{"path": path, "subflavors": {"leaf": 0}}, {"path": path, "subflavors": {"leaf": 1}}]}
    dataset = get_train_dataset(mix(node), worker_config=config(), max_samples_per_sequence=1)
    orders: dict[int, list[str]] = {0: [], 1: []}
    for sample in islice(dataset, 100):
        orders[sample.__subflavors__["leaf"]].append(sample.__key__)
    assert len(orders[0][:30]) == len(orders[1][:30]) == 30
    assert orders[0][:30] != orders[1][:30]


def test_tar_shards_and_jsonl_come_together_with_workers_and_dali(tmp_path: Path) -> None:
    captions = captioning_dataset(tmp_path / "captions", 12, 2)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"n": {number}}}\n' for number in range(6)))
    prepare_jsonl(str(lines))
    node = {
        "concat": [
            {"path": captions, "subset": {"range": ["25%", "75%"]}},
            {"path": lines, "subset": {"range": [1, "end"]}},
        ]
    }

    class Task(Encoder):
        decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")

    dataset = get_train_dataset(
        mix(node),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=1),
        batch_size=None,
        repeat=False,
        task_encoder=Task(),
    )
    with get_savable_loader(dataset) as loader:
        found = Counter(type(sample).__name__ + sample.__key__ for sample in loader)
    expected = [f"CaptioningSamplek{number:04d}" for number in range(3, 9)] + [f"TextSample{n}" for n in range(1, 6)]
    assert found == Counter(expected)


def test_a_subset_and_subflavors_of_the_call(tmp_path: Path) -> None:
    path = texts(tmp_path / "a", 10)
    whole = get_val_dataset(path, split_part="train", worker_config=config(), subset=[2, 6], subflavors={"x": 1})
    assert [(s.__key__, s.__subflavors__) for s in whole] == [(f"k{number:03d}", {"x": 1}) for number in range(2, 6)]
    node = {"blend": [{"path": path, "subflavors": {"x": 2, "y": 2}}, {"path": path}]}
    sources = get_val_datasets(
        mix(node), split_part="train", worker_config=config(), subset={"range": ["0%", "20%"]}, subflavors={"x": 1}
    )
    assert [[(s.__key__, s.__subflavors__) for s in source] for source, _ in sources] == [
        [("k000", {"x": 1, "y": 2}), ("k001", {"x": 1, "y": 2})],
        [("k000", {"x": 1}), ("k001", {"x": 1})],
    ]


def test_what_a_call_may_not_say_of_a_metadataset(tmp_path: Path) -> None:
    path = texts(tmp_path / "a", 6)
    weighted = mix({"blend": [{"path": path}, {"path": path}]})
    with pytest.raises(ConfigError, match="repeat=False asks for epochs"):
        get_train_dataset(weighted, worker_config=config(), repeat=False)
    with pytest.raises(ConfigError, match="split_config was given for a metadataset"):
        get_train_dataset(weighted, worker_config=config(), split_config="split2.yaml")
    with pytest.raises(ConfigError, match="is not the path of a dataset"):
        get_train_dataset(5, worker_config=config())  # type: ignore[arg-type]

    class Native(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = DaliDecoder(feed="native", image_decode_device="cpu")

    with pytest.raises(ConfigError, match='one of several datasets; feed="native" reads one dataset'):
        get_train_dataset(weighted, worker_config=config(), task_encoder=Native())


def test_what_is_wrong_with_a_source_names_where_it_is_named(tmp_path: Path) -> None:
    path = texts(tmp_path / "a", 6)
    file = tmp_path / "mix.yaml"

    def open_with(entry: str) -> None:
        file.write_text(f"__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n    - path: a\n    - {entry}\n")
        get_train_dataset(file, worker_config=config(), task_encoder=Encoder())

    place = r"mix.yaml:6 \(splits.train.blend\[1\].path\): "
    with pytest.raises(DatasetFormatError, match=f"{place}.*nothing_there"):
        open_with("{path: nothing_there}")
    with pytest.raises(ConfigError, match=f"{place}.*has no split part 'tset'"):
        open_with("{path: a, split_part: tset}")
    with pytest.raises(ConfigError, match=f"{place}.*reaches beyond the 6 samples"):
        open_with("{path: a, subset: {range: [0, 7]}}")
    with pytest.raises(ConfigError, match=f"{place}.*auxiliary stores media.*are not crude"):
        open_with("{path: a, aux: {media: a}}")
    with pytest.raises(ConfigError, match=f"{place}shuffle_over_epochs_multiplier=1000000000000 would shuffle"):
        open_with("{path: a, shuffle_over_epochs_multiplier: 1000000000000}")
    with pytest.raises(DatasetError, match="no sample"):
        open_with("{path: a, subset: {range: [3, 3]}}")
    (Path(path) / ".nv-meta" / "index.sqlite").unlink()  # only needed by joins and stores
    open_with("{path: a}")


@pytest.mark.parametrize("size", [None, 4], ids=["batches", "global_batches"])
def test_only_a_dataset_that_has_a_weight_at_some_time_needs_samples(size: int | None, tmp_path: Path) -> None:
    empty, full = texts(tmp_path / "a", 6), texts(tmp_path / "b", 6, "b")

    def opened(weight: object) -> Any:
        entries = [{"path": empty, "subset": {"range": [3, 3]}, "weight": weight}, {"path": full}]
        options: Any = {"batch_size": 2, "global_batch_size": size, "shuffle_buffer_size": None}
        one_rank = WorkerConfig(rank=0, world_size=1, num_workers=0)
        return get_train_dataset(mix({"blend": entries}), worker_config=one_rank, **options)

    with get_savable_loader(opened(0)) as loader:
        if size is not None:
            with pytest.raises(ConfigError, match="it has no sample"):
                loader.set_weights([0.5, 0.5], from_step=3)
        found = [key for batch in islice(loader, 6) for key in batch.__key__]
    assert sorted(found) == sorted([f"b{number:03d}" for number in range(6)] * 2)
    over_time = ({"step": {0: 0, 5: 1}}, {"step": {0: 1, 5: 0}}, {"linear": {0: 0, 5: 1}})
    for weight in (0.5, *([] if size is None else [{**weight, "over": "steps"} for weight in over_time])):
        with pytest.raises(DatasetError, match="no sample"):
            opened(weight)


def test_a_hundred_datasets_keep_a_small_state(tmp_path: Path) -> None:
    texts(tmp_path / "a", 8)
    file = tmp_path / "mix.yaml"
    entries = "".join(f"    - {{path: a, weight: {1 + n % 7}, subflavors: {{n: {n}}}}}\n" for n in range(100))
    file.write_text(f"__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n{entries}")
    dataset = get_train_dataset(file, worker_config=config(4), shuffle_buffer_size=100_000)
    found = Counter(sample.__subflavors__["n"] for sample in islice(dataset, 2000))
    assert len(found) == 100
    assert len(json.dumps(dataset.state_dict())) < 64 * 1024
