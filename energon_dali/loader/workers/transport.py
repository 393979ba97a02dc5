"""How a block of elements crosses between processes: pickled, with all large buffers side by side in shared memory.

What is copied: every large buffer once, into the arena. On the other side tensors, arrays and the data of media
handles are views of the arena. Plain `bytes` arrive as bytes and are copied there once more: no view is `bytes`.
"""

from __future__ import annotations

import operator
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import cloudpickle
import numpy as np

from energon_dali.decode.interface import MediaHandle

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 64
"""Buffers start at multiples of this many bytes: a cache line, and what SIMD loads want."""
SMALL_BUFFER_BYTES = 4096
"""Smaller buffers are copied: a label that a user keeps must not keep a whole block alive."""

Reduced = tuple[Any, ...]
_tracker = cloudpickle.cloudpickle


@dataclass(slots=True, eq=False)
class Parcel:
    """A pickled object, not yet copied: pieces of the pickle stream, and the buffers beside it."""

    pieces: list[Any]
    """Consecutive parts of the pickle stream, bytes-like."""
    buffers: list[memoryview]
    """Large buffers, one-dimensional bytes."""

    @property
    def extents(self) -> list[tuple[int, int]]:
        """(offset, size) in bytes of each buffer and, last, of the pickle stream."""
        offset = 0
        extents = []
        for size in (*(buffer.nbytes for buffer in self.buffers), sum(map(len, self.pieces))):
            extents.append((offset, size))
            offset = -(-(offset + size) // ALIGNMENT) * ALIGNMENT
        return extents

    def write(self, target: memoryview, extents: list[tuple[int, int]]) -> None:
        """Copies everything to its extent in `target`, writable bytes."""
        for buffer, (offset, size) in zip(self.buffers, extents, strict=False):
            target[offset : offset + size] = buffer
        offset = extents[-1][0]
        for piece in self.pieces:
            target[offset : offset + len(piece)] = piece
            offset += len(piece)


class PieceList:
    """A file that keeps what is written without joining it; large bytes stay where they are."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def write(self, piece: Any) -> int:
        self.pieces.append(piece)
        return len(piece)


def pack(value: Any) -> Parcel:
    """Returns any picklable value as a parcel; classes that cannot be imported by name travel by value.

    Raises:
        Exception: Whatever pickle raises for what cannot be pickled.
    """
    torch = sys.modules.get("torch")  # where torch was never imported there is no tensor, and no need to import it
    if torch is not None and hasattr(torch, "Tensor"):
        _REDUCERS.setdefault(torch.Tensor, _reduce_tensor)
    file = PieceList()
    buffers: list[memoryview] = []

    def beside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALL_BUFFER_BYTES:
            return True
        buffers.append(raw)
        return False

    BlockPickler(file, protocol=5, buffer_callback=beside).dump(value)
    return Parcel(file.pieces, buffers)


def unpack(source: memoryview, extents: list[tuple[int, int]]) -> Any:
    """Returns the value of a parcel that was written to `source`; its large buffers are views of `source`."""
    stream_offset, stream_size = extents[-1]
    buffers = [source[offset : offset + size] for offset, size in extents[:-1]]
    return pickle.loads(source[stream_offset : stream_offset + stream_size], buffers=buffers)


class BlockPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles tensors and media handles as buffers, and classes of `__main__` so that the rank finds its own again."""

    def reducer_override(self, obj: Any) -> Any:
        reduce = _REDUCERS.get(type(obj))
        if reduce is None and isinstance(obj, MediaHandle):  # a decoder's own kind of handle
            reduce = _REDUCERS[type(obj)] = _handle_reducer(type(obj))
        if reduce is not None:
            return reduce(obj)
        if isinstance(obj, type):
            return NotImplemented if _has_a_name(obj) else _reduce_class(obj)
        if type(obj) is FunctionType:
            return super().reducer_override(obj)
        return NotImplemented


def _handle_reducer(kind: type[MediaHandle]) -> Callable[[MediaHandle], Reduced]:
    """Returns what takes a kind of media handle apart: the arguments that make it again, its data as a buffer."""
    names = tuple(kind.__dataclass_fields__)
    data_at = names.index("data")
    take_values = operator.attrgetter(*names)

    def reduce(handle: MediaHandle) -> Reduced:
        values = list(take_values(handle))
        values[data_at] = pickle.PickleBuffer(values[data_at])
        return kind, tuple(values)

    return reduce


def _reduce_view(view: memoryview) -> Reduced:
    return memoryview, (pickle.PickleBuffer(view) if view.contiguous else view.tobytes(),)


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    if not (array.flags.c_contiguous or array.flags.f_contiguous) and not array.dtype.hasobject:
        array = np.ascontiguousarray(array)  # numpy itself would pickle it inside the stream
    return array.__reduce_ex__(5)


def _reduce_tensor(tensor: Tensor) -> Any:
    import torch

    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return NotImplemented
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else memoryview(b"")
    return _rebuild_tensor, (pickle.PickleBuffer(data), plain.dtype, tuple(plain.shape), tensor.requires_grad)


def _rebuild_tensor(data: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    import torch

    if len(data) == 0:
        tensor = torch.empty(shape, dtype=dtype)
    else:
        tensor = torch.frombuffer(bytearray(data) if isinstance(data, bytes) else data, dtype=dtype).view(shape)
    return tensor.requires_grad_() if requires_grad else tensor


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    MediaHandle: _handle_reducer(MediaHandle),
    memoryview: _reduce_view,
    np.ndarray: _reduce_array,
}

_named: dict[type, bool] = {}
_by_value: dict[type, bytes] = {}
_restored: dict[bytes, type] = {}


def _has_a_name(cls: type) -> bool:
    """Returns whether a class is found by its name, so that pickle needs no more than the name."""
    known = _named.get(cls)
    if known is None:
        found: Any = sys.modules.get(cls.__module__)
        for name in cls.__qualname__.split("."):
            found = getattr(found, name, None)
        # pickle itself has names for the types of None, NotImplemented and ...
        known = _named[cls] = found is cls or cls in (type(None), type(NotImplemented), type(...))
    return known


def _reduce_class(cls: type) -> Reduced:
    definition = _by_value.get(cls)
    if definition is None:
        definition = _by_value[cls] = cloudpickle.dumps(cls)
    return _restore_class, (getattr(_tracker, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {}).get(cls), definition)


def _restore_class(tracked: str | None, definition: bytes) -> type:
    """Returns the class of this process that the other side got by value, so that isinstance holds; else a new one.

    Loading the definition where the class is known already would replace its methods by copies, hence the look-up.
    """
    known = getattr(_tracker, "_DYNAMIC_CLASS_TRACKER_BY_ID", {}).get(tracked)
    if known is None:
        known = _restored.get(definition)
    if known is None:
        known = _restored[definition] = pickle.loads(definition)
    return cast(type, known)
