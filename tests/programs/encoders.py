"""Task encoders of random programs, put together from hooks that skip, fail, repeat, draw random numbers and count."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from energon_dali import (
    Cooker,
    DaliDecoder,
    DefaultTaskEncoder,
    FatalSampleError,
    PackSelection,
    SampleDecoder,
    SequencePacker,
    SkipSample,
    stateless,
)
from tests.loader.interleaved_folder import Interleaved
from tests.loader.test_video_front_ends import Videos
from tests.programs.folders import cook_line

DECODERS = ("pil", "dali")


class Drawn(DefaultTaskEncoder[Any, Any, Any, Any]):
    """The base of the encoders of texts and pictures."""

    cookers = (Cooker(cook_line),)

    def __init__(self, decoder: str) -> None:
        super().__init__()
        # Without operations, whose pixels may differ by a rounding between decoders.
        self.decoder = (
            SampleDecoder(image_decode="torchrgb8")
            if decoder == "pil"
            else DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
        )

    def batch(self, samples: list[Any]) -> Any:
        return {"samples": [shown(sample) for sample in samples], "number": self.current_batch_index}


class Encode:
    def encode_sample(self, sample: Any) -> Any:
        return marked(sample, self.current_sample_index, self.current_batch_index)  # type: ignore[attr-defined]


class EncodeTroubled:
    def encode_sample(self, sample: Any) -> Any:
        if number_of(sample) % 7 == 3:
            raise SkipSample
        if number_of(sample) % 11 == 5:
            raise ValueError("five of eleven")
        return marked(sample, "troubled")


class EncodeTwice:
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        if number_of(sample) % 7 == 3:
            return
        yield marked(sample, "once")
        if number_of(sample) % 5 == 0:
            yield marked(sample, "twice")


class EncodeWithLuck:
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        return marked(sample, random.random(), np.random.random(), float(torch.rand(1)))


class Split:
    def preencode_sample(self, sample: Any) -> Any:
        return marked(sample, "pre", self.current_sample_index)  # type: ignore[attr-defined]

    def postencode_sample(self, sample: Any) -> Any:
        if number_of(sample) % 9 == 4:
            raise SkipSample
        return marked(sample, "post", self.current_sample_index)  # type: ignore[attr-defined]


class SplitTwice:
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        for part in range(number_of(sample) % 3):
            yield marked(sample, "part", part)


class PackPairs:
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[start : start + 2] for start in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return marked(samples[0], *map(shown, samples[1:]))


class PackAndKeep(PackPairs):
    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        waiting = list(zip(samples, samples.rounds, strict=True))  # type: ignore[attr-defined]
        keep = [sample for sample, rounds in waiting if not rounds and number_of(sample) % 3 == 1]
        rest = [sample for sample, rounds in waiting if rounds or number_of(sample) % 3 != 1]
        return PackSelection([rest[start : start + 3] for start in range(0, len(rest), 3)], keep=keep)


class PackByLength(PackPairs):
    packer = SequencePacker(30, length=lambda sample: 5 + number_of(sample) % 9, max_padding=0.1)

    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        return self.packer(samples)


class PackSeveral(PackPairs):
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        for part in range(1 + sum(map(number_of, samples)) % 2):  # at least one: all packs of a stream may be alike
            yield marked(samples[0], part, *map(shown, samples[1:]))


class Group:
    def batch_group_criterion(self, sample: Any) -> Any:
        if number_of(sample) % 10 == 9:
            raise SkipSample
        return number_of(sample) % 3, None


class BatchTroubled:
    def batch(self, samples: list[Any]) -> Any:
        if number_of(samples[0]) % 6 == 4:
            raise SkipSample
        return {"samples": [shown(sample) for sample in samples], "number": self.current_sample_index}  # type: ignore[attr-defined]


class BatchTwice:
    def batch(self, samples: list[Any]) -> Any:
        for part in range(1 + number_of(samples[0]) % 2):
            yield {"samples": [shown(sample) for sample in samples], "part": part}


class BatchOfRows:
    """Batches name the rows of the plan that they hold: (dataset, number in it, pass)."""

    def batch(self, samples: list[Any]) -> Any:
        return {"rows": [(name_of(sample), *sample.__restore_key__[-2:]) for sample in samples]}


class EncodeBatch:
    def encode_batch(self, batch: Any) -> Any:
        return {**batch, "batch": self.current_batch_index}  # type: ignore[attr-defined]


HOOKS = {
    kind.__name__: kind
    for kind in (
        *(Encode, EncodeTroubled, EncodeTwice, EncodeWithLuck, Split, SplitTwice, PackPairs, PackAndKeep, PackByLength),
        *(PackSeveral, Group, BatchTroubled, BatchTwice, BatchOfRows, EncodeBatch),
    )
}


def encoder(family: str, hooks: tuple[str, ...], decoder: str) -> Any:
    """Returns the task encoder of a dataset.

    Args:
        family: "drawn", "interleaved", or "videos".
        hooks: Names of hooks, for the first family.
        decoder: One of DECODERS.
    """
    if family == "interleaved":
        return Interleaved(decoder, "folded")
    if family == "videos":
        return Videos(decoder == "dali")
    return type("Encoder", (*(HOOKS[name] for name in hooks), Drawn), {})(decoder)


def name_of(sample: Any) -> str:
    """Returns the last part of the path of the dataset of a sample."""
    return str(sample.__sources__[0].dataset_path).rpartition("/")[2]


def number_of(sample: Any) -> int:
    """Returns the number in the key of a sample."""
    return int(sample.__key__[1:])


def marked(sample: Any, *marks: Any) -> Any:
    """Returns a copy of a sample with marks added to its text."""
    field = "text" if hasattr(sample, "text") else "caption"
    return type(sample).extend(sample, **{field: " ".join(map(str, (getattr(sample, field), *marks)))})


def shown(value: Any) -> str:
    """Returns the keys in a value and a digest of all of its content."""
    return f"{getattr(value, '__key__', '')}:{digest(value)}"


def digest(value: Any) -> str:
    """Returns a digest of everything in a value, other than where it was read."""
    hashed = hashlib.blake2b(digest_size=8)
    for piece in _pieces(value):
        hashed.update(piece)
    return hashed.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        value = value.contiguous().numpy()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} ".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in ("__sources__", "__restore_key__"):
                yield field.name.encode()
                yield from _pieces(getattr(value, field.name))
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in ("__sources__", "__restore_key__"):
                yield str(name).encode()
                yield from _pieces(inner)
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)} ".encode()
        for inner in value:
            yield from _pieces(inner)
    else:
        yield repr(value).encode()


def checksum(value: Any) -> int:
    """Returns a number that depends on the content of a value."""
    return zlib.crc32(digest(value).encode())


_dropped_in_a_row = 0


def kept(is_kept: bool) -> bool:
    """Returns what it is given.

    Raises:
        FatalSampleError: So much was dropped that nothing may ever be kept, such as all of a small dataset.
    """
    global _dropped_in_a_row
    _dropped_in_a_row = 0 if is_kept else _dropped_in_a_row + 1
    if _dropped_in_a_row > 300:
        _dropped_in_a_row = 0
        raise FatalSampleError("this program drops everything")
    return is_kept


def keeps(element: Any) -> bool:
    """Selects four of five elements."""
    return kept(checksum(element) % 5 != 0)


def unlucky(element: Any) -> Any:
    """Fails on some elements and skips others."""
    if not kept(checksum(element) % 7 != 0):
        raise SkipSample
    if not kept(checksum(element) % 11 != 0):
        raise ValueError("eleven")
    return {"mapped": element}


def twice(element: Any) -> Iterator[Any]:
    """Yields none, one or two elements for one."""
    kept(checksum(element) % 3 != 0)
    for part in range(checksum(element) % 3):
        yield {"part": part, "of": element}


def numbered(elements: Iterator[Any]) -> Iterator[Any]:
    """Leaves out some elements and numbers the others."""
    for number, element in enumerate(elements):
        if kept(checksum(element) % 4 != 0):
            yield {"number": number, "of": element}


def mixed(elements: list[Any]) -> Any:
    """Makes one batch of several."""
    return {"mixed": [shown(element) for element in elements]}
