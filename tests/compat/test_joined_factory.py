"""A join that a program makes of factories delivers what the join of a metadataset delivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energon_dali import TextSample, get_val_dataset
from energon_dali.compat.factories import StandardWebdatasetFactory
from energon_dali.compat.other_factories import JoinedWebdatasetFactory
from energon_dali.compat.structs import DatasetSubset
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.metadataset.loader import prepare_metadataset
from energon_dali.samples.kinds import ImageSample, OCRSample
from tests.datasets.oracle import check_resume, config
from tests.loader.dataset_folder import prepare, write_shards

KEYS = [f"k{number:02d}" for number in range(12)]


def factory(folder: Path, name: str) -> StandardWebdatasetFactory[Any]:
    return StandardWebdatasetFactory(
        folder / name,
        sample_type=ImageSample if name == "left" else TextSample,
        field_map={"image" if name == "left" else "text": "txt"},
        subflavors={"side": name},
        split_part="train",
        training=False,
        worker_config=config(),
    )


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """left has 12 samples in 3 shards; right 8 of them, in another order. `join.yaml` joins them."""
    right = [*KEYS[8:], *KEYS[:4]]
    for name, keys, shards, field in (("left", KEYS, 3, "image"), ("right", right, 2, "text")):
        write_shards(tmp_path / name, {key: {"txt": f"{name} {key}".encode()} for key in keys}, shards)
        prepare(tmp_path / name, {field: "txt"}, f"{field.title()}Sample")
    (tmp_path / "join.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        "    - {path: left, subflavors: {side: left}}\n    - {path: right, nonmatch: none, subflavors: {side: right}}\n"
        "    joiner: {__class__: OCRSample}\n"
    )
    prepare_metadataset(tmp_path / "join.yaml")
    return tmp_path


def index_of(folder: Path) -> Path:
    return sorted(folder.rglob("join_index_*.bin"))[0]  # under its name here and under Energon's


def combine(left: Any, right: Any) -> TextSample:
    return TextSample.derive_from(left, text=f"{left.image} + {None if right is None else right.text}")


def joined(folder: Path, inner: Any = None, **more: Any) -> JoinedWebdatasetFactory:
    given: dict[str, Any] = {"training": False, "worker_config": config(), "join_index": index_of(folder)}
    inner = [factory(folder, "left"), factory(folder, "right")] if inner is None else inner
    return JoinedWebdatasetFactory(inner, **{**given, "joiner": combine, **more})


EXPECTED = [f"left {key} + {None if key in KEYS[4:8] else f'right {key}'}" for key in KEYS]


def test_by_position_and_by_name(pair: Path) -> None:
    made = joined(pair)
    assert len(made) == 12
    found = list(made.build())
    assert [sample.text for sample in found] == EXPECTED
    assert [sample.__key__ for sample in found] == KEYS
    assert found[0].__subflavors__ == {"side": "left"}
    named = joined(
        pair,
        {"a": factory(pair, "left"), "b": factory(pair, "right")},
        joiner=lambda *, b, a: combine(a, b),
        subset=DatasetSubset(absolute_range=(2, 6)),
    )
    assert [sample.text for sample in named.build()] == EXPECTED[2:6]


def test_a_sample_type_joins_as_in_a_metadataset(pair: Path) -> None:
    expected = list(get_val_dataset(pair / "join.yaml", split_part="train", worker_config=config()))
    found = list(joined(pair, joiner=OCRSample).build())
    assert len(found) == 8  # without a match there is no text, and an OCRSample needs one
    assert list(map(repr, found)) == list(map(repr, expected))


def test_training_is_shuffled_and_resumes_exactly(pair: Path) -> None:
    def build(job: Any) -> Any:
        return joined(pair, training=True, worker_config=job, max_samples_per_sequence=2).build()

    order = [sample.text for sample in build(config())]
    assert sorted(order) == sorted(EXPECTED)
    assert order != EXPECTED
    check_resume(lambda: build(config(2)), count=12)


def test_what_does_not_fit_is_said(pair: Path) -> None:
    with pytest.raises(ConfigError, match="at least one factory of a folder"):
        joined(pair, [])
    with pytest.raises(ConfigError, match="at least one factory of a folder"):
        joined(pair, [factory(pair, "left"), "right"])
    with pytest.raises(ConfigError, match="joiner=5 is invalid"):
        joined(pair, joiner=5)
    with pytest.raises(DatasetFormatError, match=r"join_index_0.bin does not exist. Run `energon-dali prepare`"):
        joined(pair, join_index=pair / "join_index_0.bin")
    with pytest.raises(DatasetFormatError, match="join"):
        joined(pair, [factory(pair, "left")]).build()
    with pytest.raises(NotImplementedError, match="inner_datasets"):
        joined(pair).as_file_store()
