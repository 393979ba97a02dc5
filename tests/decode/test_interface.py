"""Handles are replaced by their media wherever hooks may have stored them."""

from __future__ import annotations

import io
from collections import namedtuple
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from PIL import Image

from energon_dali import DaliDecoder, SampleDecoder
from energon_dali.datasets.worker_border import decode_elements
from energon_dali.decode import MediaHandle, map_handles
from tests.decode.sample_images import photograph


@dataclass
class Plain:
    image: Any
    __sources__: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Frozen:
    image: Any
    name: str = "x"


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    image: Any


@dataclass(frozen=True)
class FrozenByHand:
    __slots__ = ("image",)
    image: Any


@dataclass(slots=True)
class Slots:
    image: Any


@dataclass(frozen=True)
class Derived(Frozen):
    shared: ClassVar[list[int]] = [1]
    scale: InitVar[int] = 1
    later: Any = field(init=False)

    def __post_init__(self, scale: int) -> None:
        assert scale


class Named(NamedTuple):
    image: Any
    number: int = 3


Pair = namedtuple("Pair", ["image", "other"])


class Guarded(Plain):
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        object.__setattr__(self, "changes", getattr(self, "changes", 0) + 1)


HOLDERS: dict[str, Any] = {
    kind.__name__: kind for kind in (Plain, Frozen, FrozenSlots, FrozenByHand, Slots, Derived, Named)
} | {
    "Pair": lambda handle: Pair(handle, None),
    "Guarded": Guarded,
    "dict": lambda handle: {"image": handle},
    "frozen in frozen": lambda handle: Frozen(FrozenSlots(handle)),
    "frozen in a dict in a frozen": lambda handle: Frozen({"a": [Frozen((handle, 1))]}),
    "plain in plain": lambda handle: Plain(Plain(handle)),
    "named in frozen": lambda handle: Frozen(Named(Slots(handle))),
    "frozen in a named": lambda handle: Named(Frozen(handle)),
    "list of tuples": lambda handle: [("a", handle), (Frozen(handle),)],
}


def png() -> bytes:
    stream = io.BytesIO()
    photograph("china", (20, 10)).save(stream, "png")
    return stream.getvalue()


def handles_in(value: Any, found: list[Any]) -> list[Any]:
    map_handles(value, lambda handle: found.append(handle) or handle)  # type: ignore[func-returns-value]
    return found


@pytest.mark.parametrize("name", HOLDERS)
def test_every_holder_gets_its_media(name: str) -> None:
    """As with SampleDecoder, which passes the media themselves to the hooks."""
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    handle = decoder.stage("png", png())
    assert isinstance(handle, MediaHandle)
    wanted = HOLDERS[name](SampleDecoder(image_decode="torchrgb8").decode("png", png()))
    (changed,) = decode_elements(decoder, [HOLDERS[name](handle)], strict=True)
    assert type(changed) is type(wanted)
    assert not handles_in(changed, [])
    assert_same(changed, wanted)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        assert_same(list(ours.values()), list(theirs.values()))
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif hasattr(ours, "image"):
        assert_same(ours.image, theirs.image)
    else:
        assert ours == theirs


def make_handle() -> MediaHandle:
    made = DaliDecoder(image_decode_device="cpu").stage("png", png())
    assert isinstance(made, MediaHandle)
    return made


def test_attributes_that_are_not_fields_count() -> None:
    sample, handle = Plain(1), make_handle()
    sample.extra = [handle]  # type: ignore[attr-defined]
    assert map_handles(sample, lambda _: "media") is sample
    assert sample.extra == ["media"]  # type: ignore[attr-defined]


def test_what_refers_to_itself_is_changed_once() -> None:
    handle, calls = make_handle(), []
    sample = Plain([handle])
    sample.parent = Frozen({"up": sample, "again": sample.image})  # type: ignore[attr-defined]
    map_handles(sample, lambda given: calls.append(given) or "media")  # type: ignore[func-returns-value]
    assert calls == [handle]
    assert sample.image == ["media"]


def test_what_holds_no_handle_stays_the_same_object() -> None:
    image = Image.new("RGB", (2, 2))
    values = (Named(Frozen(image)), [1], {"a": (2, Slots(3))})
    assert map_handles(values, lambda _: "media") is values
    assert map_handles(Frozen, lambda _: "media") is Frozen


def test_setters_of_a_dataclass_are_called() -> None:
    sample = Guarded(make_handle())
    before = sample.changes  # type: ignore[attr-defined]
    map_handles(sample, lambda _: "media")
    assert sample.changes == before + 1  # type: ignore[attr-defined]
