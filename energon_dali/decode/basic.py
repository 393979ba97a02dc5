"""Decodes the parts of a sample that are not media (text, numbers, JSON, arrays, tensors) by webdataset's suffixes.

Datasets are data, not code: unless the user trusts the dataset, pickles are refused, and a .pth, which can hide one, is
read so that it cannot run. A .npy is always read so.
"""

from __future__ import annotations

import gzip
import importlib
import math
import pickle
import zipfile
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from operator import methodcaller
from pickle import UnpicklingError
from typing import Any

import numpy as np

from energon_dali.decode.spec import DEFAULT_MAX_BYTES
from energon_dali.errors import ConfigError, DecodeError, EnergonDaliError
from energon_dali.shards.documents.json_text import parse_json

PICKLE_SUFFIXES = frozenset({"pyd", "pickle", "pkl"})
"""Suffixes that webdataset unpickles, and this package does where the user trusts the dataset."""

REFUSED_PICKLE = "pickle"
"""Format that the error of a refused pickle names."""

MAX_DEPTH = 100
"""Most levels of nesting in a part, so that code that walks over a sample or pickles it later does not fail."""

_NPY_MAGIC = b"\x93NUMPY"


def decode_basic(suffix: str, data: bytes, max_bytes: int = DEFAULT_MAX_BYTES, *, trusts_pickles: bool = False) -> Any:
    """Returns a part decoded by its suffix, or the bytes unchanged if the suffix is unknown.

    txt text transcript: str. cls cls2 index inx id: int. json jsn: plain values. pth: what torch.load gives with
    weights_only, on the CPU. npy: array. npz: dict of arrays. ten tb: list of arrays. mp msg: MessagePack. cbor: CBOR.

    Args:
        suffix: The text after the last dot; case matters, as in webdataset.
        data: The content.
        max_bytes: Largest size that the part may unpack to, if that is more than its own size. It is checked by the
            headers, before memory is allocated.
        trusts_pickles: Unpickle pickles, and objects of any class in a .pth, which runs whatever code their writer put
            in. The size of these is not checked.

    Raises:
        DecodeError: The content does not match the suffix, unpacks to more than `max_bytes`, is nested too deeply, or
            is a pickle that is not trusted.
        ConfigError: The package that reads the format is not installed.
        MemoryError: The memory is full.
    """
    reader = READERS.get(suffix)
    if reader is None:
        return data
    if trusts_pickles:
        reader = _TRUSTING.get(reader, reader)
    limit = max(max_bytes, len(data))
    try:
        return reader(data, limit) if reader in _BOUNDED else reader(data)
    except EnergonDaliError:
        raise
    except MemoryError as error:
        # If the largest allowed part would fit into memory, this part asked for more: only it fails.
        if not _fits(limit):
            raise
        raise DecodeError(
            f"This .{suffix} asks for more memory than max_bytes={max_bytes:,} allows", suffix, "basic"
        ) from error
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:500]}"
        raise DecodeError(f"This is not a valid .{suffix}: {text}", suffix, "basic") from error


def _fits(size: int) -> bool:
    try:
        np.empty(size, np.uint8)
    except MemoryError:
        return False
    return True


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """Returns the content of a gzip file.

    Args:
        data: The compressed file.
        max_bytes: Largest size of the content.

    Raises:
        DecodeError: The file is broken or truncated, or its content is larger than `max_bytes`.
    """
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
            content = stream.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DecodeError(f"This is not a valid .gz: {type(error).__name__}: {error}", "gz", "basic") from error
    if len(content) > max_bytes:
        raise DecodeError(f"The unpacked content has more than max_bytes={max_bytes:,} bytes", "gz", "basic")
    return content


def _json(data: bytes) -> Any:
    return parse_json(data, max_depth=MAX_DEPTH, any_number=True)


def _torch(data: bytes, limit: int) -> Any:
    import torch

    if data.startswith(b"PK\3\4"):  # torch distinguishes the two formats in the same way
        with zipfile.ZipFile(BytesIO(data)) as archive:
            _check_unpacked(archive, limit, "pth")
    try:
        value = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        # Torch's own message advises to turn the protection off.
        raise DecodeError(
            "This .pth holds something other than tensors and plain values, or is broken. Objects of other classes "
            "would run code when they are read, so they are refused. Store a dict of tensors, numbers and strings; or, "
            "for a part of a dataset whose writer you trust, pass allow_code=True",
            "pth",
            "basic",
        ) from error
    _check_value(value, len(data), limit, "pth")
    return value


def _torch_objects(data: bytes) -> Any:
    import torch

    return torch.load(BytesIO(data), map_location="cpu", weights_only=False)


def _check_unpacked(archive: zipfile.ZipFile, limit: int, suffix: str) -> None:
    size = sum(member.file_size for member in archive.infolist())
    if size > limit:
        raise DecodeError(f"The content has {size:,} bytes unpacked, the limit max_bytes is {limit:,}", suffix, "basic")


