"""Parts that are not media decode as in webdataset, except for pickles, which are refused."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import math
import pickle
import sys
import types
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from webdataset import autodecode, tenbin

from energon_dali.decode.basic import PICKLE_SUFFIXES, READERS, decode_basic, gunzip
from energon_dali.errors import ConfigError, DecodeError


def saved(save: Any, value: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, value, **options)
    return stream.getvalue()


def torch_saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def test_the_suffixes_are_those_of_webdataset() -> None:
    assert set(READERS) == set(autodecode.decoders)


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        ("txt", "zürich".encode()),
        ("text", b"hello\n"),
        ("transcript", b""),
        ("cls", b"7"),
        ("cls2", b" 12\n"),
        ("index", b"-3"),
        ("inx", b"0"),
        ("id", b"123456789012345678901"),
        ("json", json.dumps({"a": [1, None, "ä"]}).encode()),
        ("jsn", b"[1.5]"),
        ("npy", saved(np.save, np.arange(6).reshape(2, 3))),
        ("npz", saved(np.savez, np.arange(3))),
        ("ten", bytes(tenbin.encode_buffer([np.arange(4, dtype=np.float32), np.ones((2, 2), np.int32)]))),
        ("pth", torch_saved({"a": torch.arange(3), "b": [1, "x"]})),
        ("unknown", b"\x00\x01"),
        ("TXT", b"upper case is another suffix"),
    ],
)
def test_values_equal_webdatasets(suffix: str, data: bytes) -> None:
    value = decode_basic(suffix, data)
    expected = autodecode.basichandlers(f".{suffix}", data)
    if expected is None:
        assert value is data
        return
    assert type(value) is type(expected)
    if isinstance(value, dict) and suffix in ("pth", "npz"):
        assert value.keys() == expected.keys()
        assert all(np.array_equal(np.asarray(value[key]), np.asarray(expected[key])) for key in value)
    elif suffix == "ten":
        assert all(np.array_equal(*pair) for pair in zip(value, expected, strict=True))
    else:
        assert np.array_equal(value, expected)


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        ("txt", b"\xff\xfe"),
        ("cls", b"seven"),
        ("json", b"{"),
        ("npy", b"\x93NUMPY"),
        ("npz", b"PK"),
        ("ten", b"~"),
        ("pth", b""),
        ("pth", b"no zip"),
    ],
)
def test_what_is_broken_is_a_decode_error(suffix: str, data: bytes) -> None:
    with pytest.raises(DecodeError, match=rf"\.{suffix}") as caught:
        decode_basic(suffix, data)
    assert caught.value.route == "basic"


class Bomb:
    """Does harm when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was run",)


@pytest.mark.parametrize("suffix", sorted(PICKLE_SUFFIXES))
def test_pickles_are_refused(suffix: str) -> None:
    with pytest.raises(DecodeError, match=r"runs whatever code.*Store the values as \.json"):
        decode_basic(suffix, pickle.dumps(Bomb()))


def test_pickles_in_other_clothes_are_not_run() -> None:
    with pytest.raises(DecodeError, match="tensors and plain values"):
        decode_basic("pth", torch_saved({"a": Bomb()}))
    with pytest.raises(DecodeError, match=r"not a valid \.npy.*allow_pickle"):
        decode_basic("npy", saved(np.save, np.array([Bomb()], dtype=object), allow_pickle=True))
    with pytest.raises(DecodeError, match=r"not a valid \.npz.*allow_pickle"):
        decode_basic("npz", saved(np.savez, np.array([Bomb()], dtype=object), allow_pickle=True))


def test_a_trusted_pth_may_hold_any_object() -> None:
    data = torch_saved(types.SimpleNamespace(boxes=torch.arange(3), name="a"))
    with pytest.raises(DecodeError, match=r"tensors and plain values.*allow_code=True"):
        decode_basic("pth", data)
    value = decode_basic("pth", data, trusts_pickles=True)
    assert value.name == "a"
    assert torch.equal(value.boxes, torch.arange(3))
    with pytest.raises(DecodeError, match=r"not a valid \.pth"):
        decode_basic("pth", data[:-50], trusts_pickles=True)


@pytest.mark.parametrize(("suffix", "package"), [("mp", "msgpack"), ("msg", "msgpack"), ("cbor", "cbor2")])
def test_optional_packages(suffix: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        decode_basic(suffix, b"x")
    stand_in = types.ModuleType(package)
    stand_in.unpackb = stand_in.loads = lambda data: ["read", data]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, stand_in)
    assert importlib.import_module(package) is stand_in
    assert decode_basic(suffix, b"x") == ["read", b"x"]


def test_gunzip() -> None:
    content = b"many words " * 1000
    assert gunzip(gzip.compress(content), len(content)) == content
    assert gunzip(gzip.compress(b"a") + gzip.compress(b"b"), 2) == b"ab"
    with pytest.raises(DecodeError, match="more than max_bytes=10,999 bytes"):
        gunzip(gzip.compress(content), len(content) - 1)
    for broken in (b"no gzip", gzip.compress(content)[:-9], gzip.compress(content)[:30] + bytes(40)):
        with pytest.raises(DecodeError, match=r"not a valid \.gz"):
            gunzip(broken, 1 << 20)


