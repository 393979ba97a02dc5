"""How blocks and batches cross between processes: pickled, with large buffers next to the pickle stream.

The sender copies each large buffer once, into shared memory. In the receiver, tensors, arrays and the data of media
handles are views of that memory. Plain `bytes` are copied there once more, because no view is `bytes`.

Tensors travel in one of two ways. By default each is a contiguous buffer of its own: cheap, and right for samples.
With `keep_aliasing`, for finished batches, tensors keep their strides and the memory that they share, and tensors on
GPUs may be among them.
"""

from __future__ import annotations

import ctypes
import functools
import io
import operator
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from energon_dali.decode.interface import MediaHandle
from energon_dali.loader.processes.class_pickling import Reduced, has_importable_name, reduce_class
from energon_dali.loader.processes.tensor_table import Extent, Segment, TensorLayout, TensorRebuilder, TensorTable

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64
"""Buffers start at multiples of this many bytes: a cache line, and what SIMD loads want."""
SMALL_BUFFER_BYTES = 4096
"""Smaller buffers are copied: a label that the user keeps must not keep a whole block alive."""
_SMALL_TENSOR_ALIGNMENT = 16


class SerializedBlock:
    """A pickled value whose bytes have not been copied yet.

    Args:
        pieces: Consecutive parts of the pickle stream, bytes-like.
        buffers: Large buffers, one-dimensional bytes.
        table: The tensors that keep their aliasing; None if there are none.
    """

    __slots__ = ("_buffers", "_copied_segments", "_pieces", "device_segments", "extents", "size", "tensors")

    def __init__(self, pieces: list[Any], buffers: list[memoryview], table: TensorTable | None = None) -> None:
        self._pieces = pieces
        self._buffers = buffers
        self.extents: list[Extent] = []
        """Of each buffer and, last, of the pickle stream."""
        end = 0
        for size in (*(buffer.nbytes for buffer in buffers), sum(map(len, pieces))):
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            end = offset + size
            self.extents.append((offset, size))
        self.tensors: TensorLayout | None = None
        """Where the tensors of `table` are."""
        self.device_segments: list[Segment] = []
        """The segments on GPUs, which travel in memory of their own."""
        self._copied_segments: list[tuple[int, Segment]] = []
        self.size = end
        """Bytes that `write` needs."""
        if table is not None:
            self._lay_out(table)

    def _lay_out(self, table: TensorTable) -> None:
        """Finds an offset for each segment: large ones first, small ones together after them."""
        views, segments = table.find_segments()
        extents: list[Extent | int] = [0] * len(segments)
        small: list[int] = []
        for number, segment in enumerate(segments):
            if segment.device >= 0:
                extents[number] = len(self.device_segments)
                self.device_segments.append(segment)
            elif segment.size < SMALL_BUFFER_BYTES:
                small.append(number)
            else:
                extents[number] = self._append(segment, ALIGNMENT)
        self.size = small_offset = -(-self.size // ALIGNMENT) * ALIGNMENT
        for number in small:
            extents[number] = self._append(segments[number], _SMALL_TENSOR_ALIGNMENT)
        self.tensors = TensorLayout(views, extents, (small_offset, self.size - small_offset))

    def _append(self, segment: Segment, alignment: int) -> Extent:
        offset = -(-self.size // alignment) * alignment
        self.size = offset + segment.size
        self._copied_segments.append((offset, segment))
        return offset, segment.size

    def write(self, target: memoryview) -> None:
        """Copies everything into `target`, at least `size` writable bytes."""
        for buffer, (offset, size) in zip(self._buffers, self.extents, strict=False):
            target[offset : offset + size] = buffer
        offset = self.extents[-1][0]
        for piece in self._pieces:
            target[offset : offset + len(piece)] = piece
            offset += len(piece)
        if self._copied_segments:
            address = ctypes.addressof((ctypes.c_ubyte * len(target)).from_buffer(target))
            for offset, segment in self._copied_segments:
                ctypes.memmove(address + offset, segment.address, segment.size)


def serialize(value: Any, *, keep_aliasing: bool = False) -> SerializedBlock:
    """Returns any picklable value as a serialized block; classes that cannot be imported by name travel by value.

    Args:
        value: The value.
        keep_aliasing: Keep the strides of tensors, the memory that they share, and tensors on GPUs.

    Raises:
        Exception: Whatever pickle raises for something that cannot be pickled.
    """
    pieces = BufferList()
    buffers: list[memoryview] = []

    def keep_in_stream(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALL_BUFFER_BYTES:
            return True
        buffers.append(raw)
        return False

    table = TensorTable() if keep_aliasing else None
    _BlockPickler(pieces, keep_in_stream, table).dump(value)
    return SerializedBlock(pieces.pieces, buffers, table)


def deserialize(
    source: memoryview,
    extents: list[Extent],
    tensors: TensorLayout | None = None,
    device_segments: list[torch.Tensor] | None = None,
) -> Any:
    """Returns the value of a serialized block; its large buffers are views of `source`.

    Args:
        source: The bytes that `SerializedBlock.write` wrote; writable.
        extents: `SerializedBlock.extents`.
        tensors: `SerializedBlock.tensors`.
        device_segments: The segments on GPUs, as one-dimensional uint8 tensors.
    """
    offset, size = extents[-1]
    stream = source[offset : offset + size]
    buffers = [source[offset : offset + size] for offset, size in extents[:-1]]
    if tensors is None:
        return pickle.loads(stream, buffers=buffers)
    return _AliasingUnpickler(stream, buffers, TensorRebuilder(source, tensors, device_segments or [])).load()


def dumps(value: Any) -> bytes:
    """Returns a value as one byte string, for `pickle.loads`.

    Raises:
        Exception: Whatever pickle raises for something that cannot be pickled.
    """
    pieces = BufferList()
    _BlockPickler(pieces, None, None).dump(value)
    return b"".join(pieces.pieces)


class BufferList:
    """A file that keeps what is written without joining it; large bytes are not copied."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def write(self, piece: Any) -> int:
        self.pieces.append(piece)
        return len(piece)


class _BlockPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles tensors and media handles as buffers, and classes of `__main__` so that the receiver finds its own."""

    def __init__(
        self,
        file: BufferList,
        keep_in_stream: Callable[[pickle.PickleBuffer], bool] | None,
        table: TensorTable | None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep_in_stream)
        self._reducers = _REDUCERS
        torch = sys.modules.get("torch")  # where torch was never imported there are no tensors: do not import it
        if torch is not None and hasattr(torch, "Tensor"):
            _REDUCERS.setdefault(torch.Tensor, _reduce_tensor)
            if table is not None:
                self._reducers = {**_REDUCERS, torch.Tensor: functools.partial(_reduce_to_number, table)}

    def reducer_override(self, obj: Any) -> Any:
        reduce = self._reducers.get(type(obj))
        if reduce is None and isinstance(obj, MediaHandle):  # a decoder's own kind of handle
            reduce = _REDUCERS[type(obj)] = self._reducers[type(obj)] = _handle_reducer(type(obj))
        if reduce is not None:
            return reduce(obj)
        if isinstance(obj, type):
            return NotImplemented if has_importable_name(obj) else reduce_class(obj)
        if type(obj) is FunctionType:
            return super().reducer_override(obj)
        return NotImplemented


def _handle_reducer(kind: type[MediaHandle]) -> Callable[[MediaHandle], Reduced]:
    """Returns a reducer for one kind of media handle: the constructor's arguments, with the data as a buffer."""
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


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    import torch

    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return NotImplemented
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else memoryview(b"")
    return _rebuild_tensor, (pickle.PickleBuffer(data), plain.dtype, tuple(plain.shape), tensor.requires_grad)


def _rebuild_tensor(data: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
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


def _reduce_to_number(table: TensorTable, tensor: torch.Tensor) -> Any:
    """Reduces a tensor to its number in a table; what the user set on it as attributes travels too."""
    number = table.add(tensor)
    if number is None:
        return NotImplemented
    if tensor.__dict__:
        return _tensor_with_number, (number,), dict(tensor.__dict__), None, None, _set_attributes
    return _tensor_with_number, (number,)


def _tensor_with_number(number: int) -> torch.Tensor:
    """Names a tensor in the pickle stream; `_AliasingUnpickler` calls its rebuilder instead."""
    raise pickle.UnpicklingError("The pickle stream of a batch can only be read with the memory next to it.")


def _set_attributes(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    tensor.__dict__.update(attributes)


class _AliasingUnpickler(pickle.Unpickler):
    def __init__(self, stream: memoryview, buffers: list[memoryview], rebuilder: TensorRebuilder) -> None:
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._rebuilder = rebuilder

    def find_class(self, module: str, name: str) -> Any:
        if name == _tensor_with_number.__name__ and module == __name__:
            return self._rebuilder.tensor
        return super().find_class(module, name)
