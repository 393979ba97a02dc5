from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError, DatasetFormatError, EnergonDaliError
from energon_dali.metadataset.context import combine_shuffle_over_epochs
from energon_dali.metadataset.loader import load_dataset, traverse_metadataset
from energon_dali.metadataset.reference import (
    AuxReference,
    DatasetBlendMode,
    SourceReference,
    Subset,
    take_subset,
)
from energon_dali.metadataset.resolve import resolve
from energon_dali.plan.slices import Slices
from tests.loader.dataset_folder import prepare, write_shards

SECOND = "__module__: megatron.energon\n__class__: MetadatasetV2\n"


def write(folder: Path, name: str, splits: str, head: str = SECOND) -> Path:
    file = folder / name
    file.write_text(f"{head}splits:\n" + "".join(f"  {line}\n" for line in splits.splitlines()))
    return file


def weights(file: Path, split_part: str = "train") -> dict[str, float | None]:
    return {Path(source.path).name: source.weight for source in resolve(file, split_part).sources}


# --- paths -----------------------------------------------------------------------------------------------------------


def test_paths_start_from_the_file_or_are_urls(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", "inner.yaml", "train: {concat: [{path: ../a}, {path: /abs/b}, {path: 's3://bucket/c'}]}")
    outer = write(tmp_path, "outer.yaml", "train: {path: ./sub/inner.yaml}")
    assert [source.path for source in resolve(outer, "train").sources] == [f"{tmp_path}/a", "/abs/b", "s3://bucket/c"]


def test_relative_paths_of_a_url_stay_on_its_host() -> None:
    from energon_dali.metadataset.document import Document
    from energon_dali.shards import StoragePath

    document = Document("msc://p/x/mix.yaml", StoragePath("msc://p/x"), {})
    assert document.root.resolve_path("../a/./b").url == "msc://p/a/b"
    assert document.root.resolve_path("../../../a").url == "msc://p/a"


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("store", AuxReference("{folder}/store")),
        ("filesystem://images", AuxReference("{folder}/images", "filesystem")),
        ("filesystem:///images", AuxReference("/images", "filesystem")),
        ("filesystem+msc://p/images", AuxReference("msc://p/images", "filesystem")),
        ("msc://p/store", AuxReference("msc://p/store")),
        ("{path: store}", AuxReference("{folder}/store")),
        ("{fs_path: images}", AuxReference("{folder}/images", "filesystem")),
    ],
)
def test_aux_takes_every_form_of_energon(text: str, reference: AuxReference, tmp_path: Path) -> None:
    file = write(tmp_path, "mix.yaml", f"train:\n  path: a\n  aux: {{media: {text if '{' in text else repr(text)}}}")
    (source,) = resolve(file, "train").sources
    assert source.aux["media"] == AuxReference(reference.path.format(folder=tmp_path), reference.kind)


# --- how levels are put together -------------------------------------------------------------------------------------


def test_weights_are_shares_of_each_level_and_multiply(tmp_path: Path) -> None:
    write(tmp_path, "inner.yaml", "train: {blend: [{path: b, weight: 1}, {path: c, weight: 3}]}")
    outer = write(tmp_path, "outer.yaml", "train: {blend: [{path: a, weight: 5}, {path: inner.yaml, weight: 15}]}")
    assert weights(outer) == pytest.approx({"a": 0.25, "b": 0.75 / 4, "c": 0.75 * 3 / 4})


