"""The values of users' states, turned into plain values and back: tuples, bytes, sets, arrays and tensors as well."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from energon_dali.errors import StateError
from energon_dali.shards.documents.state_entries import DamagedStateError

_KIND = "~kind"
"""Key of a dict that stands for a value of another kind."""


def to_plain(value: Any, owner: str) -> Any:
    """Returns a state in values that JSON has.

    Args:
        value: What a user's `save_state` returned.
        owner: Name of the class that saved it, for the message.

    Raises:
        StateError: It holds something that cannot be saved.
    """
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and _KIND not in value:
            return {key: to_plain(inner, owner) for key, inner in value.items()}
        return {
            _KIND: "dict",
            "items": [[to_plain(key, owner), to_plain(inner, owner)] for key, inner in value.items()],
        }
    if isinstance(value, list):
        return [to_plain(inner, owner) for inner in value]
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": [to_plain(inner, owner) for inner in value]}
    if isinstance(value, (set, frozenset)):
        return {_KIND: type(value).__name__, "items": [to_plain(inner, owner) for inner in value]}
    if isinstance(value, (bytes, bytearray)):
        return {_KIND: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return {_KIND: "array", **_array(np.asarray(value)), "scalar": isinstance(value, np.generic)}
    if type(value).__module__ == "torch" and hasattr(value, "numpy"):
        return {_KIND: "tensor", **_array(value.detach().cpu().contiguous().numpy())}
    raise StateError(
        f"{owner}.save_state() returned a {type(value).__name__}, and states hold numbers, texts, bytes, lists, "
        "tuples, sets, dicts, arrays and tensors, so that they load without running code. Save restore keys "
        "(sample.__restore_key__) instead of samples, and make these again by restore_sample()."
    )


def _array(value: Any) -> dict[str, Any]:
    return {"dtype": value.dtype.str, "shape": list(value.shape), "data": base64.b64encode(value.tobytes()).decode()}


def from_plain(value: Any) -> Any:
    """Returns the state that `to_plain` was given.

    Raises:
        StateError: It is damaged.
    """
    try:
        return _from_plain(value)
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedStateError(f"{type(error).__name__}: {str(error)[:300]}") from error


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: _from_plain(inner) for key, inner in value.items()}
    if kind == "dict":
        return {_from_plain(key): _from_plain(inner) for key, inner in value["items"]}
    makers = {"tuple": tuple, "set": set, "frozenset": frozenset}
    if kind in makers:
        return makers[kind](_from_plain(inner) for inner in value["items"])
    data = base64.b64decode(value["data"], validate=True)
    if kind == "bytes":
        return data
    dtype = np.dtype(str(value["dtype"]))
    if dtype.kind not in "biufc":
        raise DamagedStateError(f"it holds an array of {dtype}.")
    array = np.frombuffer(data, dtype).reshape(value["shape"]).copy()
    if kind == "array":
        return array[()] if value["scalar"] else array
    if kind == "tensor":
        import torch

        return torch.from_numpy(array)
    raise DamagedStateError(f"it holds a value of the unknown kind {str(kind)[:50]!r}.")
