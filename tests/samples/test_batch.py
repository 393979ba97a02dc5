from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from energon_dali.errors import ConfigError
from energon_dali.samples.base import Batch, SourceInfo, edataclass
from energon_dali.samples.kinds import TextSample
from energon_dali.samples.transfer import map_tensors


@edataclass
class Texts(Batch):
    text: list[str]
    lengths: torch.Tensor | None = None


def sample(number: int) -> TextSample:
    source = SourceInfo(dataset_path="d", index=number, shard_name="s", file_names=())
    return TextSample(
        __key__=f"k{number}", __restore_key__=(number,), __subflavors__={"n": number}, __sources__=(source,), text="t"
    )


def test_from_samples_lists_fields_and_flattens_sources() -> None:
    batch = Texts.from_samples([sample(0), sample(1)])
    assert batch.__key__ == ["k0", "k1"]
    assert batch.__restore_key__ == ((0,), (1,))
    assert batch.__subflavors__ == [{"n": 0}, {"n": 1}]
    assert [source.index for source in batch.__sources__ or ()] == [0, 1]
    assert batch.text == ["t", "t"]
    assert batch.lengths is None
    assert Texts.from_samples([sample(0)], text=["over"]).text == ["over"]


def test_extend_keeps_all_fields() -> None:
    @edataclass
    class Counted(Texts):
        count: int

    batch = Counted.extend(Texts.from_samples([sample(0), sample(1)]), count=2)
    assert (batch.__key__, batch.text, batch.count) == (["k0", "k1"], ["t", "t"], 2)
    with pytest.raises(ConfigError, match=r"Texts\.extend was given a Counted"):
        Texts.extend(batch)


def test_from_samples_takes_dicts_and_nothing() -> None:
    assert Texts.from_samples([{"__key__": "a", "__restore_key__": (), "text": "x"}]).text == ["x"]
    empty = Texts.from_samples([])
    assert (empty.__key__, empty.__restore_key__, empty.__subflavors__, empty.__sources__) == ([], (), None, None)


def test_a_field_that_samples_do_not_have_is_named() -> None:
    @edataclass
    class Images(Batch):
        image: torch.Tensor

    with pytest.raises(ConfigError, match=r"Images has the field 'image', which the samples \(TextSample\) have not"):
        Images.from_samples([sample(0)])


def test_derive_from_takes_the_base_fields() -> None:
    batch = Batch.from_samples([sample(0)])
    derived = Texts.derive_from(batch, text=["new"])
    assert (derived.__key__, derived.text, derived.__sources__) == (["k0"], ["new"], batch.__sources__)


def test_to_device_moves_tensors_and_shares_the_rest() -> None:
    batch = Texts.from_samples([sample(0)], lengths=torch.ones(1))
    moved = batch.to_device("meta")
    assert moved.lengths is not None
    assert moved.lengths.device.type == "meta"
    assert moved.text is batch.text
    assert batch.to_device("cpu") is batch
    assert batch.pin_memory() is batch or torch.cuda.is_available()


def test_to_device_moves_further_attributes_too() -> None:
    batch: Any = Texts.from_samples([sample(0)])
    batch.lengths = None
    batch.offsets, batch.note = {"rows": torch.ones(2)}, "n"
    moved = batch.to_device("meta")
    assert moved.offsets["rows"].device.type == "meta"
    assert moved.note == "n"
    assert batch.offsets["rows"].device.type == "cpu"


class Pair(NamedTuple):
    left: torch.Tensor
    right: str


def test_tensors_are_found_wherever_they_are() -> None:
    value = {"a": [torch.zeros(1), "x"], "b": Pair(torch.zeros(1), "y"), "c": (1, torch.zeros(1)), "d": [1, 2]}
    mapped = map_tensors(value, lambda tensor: tensor + 1)
    assert mapped["a"][0] == 1  # type: ignore[index]
    assert mapped["b"].left == 1  # type: ignore[attr-defined]
    assert mapped["c"][1] == 1  # type: ignore[index]
    assert mapped["d"] is value["d"]
    assert value["a"][0] == 0  # type: ignore[index]
