"""Parts that are not media decode as in webdataset, but for pickles, which are refused."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import pickle
import sys
import types
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
    """Does harm when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was run",)


@pytest.mark.parametrize("suffix", sorted(PICKLE_SUFFIXES))
def test_pickles_are_refused(suffix: str) -> None:
    with pytest.raises(DecodeError, match=r"runs whatever code.*Store the values as \.json"):
        decode_basic(suffix, pickle.dumps(Bomb()))


def test_pickles_in_other_clothes_are_not_run() -> None:
    with pytest.raises(DecodeError, match="tensors and plain values"):
        decode_basic("pth", torch_saved({"a": Bomb()}))
    with pytest.raises(DecodeError, match=r"no valid \.npy.*allow_pickle"):
        decode_basic("npy", saved(np.save, np.array([Bomb()], dtype=object), allow_pickle=True))
    with pytest.raises(DecodeError, match=r"no valid \.npz.*allow_pickle"):
        decode_basic("npz", saved(np.savez, np.array([Bomb()], dtype=object), allow_pickle=True))


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
        with pytest.raises(DecodeError, match=r"no valid \.gz"):
            gunzip(broken, 1 << 20)