def _check_value(value: Any, num_bytes: int, limit: int, suffix: str) -> None:
    """Refuses values that are nested too deeply, or that refer to the same content again and again.

    Args:
        value: The decoded value.
        num_bytes: Size of the content; every value takes at least one byte of it.
        limit: Most bytes of all tensors and all binary data together.
        suffix: Of the part.

    Raises:
        DecodeError: The value is refused.
    """
    level, size = [value], 0
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for outer in level:
            if isinstance(outer, Mapping):
                inner += outer.values()
            elif isinstance(outer, (list, tuple, set)):
                inner += outer
            elif isinstance(outer, (bytes, bytearray)):
                size += len(outer)
            elif hasattr(outer, "element_size"):
                size += outer.numel() * outer.element_size()
            if len(inner) > max(num_bytes, 1000):
                raise DecodeError("The content names its values over and over, more than it has bytes", suffix, "basic")
        if size > limit:
            raise DecodeError(f"The content asks for {size:,} bytes, the limit max_bytes is {limit:,}", suffix, "basic")
        if not inner:
            return
        level = inner
    raise DecodeError(f"Values are nested in more than {MAX_DEPTH} levels", suffix, "basic")


def _npy(data: bytes) -> Any:
    stream = BytesIO(data)
    version = np.lib.format.read_magic(stream)
    # Version 3 differs from 2 only in the encoding of field names.
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if min(shape, default=0) < 0:
        raise DecodeError(f"The shape {str(shape)[:100]} has a negative length", "npy", "basic")
    # The number of elements of a zero-size type has no bound, so each counts as one byte.
    size = math.prod(shape) * max(1, dtype.itemsize)
    held = len(data) - stream.tell() if dtype.itemsize else len(data)
    if size > held and not dtype.hasobject:  # arrays of objects are refused as pickles below
        raise DecodeError(f"The header says {size:,} bytes, and the content has {held:,}", "npy", "basic")
    return np.lib.format.read_array(BytesIO(data), allow_pickle=False)


def _npz(data: bytes, limit: int) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(BytesIO(data)) as archive:
        _check_unpacked(archive, limit, "npz")
        for member in archive.infolist():
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DecodeError(f"{member.filename[:100]!r} is packed otherwise than numpy packs", "npz", "basic")
            content = archive.read(member)
            name = member.filename.removesuffix(".npy")
            arrays[name] = _npy(content) if content.startswith(_NPY_MAGIC) else content
    return arrays


def _tenbin(data: bytes) -> Any:
    from webdataset import tenbin

    return tenbin.decode_buffer(data)


def _by_package(package: str, function: str, suffix: str, parts: str) -> Callable[[bytes, int], Any]:
    """Returns a reader that calls a function of a package, which need not be installed."""

    def read(data: bytes, limit: int) -> Any:
        try:
            module = importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"The dataset has {parts} parts and the package {package} is not installed. They can only be decoded "
                f"with it. Run `pip install {package}`, or leave these parts out of the field map."
            ) from error
        value = getattr(module, function)(data)
        _check_value(value, len(data), limit, suffix)
        return value

    return read


_msgpack = _by_package("msgpack", "unpackb", "msg", ".mp and .msg")
_cbor = _by_package("cbor2", "loads", "cbor", ".cbor")


def _refuse_pickle(data: bytes) -> Any:
    raise DecodeError(
        "This part is a Python pickle, which runs whatever code its writer put in when it is read. It is refused: "
        "datasets are data. Store the values as .json, .npy, .npz or .pth; or, if you trust the writer, pass "
        "allow_code=True to get_train_dataset or get_val_dataset; or take the raw bytes with decoder=None",
        REFUSED_PICKLE,
        "basic",
    )


READERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), methodcaller("decode", "utf-8")),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), _json),
    **dict.fromkeys(sorted(PICKLE_SUFFIXES), _refuse_pickle),
    "pth": _torch,
    "npy": _npy,
    "npz": _npz,
    **dict.fromkeys(("ten", "tb"), _tenbin),
    **dict.fromkeys(("mp", "msg"), _msgpack),
    "cbor": _cbor,
}
"""Functions that read a part, by suffix."""

_BOUNDED = frozenset((_torch, _npz, _msgpack, _cbor))
"""Readers that also take the limit of the unpacked size."""

_TRUSTING: dict[Callable[..., Any], Callable[..., Any]] = {_refuse_pickle: pickle.loads, _torch: _torch_objects}
"""By reader, the one in its place where the user trusts the dataset."""

PLAIN_READERS: dict[str, Callable[[bytes], Any]] = {
    suffix: reader for suffix, reader in READERS.items() if reader not in _BOUNDED and reader is not _refuse_pickle
}
"""By suffix, the readers that need the content alone. They raise exceptions of any type."""