def npy_of(header: str, content: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """Returns a .npy with an arbitrary header text."""
    length = 2 if version == (1, 0) else 4
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(length, "little") + text + content


def npy_shape(shape: str, descr: str = "'<f8'", **options: Any) -> bytes:
    return npy_of(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}", **options)


def packed(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def deflated(data: bytes) -> bytes:
    """Returns a .pth whose members are compressed, which torch itself never writes."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return packed({name: archive.read(name) for name in archive.namelist()})


def of_any_depth(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


MIB = 1 << 20


@pytest.mark.parametrize(
    ("suffix", "data", "reason"),
    [
        ("npy", npy_shape("(8796093022208,)"), "The header says 70,368,744,177,664 bytes, and the content has 0"),
        ("npy", npy_shape("(8796093022208,)", version=(2, 0)), "The header says 70,368"),
        ("npy", npy_shape("(8796093022208,)", version=(3, 0)), "The header says 70,368"),
        ("npy", npy_shape("(1099511627776, 1099511627776)"), "The header says"),
        ("npy", npy_shape("(4,)", content=bytes(31)), "The header says 32 bytes, and the content has 31"),
        ("npy", npy_shape("(-1,)"), "negative length"),
        ("npy", npy_shape("(4611686018427387904,)", "'|V0'"), "The header says"),
        ("npy", npy_shape("()", "'|V2147483647'"), "The header says"),
        ("npy", npy_of("-" * 9000 + "1"), "not a valid .npy|asks for more memory"),
        ("npz", packed({"a.npy": npy_shape("(8796093022208,)")}), "The header says"),
        (
            "npz",
            packed({"a.npy": npy_shape("(2621440,)", content=bytes(8 * 2621440))}),
            "unpacked, the limit max_bytes",
        ),
        ("npz", packed({f"{number}": bytes(MIB) for number in range(40)}), "unpacked, the limit max_bytes"),
        ("npz", packed({"a": bytes(100)}, zipfile.ZIP_LZMA), "packed otherwise"),
        ("pth", deflated(torch_saved(torch.zeros(5 * MIB))), "unpacked, the limit max_bytes"),
        ("pth", torch_saved(torch.zeros(1).expand(1 << 40)), "The content asks for 4,398,046,511,104 bytes"),
        ("pth", torch_saved(of_any_depth(150)), "more than 100 levels"),
        ("json", b"[" * 100_000, "more than 100 levels"),
        ("json", b"[" * 100_000 + b"]" * 100_000, "more than 100 levels"),
        ("json", b'{"a":' * 500 + b"1" + b"}" * 500, "more than 100 levels"),
        ("json", b"9" * 5000, "not a valid .json"),
        ("cls", b"9" * 5000, "not a valid .cls"),
        ("txt", b"\xff", "not a valid .txt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_that_asks_for_too_much_fails_alone(suffix: str, data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        decode_basic(suffix, data, 16 * MIB)
    assert len(str(caught.value)) < 1000


def test_aliases_of_a_pth_count_as_often_as_they_are_used() -> None:
    value: list[Any] = [1]
    for _ in range(9):
        value = [value] * 10
    with pytest.raises(DecodeError, match="names its values over and over"):
        decode_basic("pth", torch_saved(value))


def test_a_part_may_be_larger_than_the_limit_where_it_is_not_packed() -> None:
    array = np.arange(1000.0)
    assert np.array_equal(decode_basic("npy", saved(np.save, array), 100), array)
    assert np.array_equal(decode_basic("npz", saved(np.savez, array), 100)["arr_0"], array)
    assert torch.equal(decode_basic("pth", torch_saved(torch.arange(1000)), 100), torch.arange(1000))
    assert decode_basic("json", b"[" * 100 + b"]" * 100) == of_any_depth(99)


@pytest.mark.parametrize("memory_is_full", [False, True])
def test_a_full_memory_is_not_the_fault_of_a_sample(memory_is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(data: bytes) -> Any:
        raise MemoryError

    monkeypatch.setitem(READERS, "npy", read)
    if memory_is_full:
        monkeypatch.setattr("energon_dali.decode.basic._fits", lambda size: False)
    with pytest.raises(MemoryError if memory_is_full else DecodeError):
        decode_basic("npy", b"")


def test_damaged_arrays_and_tensors_give_values_or_decode_errors() -> None:
    draw = np.random.default_rng(11)
    goods = {
        "npy": saved(np.save, np.arange(20.0).reshape(4, 5)),
        "npz": saved(np.savez_compressed, np.arange(20.0), b=np.ones(3, np.int8)),
        "pth": torch_saved({"a": torch.arange(20), "b": [torch.ones(2, 3), "x", 1.5]}),
    }
    for suffix, good in goods.items():
        for _ in range(150):
            data = bytearray(good)
            for place in draw.integers(0, len(data), int(draw.integers(1, 4))):
                data[place] = draw.integers(0, 256)
            try:
                value = decode_basic(suffix, bytes(data), MIB)
            except DecodeError:
                continue
            arrays = value.values() if isinstance(value, dict) else [value]
            for array in arrays:
                assert math.prod(getattr(array, "shape", ())) <= MIB
