"""Pickled parts: they load where the user trusts the dataset, and cost nothing where nobody reads them."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

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
from tests.loader.dataset_folder import prepare, write_shards


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


def test_objects_in_a_pth_load_for_trusted_data_alone(tmp_path: Path) -> None:
    samples = {}
    for number in range(3):
        content = io.BytesIO()
        torch.save(SimpleNamespace(number=number), content)
        samples[str(number)] = {"txt": b"text", "extra.pth": content.getvalue()}
    folder = prepare(write_shards(tmp_path / "data", samples, 1), {"text": "extra.pth"}, "TextSample")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options: dict[str, Any] = {"worker_config": config, "repeat": False}
    trusted = get_train_dataset(folder, allow_code=True, **options)
    assert sorted(sample.text.number for sample in trusted) == [0, 1, 2]
    with pytest.raises(Exception, match="No sample of this epoch arrived"):
        list(get_train_dataset(folder, **options))


def test_a_crude_sample_lacks_what_was_refused() -> None:
    sample = CrudeSample({"__key__": "k", "txt": "a"})
    sample.refused = ("pkl",)
    assert "pkl" not in sample
    assert sample.get("pkl") is None
    with pytest.raises(UntrustedCodeError, match="Python pickle"):
        sample["pkl"]
    with pytest.raises(KeyError, match="other"):
        sample["other"]
