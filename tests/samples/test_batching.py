from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from energon_dali.kernels.pad_stack import pad_stack
from hypothesis import given
from hypothesis import strategies as st

from energon_dali import batch_audio
from energon_dali.decode.audio_front_ends.speech_llm import Qwen3Omni
from energon_dali.decode.audio_front_ends.whisper import Whisper
from energon_dali.errors import ConfigError
from energon_dali.samples.base import Batch, SourceInfo, edataclass
from energon_dali.samples.batching import (
    batch_alike,
    batch_list,
    batch_pad_stack,
    batch_stack,
    generic_batch,
    image_layout,
    make_batch,
)
from energon_dali.samples.kinds import Clips, TextSample


def test_rows_of_a_block_are_stacked_without_a_copy() -> None:
    block = torch.arange(60, dtype=torch.uint8).reshape(5, 3, 4)
    batch = batch_stack([block[1], block[2], block[3]])
    assert torch.equal(batch, block[1:4])
    assert batch.data_ptr() == block[1].data_ptr()
    assert batch.is_contiguous()
    batch += 1
    assert block[1, 0, 0] == 13


def views(block: torch.Tensor, other: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    return {
        "gap": [block[0], block[2]],
        "backwards": [block[1], block[0]],
        "twice": [block[0], block[0]],
        "other storage": [block[0], other],
        "transposed": [block[0].T, block[1].T],
        "gradient": [block[0].clone().requires_grad_(), block[1]],
        "empty": [block[0, :0], block[0, :0]],
    }


@pytest.mark.parametrize("case", list(views(torch.zeros(3, 2, 2), torch.zeros(2, 2))))
def test_all_else_is_copied(case: str) -> None:
    tensors = views(torch.arange(12.0).reshape(3, 2, 2), torch.ones(2, 2))[case]
    batch = batch_stack(tensors)
    assert torch.equal(batch, torch.stack(tensors))
    assert batch.untyped_storage().data_ptr() != tensors[0].untyped_storage().data_ptr() or case == "empty"


def test_neighbours_of_different_storages_are_copied() -> None:
    # Two adjacent storages in one buffer, as an allocator may create them.
    buffer = bytearray(range(8))
    first = torch.frombuffer(buffer, dtype=torch.uint8, count=4)
    second = torch.frombuffer(buffer, dtype=torch.uint8, offset=4)
    assert second.data_ptr() == first.data_ptr() + 4
    batch = batch_stack([first, second])
    assert batch.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batch.data_ptr() != first.data_ptr()


def test_gradients_reach_every_sample() -> None:
    block = torch.zeros(2, 3, requires_grad=True)
    batch_stack([block[0], block[1]]).sum().backward()  # type: ignore[no-untyped-call]
    assert block.grad is not None
    assert block.grad.eq(1).all()


def test_one_sample_and_scalars() -> None:
    assert batch_stack([torch.ones(2)]).shape == (1, 2)
    assert batch_stack([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"\(2,\), \(3,\), but stacks only equal shapes"):
        batch_stack([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(ConfigError, match="same number of dimensions"):
        batch_pad_stack([torch.zeros(2), torch.zeros(3, 1)])
    for function in (batch_stack, batch_pad_stack):
        with pytest.raises(ConfigError, match="at least one sample"):
            function([])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5))
def test_padding_is_zeros_at_the_end(shapes: list[tuple[int, int]]) -> None:
    tensors = [torch.full(shape, number + 1) for number, shape in enumerate(shapes)]
    batch = batch_pad_stack(tensors)
    assert batch.shape == (len(shapes), max(h for h, _ in shapes), max(w for _, w in shapes))
    for number, (height, width) in enumerate(shapes):
        assert batch[number, :height, :width].eq(number + 1).all()
        assert batch[number].count_nonzero() == height * width


SIDES = st.integers(0, 5)


@given(
    sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=5),
    channels=st.integers(0, 5),
    channels_first=st.booleans(),
)
def test_the_kernel_pads_images_as_plain_tensors_are_padded(
    sizes: list[tuple[int, int]], channels: int, channels_first: bool
) -> None:
    shapes = [(channels, *size) if channels_first else (*size, channels) for size in sizes]
    images = [torch.randint(1, 256, shape, dtype=torch.uint8, generator=torch.Generator()) for shape in shapes]
    layout = image_layout(images)
    assert layout is not None or channels > 4
    if layout is not None:
        assert len({image.shape[0 if layout == "CHW" else 2] for image in images}) == 1
        assert torch.equal(pad_stack(images, layout=layout, input_layout=layout), batch_pad_stack(images))


def test_only_images_go_to_the_kernel() -> None:
    image, other = (torch.zeros(3, size, 7, dtype=torch.uint8) for size in (5, 6))
    assert image_layout([image, other]) == "CHW"
    assert image_layout([image.permute(1, 2, 0), other.permute(1, 2, 0)]) == "HWC"
    for batch in (
        [image.float(), other.float()],
        [image[0], other[0]],
        [image[None], other[None]],
        [image, other[:1]],
        [image, other.to(torch.int16)],
        [image, torch.nn.Parameter(other, requires_grad=False)],
        [image.to("meta"), other],
        [image.expand(3, 5, 7)[:, :, :1].expand(3, 5, 1 << 30).permute(1, 2, 0), other.permute(1, 2, 0)],
    ):
        assert image_layout(batch) is None


def test_padding_of_equal_shapes_is_a_stack_and_keeps_the_dtype() -> None:
    block = torch.arange(6, dtype=torch.int16).reshape(3, 2)
    batch = batch_pad_stack([block[0], block[1]])
    assert batch.data_ptr() == block.data_ptr()
    mixed = batch_pad_stack([torch.ones(1, dtype=torch.int64), torch.ones(2, dtype=torch.float32)])
    assert mixed.dtype == torch.float32
    assert batch_pad_stack([torch.ones(1, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8)]).dtype == torch.uint8


@dataclass
class Point:
    x: torch.Tensor
    name: str


class Named(NamedTuple):
    x: torch.Tensor
    name: str


def test_generic_batch_goes_by_type() -> None:
    tensors = [torch.ones(1), torch.ones(2)]
    assert generic_batch(tensors).tolist() == [[1, 0], [1, 1]]
    assert generic_batch([1, 2]) == [1, 2]
    assert generic_batch([None, torch.ones(1)]) == [None, torch.ones(1)]
    assert generic_batch([]) == []
    nested = generic_batch([{"a": {"b": tensor}, "c": "x"} for tensor in tensors])
    assert nested["a"]["b"].shape == (2, 2)
    assert nested["c"] == ["x", "x"]
    point = generic_batch([Point(tensor, "p") for tensor in tensors])
    assert isinstance(point, Point)
    assert point.x.shape == (2, 2)
    named = generic_batch([Named(tensor, "p") for tensor in tensors])
    assert isinstance(named, Named)
    assert named.name == ["p", "p"]
    values = ["a", "b"]
    assert batch_list(values) is values


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(1),
        "a",
        {"a": 1},
        Point(torch.ones(1), "p"),
        Named(torch.ones(1), "p"),
        Clips(frames=torch.zeros(1, 2, 3, 4, 4), timestamps=torch.zeros(1, 2)),
        Whisper().render(torch.zeros(4000)),  # its model has a row per sample
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_missing_value_makes_a_list_wherever_it_is(value: Any) -> None:
    for batch in ([None, value], [value, None], [value, None, value], [None, None]):
        made = generic_batch(batch)
        assert isinstance(made, list)
        assert all(found is given for found, given in zip(made, batch, strict=True))


@pytest.mark.parametrize("order", [(0, None, 1), (None, 0, 1), (0, 1, None)])
def test_a_missing_recording_is_a_sample_without_audio(order: tuple[int | None, ...]) -> None:
    front_end = Qwen3Omni(num_mels=40)
    recordings = [front_end.render(torch.full((length,), 0.5)) for length in (4000, 8000)]
    batch = generic_batch([{"audio": None if number is None else recordings[number]} for number in order])
    expected = batch_audio([[] if number is None else [recordings[number]] for number in order])
    assert batch["audio"].keys() == expected.keys()
    assert len(batch["audio"]["input_features"]) == 2
    assert all(torch.equal(batch["audio"][key], expected[key]) for key in expected)


def test_base_fields_of_samples_stay_apart() -> None:
    source = SourceInfo(dataset_path="d", index=0, shard_name="s", file_names=())
    samples = [
        TextSample(__key__="a", __restore_key__=(1,), __subflavors__={"x": 1}, __sources__=(source,), text="t"),
        TextSample(__key__="b", __restore_key__=(2,), __subflavors__={"y": 2}, __sources__=(source,), text="u"),
    ]
    batch = generic_batch(samples)
    assert batch.__key__ == ["a", "b"]
    assert batch.__restore_key__ == ((1,), (2,))
    assert batch.__subflavors__ == [{"x": 1}, {"y": 2}]
    assert batch.__sources__ == (source, source)
    assert batch.text == ["t", "u"]


def test_samples_with_different_fields_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the first has \['a'\], another \['a', 'b'\]"):
        generic_batch([{"a": 1}, {"a": 1, "b": 2}])


@edataclass
class Padded(Batch):
    x: torch.Tensor


@edataclass
class Longest(Padded):
    @classmethod
    def from_samples(cls, samples: Any, **overrides: Any) -> Any:
        longest = max(len(sample["x"]) for sample in samples)
        return super().from_samples(samples, x=torch.tensor([longest]), **overrides)


class Longer(Longest):
    """Inherits `from_samples`."""


@dataclass
class Joined:
    x: torch.Tensor

    @staticmethod
    def from_samples(samples: Any) -> Any:
        return Joined(torch.cat([sample["x"] for sample in samples]))


def lines() -> list[dict[str, Any]]:
    return [{"__key__": f"k{n}", "__restore_key__": (n,), "x": torch.ones(n)} for n in (1, 2)]


@pytest.mark.parametrize("kind", [Longest, Longer])
def test_a_type_with_its_own_from_samples_makes_the_batch(kind: Any) -> None:
    batch = make_batch(lines(), kind, {"x": batch_list}, generic_batch)
    assert type(batch) is kind
    assert batch.x.tolist() == [2]
    assert batch.__key__ == ["k1", "k2"]


def test_from_samples_may_belong_to_any_dataclass() -> None:
    assert make_batch(lines(), Joined, {}, generic_batch).x.tolist() == [1, 1, 1]
    clips = Clips(frames=torch.zeros(1, 2, 3, 4, 4), timestamps=torch.zeros(1, 2))
    batch = batch_alike([clips, clips])
    assert batch.frames.shape == (2, 1, 2, 3, 4, 4)
    assert batch.audio is None
    with pytest.raises(ConfigError, match="at least one sample"):
        make_batch([], Joined, {}, generic_batch)


def test_the_from_samples_of_batch_itself_leaves_padding_and_actions_to_the_fields() -> None:
    assert make_batch(lines(), Padded, {}, generic_batch).x.tolist() == [[1, 0], [1, 1]]
    assert isinstance(make_batch(lines(), Padded, {"x": batch_list}, generic_batch).x, list)
