"""Reads the pickles of a downloaded archive as data: lists, dicts, texts, numbers and uint8 arrays, nothing else.

A pickle is a program, and the usual reader runs it. Here it may name only the functions that make an array, and set
only the state of arrays and their dtypes. torch's reader of weights does not know the opcodes of Python 2, which wrote
the official archive.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from energon_dali.errors import DatasetFormatError

_ARRAYS = {
    (module.replace("numpy.core", core), name)
    for core in ("numpy.core", "numpy._core")
    for module, name in (("numpy.core.multiarray", "_reconstruct"), ("numpy.core.numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
"""What pickles of arrays name. numpy 2 writes `numpy._core`; Python 3 writes bytes in protocol 2 by `encode`."""


# The reader in Python, not the one in C: that one takes memory for every number that a pickle counts objects with.
_PythonUnpickler: Any = pickle._Unpickler


class _PlainUnpickler(_PythonUnpickler):  # type: ignore[misc]
    dispatch = dict(_PythonUnpickler.dispatch)  # noqa: RUF012  as the base class has it

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAYS:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return super().find_class(module, name)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"the extension {code}")

    def load_build(self) -> None:
        if not isinstance(self.stack[-2], (np.ndarray, np.dtype)):
            raise pickle.UnpicklingError(f"a state for a {type(self.stack[-2]).__name__}")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def load_plain(data: bytes, name: str) -> Any:
    """Returns what a pickle holds: lists, tuples, dicts, str, bytes, numbers, None, and uint8 arrays.

    Args:
        data: The pickle, of Python 2 or 3.
        name: What it is, for messages.

    Raises:
        DatasetFormatError: It holds anything else, is damaged, or ends too early.
    """
    try:
        value = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
        _check_plain(value)
    except Exception as error:  # damaged pickles fail in any way, RecursionError and MemoryError among them
        raise DatasetFormatError(
            f"{name} holds {error} ({type(error).__name__}). Only lists, dicts, texts, numbers and uint8 arrays are "
            "read, as in the official archive, and no code is run. Download the archive again."
            if isinstance(error, pickle.UnpicklingError)
            else f"{name} is not a complete pickle ({type(error).__name__}: {error}). Download the archive again."
        ) from error
    return value


def _check_plain(value: Any) -> None:
    """Raises an error for what is neither a plain value nor an array of bytes.

    Raises:
        UnpicklingError: It is something else.
    """
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return
    if value is not None and type(value) not in (str, bytes, int, float, bool, list, tuple, dict):
        raise pickle.UnpicklingError(f"a {type(value).__name__}")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _check_plain(inner)
