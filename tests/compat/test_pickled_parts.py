"""Pickled parts: they load where the user trusts the dataset, and cost nothing where nobody reads them."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    TextSample,
    UntrustedCodeError,
    WorkerConfig,
    basic_sample_keys,
    get_train_dataset,
    stateless,
)
from energon_dali.shards.prepare.dataset import prepare_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pickles")
    with tarfile.open(folder / "a.tar", "w") as tar:
        for number in range(4):
            for name, content in {"txt": b"text", "extra.pkl": pickle.dumps({"number": number})}.items():
                member = tarfile.TarInfo(f"{number}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    prepare_dataset(str(folder))
    return str(folder)


@stateless
def cook(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


@stateless
def cook_pickle(sample: CrudeSample) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=str(sample["extra.pkl"]["number"]))


def texts(data: str, function: Any, **options: Any) -> list[str]:
    class Encoder(DefaultTaskEncoder):  # type: ignore[type-arg]
        cookers = (Cooker(function),)

    errors: list[Exception] = []
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=0, global_error_handler=lambda error, *_: errors.append(error)
    )
    options = {"sample_type": CrudeSample, "worker_config": config, "task_encoder": Encoder(), **options}
    dataset = get_train_dataset(data, repeat=False, **options)
    try:
        found = [sample.text for sample in dataset]
    except Exception as error:
        raise (errors or [error])[0] from error
    return sorted(found)


def test_a_part_that_nobody_reads_costs_nothing(data: str) -> None:
    (Path(data) / ".nv-meta" / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    assert texts(data, cook, sample_type=None) == ["text"] * 4


def test_a_part_that_is_read_loads_for_trusted_data_alone(data: str) -> None:
    (Path(data) / ".nv-meta" / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    assert texts(data, cook_pickle, sample_type=None, allow_code=True) == ["0", "1", "2", "3"]
    with pytest.raises(UntrustedCodeError, match=r"'extra\.pkl' of sample '\d'.*allow_code=True"):
        texts(data, cook_pickle, sample_type=None)


def test_a_field_of_a_pickled_part(data: str) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options: dict[str, Any] = {"sample_type": TextSample, "worker_config": config, "repeat": False}
    plain = get_train_dataset(data, field_map={"text": "txt"}, **options)
    assert [sample.text for sample in plain] == ["text"] * 4
    mapped = {"field_map": {"text": "extra.pkl[number]"}, **options}
    trusted = get_train_dataset(data, allow_code=True, **mapped)
    assert sorted(sample.text for sample in trusted) == [0, 1, 2, 3]
    with pytest.raises(Exception, match="allow_code=True"):
        list(get_train_dataset(data, **mapped))


def test_a_crude_sample_lacks_what_was_refused() -> None:
    sample = CrudeSample({"__key__": "k", "txt": "a"})
    sample.refused = ("pkl",)
    assert "pkl" not in sample
    assert sample.get("pkl") is None
    with pytest.raises(UntrustedCodeError, match="Python pickle"):
        sample["pkl"]
    with pytest.raises(KeyError, match="other"):
        sample["other"]
