"""Reads the pickles of a downloaded archive as data: lists, dicts, texts, numbers and arrays of bytes, nothing else.

A pickle is a program, and the usual reader runs it. Here no function of numpy or of any other package is called: the
few names that arrays of uint8 need stand for stand-ins of this module, and every other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import DatasetFormatError


class _Dtype:
    """Stands for numpy.dtype; only bytes without a sign are known."""

    __slots__ = ()

    def __init__(self, code: object = None, *_: object) -> None:
        if code not in ("u1", b"u1", "uint8"):
            raise pickle.UnpicklingError(f"an array of {code!r}, where only uint8 is expected")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which a byte does not have."""


class _Array:
    """Stands for an array until the pickle was read."""

    __slots__ = ("data",)

    def __init__(self, data: NDArray[np.uint8] | None = None) -> None:
        self.data = data

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.data = _array(raw, dtype, shape, fortran)


class _Callable:
    """Stands for a class or function; has no attribute that a pickle could set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a state for a function")


def _array(raw: Any, dtype: Any, shape: Any, fortran: Any) -> NDArray[np.uint8]:
    known = isinstance(shape, tuple) and all(isinstance(side, int) and side >= 0 for side in shape)
    if isinstance(raw, str):  # bytes that Python 2 wrote, read as text
        raw = raw.encode("latin1")
    if not known or not isinstance(dtype, _Dtype) or not isinstance(raw, bytes | bytearray):
        raise pickle.UnpicklingError("an array whose description cannot be understood")
    if math.prod(shape) != len(raw):
        raise pickle.UnpicklingError(f"an array of shape {shape} with {len(raw)} bytes")
    pixels: NDArray[np.uint8] = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
    return pixels


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"a text in {encoding!r}")
    return text.encode("latin1")


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(_array(raw, dtype, shape, order == "F"))


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): lambda *_: _Array(),
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,  # how Python 3 writes bytes in protocol 2
}
"""What pickles of arrays name. numpy 2 writes `numpy._core` for `numpy.core`."""


# The reader in Python, not the one in C: that one takes memory for every number that a pickle counts objects with.
class _PlainUnpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        call = _KNOWN.get((module.replace("numpy._core", "numpy.core"), name))
        if call is None:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return _Callable(call)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"the extension {code}")


def load_plain(data: bytes, name: str) -> Any:
    """Returns what a pickle holds: lists, tuples, dicts, str, bytes, numbers, None, and uint8 arrays.

    Args:
        data: The pickle, of Python 2 or 3.
        name: What it is, for messages.

    Raises:
        DatasetFormatError: It holds anything else, is damaged, or ends too early.
    """
    try:
        return _finished(_PlainUnpickler(io.BytesIO(data), encoding="bytes").load())
    except Exception as error:  # damaged pickles fail in any way, RecursionError and MemoryError among them
        raise DatasetFormatError(
            f"{name} holds {error} ({type(error).__name__}). Read are lists, dicts, texts, numbers and uint8 arrays, "
            "as in the official archive, and no code is run. Download the archive again."
            if isinstance(error, pickle.UnpicklingError)
            else f"{name} is no whole pickle ({type(error).__name__}: {error}). Download the archive again."
        ) from error


def _finished(value: Any) -> Any:
    """Returns the value with arrays in the place of their stand-ins."""
    if isinstance(value, _Array):
        if value.data is None:
            raise pickle.UnpicklingError("an array without bytes")
        return value.data
    if isinstance(value, dict):
        return {_finished(key): _finished(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_finished(inner) for inner in value)
    if value is not None and not isinstance(value, str | bytes | int | float):
        raise pickle.UnpicklingError(f"a {type(value).__name__}")
    return value
