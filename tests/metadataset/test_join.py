from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from energon_dali import (
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    TextSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.datasets.stream import Planned, StreamContext
from energon_dali.errors import (
    ConfigError,
    DatasetError,
    DatasetFormatError,
    StorageError,
    StoreUnavailableError,
    UntrustedCodeError,
)
from energon_dali.metadataset.join import joined_reader
from energon_dali.metadataset.join.columns import JoinIndexFile, energon_names, open_columns
from energon_dali.metadataset.loader import prepare_metadataset
from energon_dali.metadataset.resolve import resolve
from energon_dali.shards import StoragePath, prepare_dataset
from energon_dali.shards.index import tar_index
from tests.datasets.oracle import check_resume, config
from tests.loader.dataset_folder import picture, prepare, write_shards

GOLDEN = Path(__file__).parent.parent / "data" / "energon_7_4_1_mix"
KEYS = [f"k{number:02d}" for number in range(12)]


def dataset(folder: Path, parts: Mapping[str, str], keys: list[str], *, shards: int, kind: str = "TextSample") -> Path:
    write_shards(folder, {key: {p: text.format(key).encode() for p, text in parts.items()} for key in keys}, shards)
    fields = {"text": "txt"} if kind == "TextSample" else {"image": "txt"}
    return prepare(folder, fields, kind)


def join(folder: Path, *others: str, joiner: str = "{__class__: OCRSample}", named: bool = False) -> Path:
    rows = ["{path: left, subflavors: {side: left}}", *others]
    items = [f"      {'abc'[n]}: {row}" if named else f"    - {row}" for n, row in enumerate(rows)]
    file = folder / "join.yaml"
    file.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        + "\n".join(items)
        + f"\n    joiner: {joiner}\n"
    )
    return file


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with left (12 samples, 3 shards) and right (8 of them in another order, 2 shards)."""
    dataset(tmp_path / "left", {"txt": "left {}"}, KEYS, shards=3, kind="ImageSample")
    dataset(tmp_path / "right", {"txt": "right {}"}, [*KEYS[8:], *KEYS[:4]], shards=2)
    return tmp_path


def samples(file: Path, **kwargs: Any) -> list[Any]:
    return list(get_val_dataset(file, split_part="train", worker_config=config(), **kwargs))


def combine(left: Any, right: Any) -> TextSample:
    return TextSample.derive_from(left, text=f"{left.image} + {None if right is None else right.text}")


def combine_named(*, a: Any, b: Any) -> TextSample:
    return combine(a, b)


@pytest.fixture
def joiner(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "joiners_of_a_user", SimpleNamespace(combine=combine, combine_named=combine_named))  # type: ignore[misc]
    return "{__module__: joiners_of_a_user, __function__: combine}"


# --- joined samples --------------------------------------------------------------------------------------------------


def test_skip_leaves_out_what_has_no_match(pair: Path) -> None:
    file = join(pair, "{path: right, nonmatch: skip, subflavors: {side: right}}")
    prepare_metadataset(file)
    found = samples(file)
    matched = [*KEYS[:4], *KEYS[8:]]
    assert [(s.__key__, s.image, s.text) for s in found] == [(k, f"left {k}", f"right {k}") for k in matched]
    assert found[0].__subflavors__ == {"side": "left"}
    assert [source.dataset_path for source in found[0].__sources__] == [str(pair / "left"), str(pair / "right")]


def test_none_joins_with_none(pair: Path, joiner: str) -> None:
    file = join(pair, "{path: right, nonmatch: none}", joiner=joiner)
    prepare_metadataset(file)
    found = samples(file, allow_imports=True)
    expected = [f"left {k} + {None if k in KEYS[4:8] else f'right {k}'}" for k in KEYS]
    assert [sample.text for sample in found] == expected


def test_error_names_the_samples_without_a_match(pair: Path) -> None:
    file = join(pair, "{path: right}")
    with pytest.raises(
        DatasetError, match=r"join.yaml:5 .*4 samples of shard_001.tar .* no match .*'k04', 'k05', 'k06'"
    ):
        prepare_metadataset(file)


def test_samples_in_another_part_of_the_split_are_not_a_match(pair: Path) -> None:
    split = pair / "right" / ".nv-meta" / "split.yaml"
    split.write_text("split_parts: {train: [shard_001.tar]}\nexclude: [shard_001.tar/k02]\n")
    (pair / "left" / ".nv-meta" / "split.yaml").write_text(
        "split_parts: {train: ['shard_00{2,0}.tar', shard_001.tar]}\nexclude: [shard_001.tar, shard_000.tar/k00]\n"
    )
    file = join(pair, "{path: right, nonmatch: skip}")
    prepare_metadataset(file)
    assert [sample.__key__ for sample in samples(file)] == ["k01", "k03"]


def test_more_datasets_by_name_and_a_crude_one(pair: Path, joiner: str) -> None:
    file = join(pair, "{path: right, nonmatch: none}", joiner=joiner.replace("combine", "combine_named"), named=True)
    prepare_metadataset(file)
    assert samples(file, allow_imports=True)[0].text == "left k00 + right k00"
    plain = join(pair, "{path: right, nonmatch: skip}", named=True)
    prepare_metadataset(plain)
    with pytest.raises(ConfigError, match=r"join.yaml:5 .*OCRSample takes joined samples by position, .* a, b"):
        samples(plain)
    (pair / "right" / ".nv-meta" / "dataset.yaml").write_text("__class__: CrudeWebdataset\n")
    with pytest.raises(ConfigError, match="is crude, and from_joined of OCRSample takes samples with fields"):
        samples(join(pair, "{path: right, nonmatch: skip}"))


def test_a_subset_counts_joined_samples(pair: Path) -> None:
    file = join(pair, "{path: right, nonmatch: skip}")
    file.write_text(file.read_text() + "    subset: {range: [25%, 75%]}\n")
    prepare_metadataset(file)
    assert [sample.__key__ for sample in samples(file)] == ["k02", "k03", "k08", "k09"]


# --- training, resume, media -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 7])
def test_training_resumes_everywhere_and_single_samples_are_restored(
    pair: Path, joiner: str, window: int | None
) -> None:
    file = join(pair, "{path: right, nonmatch: none}", joiner=joiner)
    prepare_metadataset(file)

    def make() -> Any:
        return get_train_dataset(
            file,
            worker_config=config(2),
            batch_size=None,
            shuffle_buffer_size=window,
            max_samples_per_sequence=3,
            repeat=False,
            allow_imports=True,
            packing_buffer_size=None,
        )

    check_resume(make, count=30, epochs=2, view=lambda sample: (sample.__key__, sample.text))
    tree = make()
    epoch = list(tree)
    assert sorted(sample.__key__ for sample in epoch) == KEYS
    for sample in epoch:
        again = tree.restore_sample(json.loads(json.dumps(sample.__restore_key__)))
        assert (again.__key__, again.text) == (sample.__key__, sample.text)


def test_media_of_all_sides_are_decoded_in_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, first in (("left", 0), ("right", 20)):
        pictures = {f"k{n}": {"jpg": picture(first + n, "jpg", (48 + n, 40))} for n in range(5)}
        prepare(write_shards(tmp_path / name, pictures, 1), {"image": "jpg"}, "ImageSample")
    monkeypatch.setitem(sys.modules, "joiners_of_a_user", SimpleNamespace(stack=both_images))  # type: ignore[misc]
    file = join(tmp_path, "{path: right}", joiner="{__module__: joiners_of_a_user, __function__: stack}")
    prepare_metadataset(file)
    found = []
    workers = WorkerConfig(rank=0, world_size=1, num_workers=1)
    for job, decoder in (
        (config(), SampleDecoder(image_decode="torchrgb8")),
        (workers, DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")),
    ):
        encoder = DefaultTaskEncoder[Any, Any, Any, Any]()
        encoder.decoder = decoder
        with get_loader(
            get_val_dataset(file, split_part="train", worker_config=job, task_encoder=encoder, allow_imports=True)
        ) as loader:
            found.append([[image.numpy().tolist() for image in sample.sequence] for sample in loader])
    assert found[0] == found[1]
    assert len(found[0]) == 5
    assert found[0][0][0] != found[0][0][1]


def both_images(left: Any, right: Any) -> Any:
    from energon_dali import InterleavedSample

    return InterleavedSample.derive_from(left, sequence=[left.image, right.image])


# --- the index file --------------------------------------------------------------------------------------------------


def test_the_index_is_the_one_that_energon_writes(tmp_path: Path) -> None:
    folder = tmp_path / "mix"
    shutil.copytree(GOLDEN, folder)
    theirs = {path.name: path.read_bytes() for path in (folder / "join.yaml.cache").iterdir()}
    assert len(theirs) == 2
    shutil.rmtree(folder / "join.yaml.cache")
    paths = [Path(path) for path in prepare_metadataset(folder / "join.yaml")]
    ours = {path.name: path.read_bytes() for path in paths}
    assert {name: ours[name] for name in theirs} == theirs


def test_an_index_of_energon_is_found_whatever_the_order_of_its_excludes(tmp_path: Path) -> None:
    folder = tmp_path / "mix"
    shutil.copytree(GOLDEN, folder)
    split = folder / "images" / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("shard_0.tar/k02", "shard_0.tar/k02, shard_1.tar/k09, shard_0.tar/k00"))
    prepare_metadataset(folder / "join.yaml")
    (source,) = resolve(folder / "join.yaml", "train").sources
    assert source.join is not None
    columns = open_columns(source.join.columns)
    names = list(energon_names(columns))
    assert len(names) == len(set(names)) == 6
    cache = folder / "join.yaml.cache"
    (index,) = [path for path in cache.iterdir() if path.name == names[0]]
    content = index.read_bytes()
    for path in cache.iterdir():
        path.unlink()
    (cache / names[4]).write_bytes(content)
    assert [sample.__key__ for sample in samples(folder / "join.yaml")] == ["k01", "k03", "k05", "k06", "k08"]


def test_parts_of_one_dataset_do_not_share_an_index(pair: Path) -> None:
    for name, train, val in (("left", 0, 2), ("right", 1, 0)):
        (pair / name / ".nv-meta" / "split.yaml").write_text(
            f"split_parts:\n  train: [shard_00{train}.tar]\n  val: [shard_00{val}.tar]\nexclude: []\n"
        )
    file = join(pair, "{path: right}")
    file.write_text(file.read_text() + file.read_text().partition("splits:\n")[2].replace("train:", "val:"))
    assert len(prepare_metadataset(file)) == 2
    assert keys_of_part(file, "train") == KEYS[:4]
    assert keys_of_part(file, "val") == KEYS[8:]
    # An index under Energon's name may belong to the other split part: one that does not fit is refused.
    (source,) = resolve(file, "val").sources
    assert source.join is not None
    columns = open_columns(source.join.columns)
    cache = StoragePath.of(f"{file}.cache")
    for name in cache.list_files():
        (cache / name).remove()
    cache.local.mkdir(exist_ok=True)
    for count, last_shard in ((9, 0), (3, 0), (4, 1)):  # too many rows, too few, and rows of a shard that is not there
        rows = np.full((count, 2, 3), 0, "<i8")
        rows[-1, 0, 0] = last_shard
        (cache / next(energon_names(columns))).local.write_bytes(b"JIDX0001" + np.int64(2).tobytes() + rows.tobytes())
        with pytest.raises(DatasetFormatError, match=rf"joins {count} samples, and the part 'val' of .* has 4"):
            keys_of_part(file, "val")


def keys_of_part(file: Path, part: str) -> list[str]:
    return [sample.__key__ for sample in get_val_dataset(file, split_part=part, worker_config=config())]


def test_preparing_again_keeps_what_is_valid_and_removes_the_rest(pair: Path) -> None:
    file = join(pair, "{path: right, nonmatch: skip}")
    with pytest.raises(DatasetFormatError, match=r"join.yaml:5 .*has no index in .*energon-dali prepare .*join.yaml`"):
        samples(file)
    paths = [Path(path) for path in prepare_metadataset(file)]
    before = [path.stat().st_mtime_ns for path in paths]
    stale = paths[0].with_name("join_index_0.bin")
    stale.write_bytes(b"")
    assert [Path(path) for path in prepare_metadataset(file)] == paths
    assert [path.stat().st_mtime_ns for path in paths] == before
    assert not stale.exists()
    shutil.rmtree(pair / "right")
    dataset(pair / "right", {"txt": "new {}"}, KEYS, shards=1)
    with pytest.raises(DatasetFormatError, match="only one of an older state"):
        samples(file)
    prepare_metadataset(file)
    assert len(samples(file)) == 12


def test_an_index_of_a_split_that_was_prepared_otherwise_is_not_taken(pair: Path, joiner: str) -> None:
    file = join(pair, "{path: right, nonmatch: none}", joiner=joiner)
    for shard, text in (("shard_001", "None"), ("shard_000", "right")):  # both have four samples, at the same offsets
        prepare_dataset(str(pair / "left"), split_patterns=[("train", f"{shard}.*"), ("val", ".*")])
        with pytest.raises(DatasetFormatError, match="has no index in"):
            samples(file, allow_imports=True)
        prepare_metadataset(file)
        assert {sample.text.split()[3] for sample in samples(file, allow_imports=True)} == {text}


def test_preparing_again_replaces_a_damaged_index(pair: Path) -> None:
    file = join(pair, "{path: right, nonmatch: skip}")
    paths = [Path(path) for path in prepare_metadataset(file)]
    whole = [path.read_bytes() for path in paths]
    for damage in (b"", whole[0][:50], b"x" * len(whole[0])):
        for path in paths:
            path.write_bytes(damage)
        prepare_metadataset(file)
        assert [path.read_bytes() for path in paths] == whole


def test_a_damaged_table_of_keys_is_named(pair: Path) -> None:
    file = join(pair, "{path: right, nonmatch: skip}")
    (pair / "right" / ".nv-meta" / "index.sqlite").write_bytes(b"no database" * 400)
    with pytest.raises(DatasetFormatError, match=r"join.yaml:5 .*an index.sqlite of .*right is damaged or too old"):
        prepare_metadataset(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"JIDX0002" + bytes(8), "is not a join index"),
        (b"JID", "is not a join index"),
        (b"JIDX0001" + np.int64(3).tobytes(), "joins 3 datasets, but the metadataset names 2"),
        (b"JIDX0001" + np.int64(2).tobytes() + bytes(50), "has 66 bytes, which is not a whole number of rows"),
    ],
)
def test_a_damaged_index_is_an_error(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "index.bin"
    path.write_bytes(content)
    with pytest.raises(DatasetFormatError, match=message):
        _ = JoinIndexFile(StoragePath.of(path), 2).table
    path.write_bytes(b"")
    assert JoinIndexFile(StoragePath.of(path), 2).table.shape == (0, 2, 3)


def test_rows_that_do_not_belong_together_fail_alone(pair: Path) -> None:
    file = join(pair, "{path: right, nonmatch: skip}")
    paths = prepare_metadataset(file)
    index = Path(paths[0])
    table = np.frombuffer(index.read_bytes()[16:], "<i8").reshape(-1, 2, 3).copy()
    table[2, 1] = table[3, 1]  # the entry of another sample
    table[5, 1, 1] += 7  # no sample starts there
    table[6, 1, 0] = 99  # no such shard
    for path in paths:
        Path(path).write_bytes(index.read_bytes()[:16] + table.tobytes())
    errors: list[str] = []

    def note(error: Exception, sample: Any, sources: Any) -> None:
        errors.append(f"{sample.__key__}: {error}")

    dataset_ = get_val_dataset(file, split_part="train", worker_config=config(1, global_error_handler=note))
    assert [sample.__key__ for sample in dataset_] == ["k00", "k01", "k03", "k08", "k11"]
    assert [error.partition(":")[0] for error in errors] == ["k02", "k09", "k10"]
    assert "names sample 'k03' for 'k02'" in errors[0]
    assert "energon-dali prepare" in errors[2]


@pytest.mark.parametrize("failing", ["left/shard_000.tar", "right/shard_001.tar"])
def test_an_index_that_cannot_be_read_costs_the_samples_of_its_shard(
    pair: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = join(pair, "{path: right, nonmatch: skip}")
    prepare_metadataset(file)
    error: Exception = StorageError("the server is busy")

    def read_tar_index(root: StoragePath, shard: str) -> Any:
        if f"{root.name}/{shard}" == failing:
            raise error
        return tar_index.read_tar_index(root, shard)

    monkeypatch.setattr(joined_reader, "read_tar_index", read_tar_index)
    errors: list[str] = []

    def note(error: Exception, sample: Any, sources: Any) -> None:
        errors.append(str(error))

    dataset_ = get_val_dataset(file, split_part="train", worker_config=config(1, global_error_handler=note))
    assert [sample.__key__ for sample in dataset_] == KEYS[8:]
    assert len(errors) == 4
    assert all(failing in text and "the server is busy" in text for text in errors)
    planned: list[Planned] = []
    dataset_.open(StreamContext(0)).skip(1, planned)
    with pytest.raises(StorageError, match="busy"):
        planned[0].sources[0].reader.indexed(0, 0)
    error = StoreUnavailableError("the store is down")
    with pytest.raises(StoreUnavailableError):
        list(dataset_)


# --- joiners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "{__module__: os, __function__: system}",
            UntrustedCodeError,
            r"join.yaml:5 .*os.system .*allow_imports=True",
        ),
        ("{__module__: megatron.energon, __function__: OCRSample}", UntrustedCodeError, "megatron.energon.OCRSample"),
        ("{__module__: megatron.energon, __class__: Popen}", UntrustedCodeError, "none of CaptioningSample"),
        ("{__module__: my_module, __class__: TextSample}", UntrustedCodeError, "my_module.TextSample"),
    ],
)
def test_other_joiners_need_trust(text: str, error: type[Exception], message: str, pair: Path) -> None:
    file = join(pair, "{path: right, nonmatch: skip}", joiner=text)
    prepare_metadataset(file)  # imports nothing
    with pytest.raises(error, match=message):
        samples(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{__module__: no_such_module, __class__: A}", "cannot be imported"),
        ("{__module__: os, __class__: PathLike}", "which is not a Sample class with from_joined"),
        ("{__module__: os, __function__: sep}", "which is not a function"),
    ],
)
def test_trusted_joiners_that_are_none(text: str, message: str, pair: Path) -> None:
    file = join(pair, "{path: right, nonmatch: skip}", joiner=text)
    prepare_metadataset(file)
    with pytest.raises(DatasetFormatError, match=message):
        samples(file, allow_imports=True)
