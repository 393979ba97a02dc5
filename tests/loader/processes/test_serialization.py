"""Batches arrive in another process as they were: every dtype, layout and sharing, and everything else in them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.loader.processes.serialization import SMALL_BUFFER_BYTES, deserialize, serialize
from energon_dali.loader.processes.tensor_table import TensorLayout, TensorRebuilder, TensorTable

DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
)


def cross(batch: Any) -> Any:
    """Returns a batch as the trainer receives it, without the memory that it was made of."""
    block = serialize(batch, keep_aliasing=True)
    extents, tensors = pickle.loads(pickle.dumps((block.extents, block.tensors)))
    memory = bytearray(b"\xa5" * block.size)
    block.write(memoryview(memory))
    return deserialize(memoryview(memory), extents, tensors)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape, one.requires_grad) != (other.dtype, other.shape, other.requires_grad):
        return False
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*flat)


def of(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    noise = np.random.Generator(np.random.Philox(seed)).integers(0, 2 if dtype == torch.bool else 256, size, np.uint8)
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(noise.tobytes()), dtype=dtype).view(shape)


CHANGES = {
    "as it is": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.transpose(0, -1),
    "every second": lambda tensor: tensor[..., ::2],
    "one column": lambda tensor: tensor[..., :1],
    "expanded": lambda tensor: tensor[None].expand(3, *tensor.shape),
    "after the first": lambda tensor: tensor[1:],
    "nothing": lambda tensor: tensor[:0],
}


@settings(max_examples=120)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 40), min_size=1, max_size=3),
            st.integers(0, 10**6),
            st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=4),
        ),
        max_size=4,
    )
)
def test_views_of_any_storage_arrive_with_their_bits_and_share_what_they_shared(plan: list[Any]) -> None:
    batch = [
        {change: CHANGES[change](of(dtype, tuple(shape), seed)) for change in [changes[0]]}
        | {"views": [CHANGES[change](base) for base in [of(dtype, tuple(shape), seed)] for change in changes]}
        for dtype, shape, seed, changes in plan
    ]
    arrived = cross(batch)
    for sent, got in zip(batch, arrived, strict=True):
        for name in sent:
            for one, other in zip(torch_list(sent[name]), torch_list(got[name]), strict=True):
                assert same_bits(one, other)


def torch_list(value: Any) -> list[torch.Tensor]:
    return value if isinstance(value, list) else [value]


def test_two_views_of_one_storage_look_at_the_same_memory_again() -> None:
    base = torch.arange(40_000, dtype=torch.float32)
    batch = {"all": base, "rows": base.view(200, 200)[3:9], "bytes": base.view(torch.uint8), "again": base}
    got = cross(batch)
    assert got["again"] is got["all"]
    got["all"][800] = -7
    assert got["rows"][1, 0] == -7
    assert got["rows"].stride() == (200, 1)
    assert bytes(got["bytes"][3200:3204].tolist()) == np.float32(-7).tobytes()


def test_permuted_images_keep_their_strides_and_rows_of_a_batch_stay_apart() -> None:
    whole = of(torch.uint8, (6, 30, 40, 3), 1)
    got = cross([row.permute(2, 0, 1) for row in whole])
    for place, picture in enumerate(got):
        assert picture.stride() == (1, 120, 3)
        assert torch.equal(picture, whole[place].permute(2, 0, 1))
    got[2][:] = 0
    assert torch.equal(got[3], whole[3].permute(2, 0, 1))


def test_a_small_tensor_does_not_keep_the_memory_of_a_large_one() -> None:
    block = serialize({"image": torch.ones(100_000), "label": torch.tensor([4, 5])}, keep_aliasing=True)
    memory = bytearray(block.size)
    block.write(memoryview(memory))
    got = deserialize(memoryview(memory), block.extents, block.tensors)
    memory[:] = bytes(len(memory))
    assert got["image"].sum() == 0  # a view
    assert got["label"].tolist() == [4, 5]  # a copy


@dataclass
class Everything:
    key: str
    nothing: None
    image: torch.Tensor
    boxes: np.ndarray[Any, Any]
    raw: bytes
    inner: dict[str, Any] = field(default_factory=dict)
    pair: tuple[Any, ...] = ()


def test_everything_else_arrives_too() -> None:
    parameter = torch.ones(3, requires_grad=True)
    made = Everything(
        "k",
        None,
        of(torch.uint8, (3, 50, 60), 2),
        np.arange(30_000).reshape(100, 300)[::2, ::-1],
        b"x" * 9000,
        {"sparse": torch.eye(40).to_sparse(), "empty": {}, "text": ["a", "ü"], "grad": parameter, "one": np.int64(3)},
        (1, 2.5, True, {"deep": [torch.zeros(0, 7), torch.tensor(2.0)]}),
    )
    got = cross(made)
    assert type(got) is Everything
    assert (got.key, got.nothing, got.raw, got.pair[:3]) == ("k", None, made.raw, (1, 2.5, True))
    assert np.array_equal(got.boxes, made.boxes)
    assert torch.equal(got.image, made.image)
    assert torch.equal(got.inner["sparse"].to_dense(), torch.eye(40))
    assert (got.inner["text"], got.inner["empty"], got.inner["one"]) == (["a", "ü"], {}, 3)
    assert got.inner["grad"].requires_grad
    assert got.inner["grad"].is_leaf
    assert got.pair[3]["deep"][0].shape == (0, 7)
    got.image += 1  # writable, and so are arrays
    got.boxes += 1
    conjugated = torch.randn(3000, dtype=torch.complex64).conj()
    assert torch.equal(cross(conjugated), conjugated)
    for plain in (None, "text", b"", [], {}, 7):
        assert cross(plain) == plain


def test_a_tensor_without_elements_stays_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of an image that has none, on a GPU; a CPU tensor replaces the GPU tensor."""
    table, none = TensorTable(), torch.empty(0, 4)
    boxes: Any = Mock(wraps=none, dtype=none.dtype, shape=none.shape, device=torch.device("cuda", 3))
    boxes.resolve_conj.return_value = boxes.resolve_neg.return_value = boxes.detach.return_value = boxes
    boxes.layout, boxes.is_quantized, boxes.is_nested, boxes.requires_grad = torch.strided, False, False, False
    assert (table.add(boxes), table.add(none)) == (0, 1)
    views, segments = table.find_segments()
    assert segments == []
    layout = TensorLayout(pickle.loads(pickle.dumps(views)), [], (0, 0))
    rebuild = TensorRebuilder(memoryview(b""), layout, [])
    asked: list[Any] = []

    def empty_strided(size: Any, stride: Any, *, device: Any = "cpu", **_: Any) -> torch.Tensor:
        asked.append((size, stride, torch.device(device)))
        return none

    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    rebuild.tensor(0)
    rebuild.tensor(1)
    assert asked == [((0, 4), (4, 1), torch.device("cuda", 3)), ((0, 4), (4, 1), torch.device("cpu"))]


def test_each_byte_of_a_large_tensor_is_sent_once() -> None:
    base = torch.ones(10 * SMALL_BUFFER_BYTES, dtype=torch.uint8)
    block = serialize([base, base.view(10, -1), base[5:].view(torch.bool), base.expand(4, -1)], keep_aliasing=True)
    assert base.numel() <= block.size < base.numel() + 4096


def test_what_cannot_be_pickled_says_so() -> None:
    with pytest.raises(TypeError, match="generator"):
        serialize({"image": torch.ones(10_000), "odd": (number for number in range(3))}, keep_aliasing=True)


def test_attributes_of_a_tensor_travel_with_it() -> None:
    tensor = torch.arange(3)
    tensor.names_of_classes = ["cat", "dog"]  # type: ignore[attr-defined]
    one, other = cross([tensor, tensor])
    assert one is other
    assert one.names_of_classes == ["cat", "dog"]
    assert one.tolist() == [0, 1, 2]
