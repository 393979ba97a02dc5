"""Decodes the parts of a sample that are not media: text, numbers, JSON, arrays, tensors; by webdataset's suffixes.

Datasets are data, not code: pickles are refused, and what can hide one (.pth, .npy) is read so that it cannot run.
"""

from __future__ import annotations

import gzip
import importlib
import json
import zlib
from collections.abc import Callable
from io import BytesIO
from pickle import UnpicklingError
from typing import Any

import numpy as np

from energon_dali.errors import ConfigError, DecodeError, EnergonDaliError

PICKLE_SUFFIXES = frozenset({"pyd", "pickle", "pkl"})
"""Suffixes that webdataset unpickles and this package refuses."""


def decode_basic(suffix: str, data: bytes) -> Any:
    """Returns a part decoded by its suffix; the bytes as they are if the suffix is unknown.

    txt text transcript: str. cls cls2 index inx id: int. json jsn: plain values. pth: what torch.load gives with
    weights_only, on the CPU. npy: array. npz: dict of arrays. ten tb: list of arrays. mp msg: MessagePack. cbor: CBOR.

    Args:
        suffix: What follows the last dot; upper and lower case differ, as in webdataset.
        data: The content.

    Raises:
        DecodeError: The content is not what the suffix says, or it is a pickle.
        ConfigError: The package that reads the format is not installed.
    """
    reader = READERS.get(suffix)
    if reader is None:
        return data
    try:
        return reader(data)
    except (EnergonDaliError, MemoryError):
        raise
    except Exception as error:
        raise DecodeError(f"This is no valid .{suffix}: {type(error).__name__}: {error}", suffix, "basic") from error


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """Returns the content of a gzip file.

    Args:
        data: The compressed file.
        max_bytes: Largest size of the content.

    Raises:
        DecodeError: The file is broken or cut, or its content is larger than `max_bytes`.
    """
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
            content = stream.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DecodeError(f"This is no valid .gz: {type(error).__name__}: {error}", "gz", "basic") from error
    if len(content) > max_bytes:
        raise DecodeError(f"The unpacked content has more than max_bytes={max_bytes:,} bytes", "gz", "basic")
    return content


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _torch(data: bytes) -> Any:
    import torch

    try:
        return torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        # Torch's own message advises to switch the protection off.
        raise DecodeError(
            "This .pth holds something other than tensors and plain values, or is broken. Objects of other classes "
            "would run code when they are read, so they are refused. Store a dict of tensors, numbers and strings",
            "pth",
            "basic",
        ) from error


def _npy(data: bytes) -> Any:
    return np.lib.format.read_array(BytesIO(data), allow_pickle=False)


def _npz(data: bytes) -> dict[str, Any]:
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def _tenbin(data: bytes) -> Any:
    from webdataset import tenbin

    return tenbin.decode_buffer(data)


def _msgpack(data: bytes) -> Any:
    try:
        msgpack = importlib.import_module("msgpack")
    except ImportError as error:
        raise _missing("msgpack", ".mp and .msg") from error
    return msgpack.unpackb(data)


def _cbor(data: bytes) -> Any:
    try:
        cbor2 = importlib.import_module("cbor2")
    except ImportError as error:
        raise _missing("cbor2", ".cbor") from error
    return cbor2.loads(data)


def _missing(package: str, parts: str) -> ConfigError:
    return ConfigError(
        f"The dataset has {parts} parts and the package {package} is not installed. They can only be decoded with it. "
        f"Run `pip install {package}`, or leave these parts out of the field map."
    )


def _refuse_pickle(data: bytes) -> Any:
    raise DecodeError(
        "This part is a Python pickle, which runs whatever code its writer put in when it is read. It is refused: "
        "datasets are data. Store the values as .json, .npy, .npz or .pth, or take the raw bytes with decoder=None and "
        "unpickle them yourself if you trust their writer",
        "pickle",
        "basic",
    )


READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(sorted(PICKLE_SUFFIXES), _refuse_pickle),
    "pth": _torch,
    "npy": _npy,
    "npz": _npz,
    **dict.fromkeys(("ten", "tb"), _tenbin),
    **dict.fromkeys(("mp", "msg"), _msgpack),
    "cbor": _cbor,
}
"""What reads a part, by suffix."""