def test_repetitions_multiply_and_a_chain_counts_once(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", "train: {concat: [{path: b}, {path: c}]}")
    outer = write(tmp_path, "outer.yaml", "train: {blend_epochized: [{path: a}, {path: chain.yaml, repetitions: 2.5}]}")
    found = resolve(outer, "train")
    assert (found.mode, [source.repetitions for source in found.sources]) == ("repetitions", [1.0, 2.5, 2.5])
    assert resolve(tmp_path / "chain.yaml", "train").mode == "repetitions"


def test_a_chain_in_a_blend_shares_its_weight_by_the_number_of_samples(tmp_path: Path) -> None:
    for name, count in (("b", 3), ("c", 9)):
        prepare(write_shards(tmp_path / name, {f"k{n}": {"txt": b"x"} for n in range(count)}, 1), {"text": "txt"})
    write(tmp_path, "chain.yaml", "train: {concat: [{path: b}, {path: c, subset: {range: [0, 5]}}]}")
    outer = write(tmp_path, "outer.yaml", "train: {blend: [{path: a}, {path: chain.yaml}]}")
    assert weights(outer) == pytest.approx({"a": 0.5, "b": 0.5 * 3 / 8, "c": 0.5 * 5 / 8})


@pytest.mark.parametrize(
    ("outer", "inner"), [("blend", "blend_epochized"), ("blend_epochized", "blend"), ("concat", "blend")]
)
def test_weights_and_repetitions_are_not_nested(outer: str, inner: str, tmp_path: Path) -> None:
    write(tmp_path, "inner.yaml", f"train:\n  {inner}:\n  - {{path: a}}")
    file = write(tmp_path, "outer.yaml", f"train:\n  {outer}:\n  - {{path: inner.yaml}}")
    message = rf"outer.yaml:5 \(splits.train.{outer}\): .* at .*inner.yaml:5 \(splits.train.{inner}\), which is below"
    with pytest.raises(DatasetFormatError, match=message):
        resolve(file, "train")


def test_outer_subflavors_win_and_the_call_wins_over_all(tmp_path: Path) -> None:
    write(tmp_path, "inner.yaml", "x: {path: a, subflavors: {one: 1, two: 1, three: 1}, split_part: deep}")
    outer = write(tmp_path, "outer.yaml", "train: {path: inner.yaml, split_part: x, subflavors: {two: 2, three: 2}}")
    (source,) = resolve(outer, "train", subflavors={"three": 3}).sources
    assert (source.subflavors, source.split_part) == ({"one": 1, "two": 2, "three": 3}, "deep")


@pytest.mark.filterwarnings("error")
def test_the_old_subflavor_warns_and_does_not_override(tmp_path: Path) -> None:
    file = write(tmp_path, "old.yaml", "train: {datasets: [{path: a, subflavor: x}]}", head="")
    with pytest.warns(DeprecationWarning, match=r"old.yaml:2 \(splits.train.datasets\[0\].subflavor\)"):
        (source,) = resolve(file, "train").sources
    assert source.subflavors == {"__subflavor__": "x"}


@given(st.lists(st.sampled_from([None, -1, 1, 2, 3]), max_size=5))
def test_shuffling_over_epochs_multiplies_unless_a_level_says_otherwise(levels: list[int | None]) -> None:
    combined: int | None = 1
    for level in levels:
        combined = combine_shuffle_over_epochs(combined, level)
    numbers = [level for level in levels if level is not None]
    expected = None if None in levels else -1 if -1 in levels else int(np.prod(numbers or [1]))
    assert combined == expected


# --- subsets ---------------------------------------------------------------------------------------------------------


percents = st.integers(0, 100)


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    holes=st.sets(st.integers(0, 40), max_size=8),
    inner=st.tuples(percents, percents),
    outer=st.tuples(percents, percents),
    numbers=st.none() | st.tuples(st.integers(0, 6), st.none() | st.integers(0, 6)),
)
def test_a_subset_takes_the_samples_of_its_range(
    counts: list[int],
    holes: set[int],
    inner: tuple[int, int],
    outer: tuple[int, int],
    numbers: tuple[int, int | None] | None,
) -> None:
    samples = [(shard, index) for shard, count in enumerate(counts) for index in range(count)]
    kept = [sample for place, sample in enumerate(samples) if place not in holes]
    whole = set(range(len(counts))) == {shard for shard, _ in kept}  # a shard without samples is in no range
    ranges = (
        Slices(*(np.array(column) for column in zip(*((s, i, i + 1) for s, i in kept), strict=True))) if kept else None
    )
    if ranges is None or not whole:
        return
    own = Subset(numbers=numbers) if numbers and (numbers[1] is None or numbers[0] <= numbers[1]) else None
    own = own or Subset.of([f"{min(inner)}%", f"{max(inner)}%"])
    subset = own.within(Subset.of({"range": [f"{min(outer)}%", f"{max(outer)}%"]}))
    try:
        first, last = subset.bounds(len(samples))
    except ConfigError:
        assert own.numbers is not None
        assert max(own.numbers[0], own.numbers[1] or 0) > len(samples)
        return
    found = take_subset(ranges, counts, subset)
    rows = zip(found.shard.tolist(), found.start.tolist(), found.stop.tolist(), strict=True)
    taken = [(shard, index) for shard, begin, end in rows for index in range(begin, end)]
    assert taken == [sample for sample in samples[first:last] if sample in kept]


def test_neighbouring_shares_hold_every_sample_once() -> None:
    ranges = Slices.whole_shards([7, 5, 11])
    parts = [take_subset(ranges, [7, 5, 11], Subset.of([f"{n * 10}%", f"{n * 10 + 10}%"])) for n in range(10)]
    assert sum(part.num_samples for part in parts) == 23


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1], "range"),
        ("10%", "range"),
        (["10%", 5], "mixes"),
        ([5, "10%"], "mixes"),
        (["50%", "40%"], "is invalid"),
        ([5, 4], "is invalid"),
        ([-1, 4], "is invalid"),
        (["0%", "101%"], "is invalid"),
        (["x%", "5%"], "bound 'x%'"),
        ([True, 4], "bound True"),
        (["end", 4], "mixes"),
        ({"rnage": [0, 1]}, "needs some of `range`, `keys` and `where`"),
        ([0.1, 0.2], "bound"),
    ],
)
def test_a_subset_that_cannot_be_says_how_to_write_one(bad: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Subset.of(bad)
    assert "Write two percentages" in str(caught.value)


def test_numbers_are_allowed_only_at_the_innermost_level(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "mix.yaml",
        "train:\n  blend:\n  - path: a\n    subset: {range: [0%, 50%]}\n  subset: {range: [0, 10]}",
    )
    with pytest.raises(
        DatasetFormatError, match=r"mix.yaml:7 \(splits.train.blend\[0\].subset\): subset \[0, 10\] counts"
    ):
        resolve(file, "train")
    numbers = "subset: {range: [0, 10]}"
    write(tmp_path, "inner.yaml", "train: {path: a}")
    for node in (
        f"blend: [{{path: a}}, {{path: b}}]\n  {numbers}",
        f"blend_epochized: [{{path: a}}]\n  {numbers}",
        f"concat: [{{path: a}}]\n  {numbers}",
        f"path: inner.yaml\n  {numbers}",
        f"blend: [{{path: inner.yaml, {numbers}}}]",
    ):
        with pytest.raises(DatasetFormatError, match=r"subset \[0, 10\] counts samples, and is given for a blend"):
            resolve(write(tmp_path, "mix.yaml", f"train:\n  {node}"), "train")
    with pytest.raises(DatasetFormatError, match="counts samples"):
        resolve(write(tmp_path, "mix.yaml", "train: {blend: [{path: a}]}"), "train", subset=[0, 10])
    (source,) = resolve(write(tmp_path, "mix.yaml", f"train: {{blend: [{{path: a, {numbers}}}]}}"), "train").sources
    assert source.subset == Subset(numbers=(0, 10))
    with pytest.raises(ConfigError, match="reaches beyond the 4 samples"):
        take_subset(Slices.whole_shards([4]), [4], Subset.of([2, 5]))


# --- messages --------------------------------------------------------------------------------------------------------

BAD = [
    ("train: {path: a, wieght: 2}", r"mix.yaml:4 \(splits.train.wieght\): the key 'wieght' is not known"),
    ("train: {blend: [{path: a, wieght: 2}]}", r"\(splits.train.blend\[0\].wieght\): .*Did you mean 'weight'"),
    ("train:\n  blend:\n  - path: a\n    weight: '2'", r"mix.yaml:7 .*blend\[0\].weight\): '2' is invalid here: give"),
    ("train: {blend: [{path: a, weight: -1}]}", r"weight\): -1 is invalid here: .*greater than or equal to 0"),
    ("train: {blend: [{path: a, weight: 1e999}]}", r"weight\): inf is invalid here: .*finite"),
    ("train: {blend: [{path: a, weight: yes}]}", r"weight\): True is invalid here: give a number"),
    ("train: {blend: [{path: a, weight: 0}]}", r"\(splits.train.blend\): there is nothing to draw from"),
    ("train: {blend: []}", "there is nothing to draw from"),
    ("train: {concat: []}", "no dataset is named here"),
    ("train: {blend_epochized: [{path: a, repetitions: -2}]}", r"repetitions\): -2"),
    ("train: {blend: {path: a}}", r"\(splits.train.blend\): \{'path': 'a'\} is invalid here: give a list"),
    ("train: {blend: [a]}", r"blend\[0\]\): 'a' is not a mapping, which is needed here"),
    ("train: {blend: [{blend: [{path: a}]}]}", r"one of path, join is needed here, .* none of them, but blend"),
    ("train: {path: a, blend: []}", "there is path and blend"),
    ("train: {}", "none of them, but nothing"),
    ("train: 5", "5 is not a mapping, which is needed here, with the keys path, join, blend"),
    ("train: {path: 5}", r"path\): 5 is invalid here: give text \(in quotes"),
    ("train: {path: ''}", "the path is empty"),
    ("train: {path: 'ftp://x/y'}", r"path\): ftp://x/y has the scheme 'ftp'"),
    ("train: {path: a, subflavors: [1]}", r"subflavors\): \[1\] is invalid here: give a mapping"),
    ("train: {path: a, split_part: no}", r"split_part\): False is invalid here: give text"),
    ("train: {path: a, shuffle_over_epochs_multiplier: 0}", "0 is invalid here: give a whole number of at least 1, -1"),
    ("train: {path: a, shuffle_over_epochs_multiplier: 1.5}", r"1.5 is invalid here: give a whole number"),
    (
        "train: {path: a, aux: {m: 5}}",
        r"aux.m\): 5 is not a mapping, .* with the keys fs_path, path",
    ),
    ("train: {path: a, aux: {m: {pth: x}}}", r"aux.m.pth\): the key 'pth' .*Did you mean 'path'"),
    ("train: {path: a, aux: {m: {}}}", "either path or fs_path"),
    ("train: {path: a, aux: {m: 'tar+s3://x'}}", r"'tar\+s3://x' begins with tar\+s3://"),
    ("train: {path: b.yaml, aux: {m: x}}", r"aux belongs to a prepared folder, and .*b.yaml is a metadataset"),
    ("train: {path: b.jsonl, split_config: x}", "split_config belongs to a prepared folder"),
    ("train: {path: b.yaml}", r"mix.yaml:4 \(splits.train.path\): .*b.yaml is missing"),
    ("train: {join: [], joiner: {__class__: TextSample}}", "no dataset is named here. Name the primary one"),
    ("train: {join: [{path: a}], joiner: TextSample}", r"joiner\): 'TextSample' is not a joiner"),
    ("train: {join: [{path: a}], joiner: {__class__: A, __function__: b}}", "is not a joiner"),
    ("train: {join: [{path: a}]}", "'joiner' is missing"),
    ("train: {join: [{path: a, nonmatch: skip}], joiner: {__class__: TextSample}}", r"join\[0\].nonmatch\): the first"),
    ("train: {join: [{path: a}, {path: b, nonmatch: drop}], joiner: {__class__: A}}", r"join\[1\].nonmatch\): 'drop'"),
    ("train: {join: [{path: a.yaml}], joiner: {__class__: TextSample}}", "cannot be joined: only prepared folders"),
    ("train: {join: [{path: a, subset: {range: [0, 1]}}], joiner: {__class__: A}}", "is not allowed inside a join"),
    ("train: {join: [{path: a}], joiner: {__class__: A}, dataset_config: x}", "dataset_config belongs to the datasets"),
]


@pytest.mark.parametrize(("splits", "message"), BAD, ids=[text[:50].replace("\n", " ") for text, _ in BAD])
def test_what_cannot_be_names_file_line_and_key(splits: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetFormatError, match=message) as caught:
        resolve(write(tmp_path, "mix.yaml", splits), "train")
    assert str(caught.value).startswith(f"{tmp_path}/mix.yaml:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "None is not a mapping, which is needed here"),
        ("[1]", "is not a mapping, which is needed here"),
        ("splits: {}", r"mix.yaml:1 \(splits\): splits is {}, and has to name at least one"),
        ("splits: [1]", "has to name at least one split"),
        ("split: {train: {}}", "the key 'split' is not known here. .* Did you mean 'splits'"),
        ("__class__: Popen\n__module__: subprocess\nsplits: {a: 1}", "subprocess.Popen is not a metadataset"),
        ("__class__: MetadatasetV2\n__module__: megatron.energony\nsplits: {a: 1}", "megatron.energony.MetadatasetV2"),
        ("splits: {train: {blend: []}}", r"the key 'blend' is not known here. Allowed are datasets"),
        ("splits: {train: {datasets: [{path: a, subset: {}}]}}", "the key 'subset' is not known here"),
    ],
)
def test_what_is_not_a_metadataset(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mix.yaml"
    file.write_text(text)
    with pytest.raises(DatasetFormatError, match=message):
        load_dataset(file).resolve("train")


def test_an_unknown_split_names_those_that_there_are(tmp_path: Path) -> None:
    file = write(tmp_path, "mix.yaml", "train: {path: a}\nval: {path: a}")
    with pytest.raises(
        ConfigError, match=r"mix.yaml:3 \(splits\): the split 'trian' .*train, val.* Did you mean 'train'"
    ):
        resolve(file, "trian")


def test_metadatasets_that_contain_each_other_are_refused(tmp_path: Path) -> None:
    for here, there in (("a", "b"), ("b", "c"), ("c", "a")):
        write(tmp_path, f"{here}.yaml", f"train: {{path: {there}.yaml}}")
    with pytest.raises(
        DatasetFormatError, match=r"c.yaml:4 .*contains itself: .*a.yaml -> .*b.yaml -> .*c.yaml -> .*a.yaml"
    ):
        resolve(tmp_path / "a.yaml", "train")
    write(tmp_path, "self.yaml", "train: {path: self.yaml, split_part: val}\nval: {path: a}")
    with pytest.raises(DatasetFormatError, match="contains itself"):
        load_dataset(tmp_path / "self.yaml").resolve("train")


def test_files_that_double_at_every_level_are_refused(tmp_path: Path) -> None:
    for level in range(40):
        below = f"l{level - 1}.yaml" if level else "leaf"
        write(tmp_path, f"l{level}.yaml", f"train: {{blend: [{{path: {below}}}, {{path: {below}}}]}}")
    with pytest.raises(DatasetFormatError, match="more than 10,000 datasets"):
        resolve(tmp_path / "l39.yaml", "train")


# --- the interface ---------------------------------------------------------------------------------------------------


def test_a_dict_is_a_metadataset_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = resolve({"splits": {"train": {"datasets": [{"path": Path("a"), "weight": 2}, {"path": "b"}]}}}, "train")
    assert [(source.path, source.weight) for source in found.sources] == [
        (f"{tmp_path}/a", 2 / 3),
        (f"{tmp_path}/b", 1 / 3),
    ]
    with pytest.raises(DatasetFormatError, match=r"dict \(splits.train.datasets\[0\].wieght\)"):
        resolve({"splits": {"train": {"datasets": [{"path": "a", "wieght": 2}]}}}, "train")


def test_loaders_of_paths(tmp_path: Path) -> None:
    loader = load_dataset(tmp_path / "folder", split_part="val", subflavors={"a": 1, "b": 1})
    (item,) = loader.get_datasets(split_part="train", subflavors={"b": 2}, subset=["0%", "50%"]).datasets
    assert item.dataset == SourceReference(f"{tmp_path}/folder", "val", {"a": 1, "b": 2}, subset=Subset((0.0, 0.5)))
    assert loader.prepare() == []
    file = write(tmp_path, "mix.yaml", "train: {blend: [{path: a, aux: {m: x}}]}")
    mix = load_dataset(file)
    mix.post_initialize()
    assert (type(mix).__name__, mix.get_datasets(split_part="train").blend_mode) == (
        "MetadatasetV2",
        DatasetBlendMode.DATASET_WEIGHT,
    )
    (named,) = mix.get_datasets(split_part="train").datasets
    assert (named.aux, item.aux) == ({"m": AuxReference(f"{tmp_path}/x")}, None)
    (found,) = traverse_metadataset(file, split_part="train")
    assert (found.path, found.aux) == (f"{tmp_path}/a", {"m": f"{tmp_path}/x"})
    with pytest.raises(ConfigError, match="split_config for a metadataset"):
        load_dataset(file, split_config="x")
    with pytest.raises(DatasetFormatError, match="is not a metadataset"):
        traverse_metadataset(tmp_path / "folder", split_part="train")
    with pytest.raises(EnergonDaliError, match="ftp"):
        load_dataset("ftp://x/y.yaml")
    for wrong in ("", None, 5, [1]):
        with pytest.raises(ConfigError, match="is not the path of a dataset"):
            load_dataset(wrong)  # type: ignore[arg-type]


def test_a_join_cannot_be_traversed(tmp_path: Path) -> None:
    file = write(tmp_path, "mix.yaml", "train: {join: [{path: a}, {path: b}], joiner: {__class__: OCRSample}}")
    with pytest.raises(ConfigError, match=r"mix.yaml:4 \(splits.train.join\): a join is several"):
        traverse_metadataset(file, split_part="train")


def test_only_the_ratios_of_huge_weights_count(tmp_path: Path) -> None:
    text = "train: {blend: [{path: a, weight: 1.0e+308}, {path: b, weight: 1.0e+308}, {path: c}]}"
    sources = resolve(write(tmp_path, "mix.yaml", text), "train").sources
    assert [source.weight for source in sources] == [0.5, 0.5, 5e-309]
