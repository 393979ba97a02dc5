"""How a finished batch crosses to the trainer: any picklable object, its tensors and arrays beside it in shared memory.

A batch is one run of bytes: the segments of its tensors, the buffers of its arrays, the small tensors together, and
its pickle stream. The sender copies each byte once, into shared memory. At the trainer large tensors and arrays are
views of that memory; small ones share one copy, so that a label that is kept does not keep the pixels beside it. Plain
`bytes` are copied there once more: no view is `bytes`.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from energon_dali.loader.decode_process.tensor_table import Segment, TensorPlace, TensorTable
from energon_dali.loader.workers.transport import ALIGNMENT, SMALL_BUFFER_BYTES, BlockPickler, PieceList

if TYPE_CHECKING:
    import torch

Extent = tuple[int, int]
"""(offset, size) in bytes."""


@dataclass(slots=True, eq=False)
class Contents:
    """What lies where in the bytes of a batch; travels with it."""

    places: list[TensorPlace]
    """The tensors, by number."""
    segments: list[Extent | int]
    """By number: the extent of a segment, or the number of a piece of GPU memory."""
    small: Extent
    """The segments below SMALL_BUFFER_BYTES, side by side."""
    buffers: list[Extent]
    """The buffers of arrays, in the order of the pickle stream."""
    stream: Extent
    """The pickle stream."""


@dataclass(slots=True, eq=False)
class PackedBatch:
    """A pickled batch, not yet copied."""

    contents: Contents
    size: int
    """Bytes that it takes."""
    device_segments: list[Segment]
    """What lies on GPUs, by the number that `Contents.segments` has for it."""
    _pieces: list[Any] = field(default_factory=list)
    _buffers: list[memoryview] = field(default_factory=list)
    _segments: list[tuple[int, Segment]] = field(default_factory=list)

    def write(self, target: memoryview) -> None:
        """Copies everything to its place in `target`, `size` writable bytes."""
        root = (ctypes.c_ubyte * len(target)).from_buffer(target)
        begin = ctypes.addressof(root)
        for offset, segment in self._segments:
            ctypes.memmove(begin + offset, segment.address, segment.size)
        for buffer, (offset, size) in zip(self._buffers, self.contents.buffers, strict=True):
            target[offset : offset + size] = buffer
        offset = self.contents.stream[0]
        for piece in self._pieces:
            target[offset : offset + len(piece)] = piece
            offset += len(piece)


def pack_batch(batch: Any) -> PackedBatch:
    """Returns a batch as it can travel.

    Raises:
        Exception: Whatever pickle raises for what cannot be pickled.
    """
    pieces = PieceList()
    buffers: list[memoryview] = []
    table = TensorTable()

    def beside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALL_BUFFER_BYTES:
            return True
        buffers.append(raw)
        return False

    _BatchPickler(pieces, table, beside).dump(batch)
    places, segments = table.lay_out()
    end = 0

    def room(size: int, alignment: int = ALIGNMENT) -> int:
        nonlocal end
        begin = -(-end // alignment) * alignment
        end = begin + size
        return begin

    extents: list[Extent | int] = [0] * len(segments)
    copied: list[tuple[int, Segment]] = []
    device_segments: list[Segment] = []
    small_ones = []
    for number, segment in enumerate(segments):
        if segment.device >= 0:
            extents[number] = len(device_segments)
            device_segments.append(segment)
        elif segment.size < SMALL_BUFFER_BYTES:
            small_ones.append(number)
        else:
            copied.append((room(segment.size), segment))
            extents[number] = (copied[-1][0], segment.size)
    array_extents = [(room(buffer.nbytes), buffer.nbytes) for buffer in buffers]
    small = room(0)
    for number in small_ones:
        copied.append((room(segments[number].size, 16), segments[number]))
        extents[number] = (copied[-1][0], segments[number].size)
    small_extent = (small, end - small)
    stream = sum(map(len, pieces.pieces))
    contents = Contents(places, extents, small_extent, array_extents, (room(stream), stream))
    return PackedBatch(contents, end, device_segments, pieces.pieces, buffers, copied)


def unpack_batch(source: memoryview, contents: Contents, device_segments: list[torch.Tensor]) -> Any:
    """Returns a batch whose large tensors and arrays are views of `source`.

    Args:
        source: The bytes that `PackedBatch.write` wrote, writable.
        contents: What lies where in them.
        device_segments: What lies on GPUs, as uint8 tensors of one dimension.
    """
    first, size = contents.small
    rebuild = _Rebuilder(source, memoryview(bytearray(source[first : first + size])), contents, device_segments)
    buffers = [source[offset : offset + size] for offset, size in contents.buffers]
    first, size = contents.stream
    return _BatchUnpickler(source[first : first + size], buffers, rebuild.tensor).load()


class _Rebuilder:
    """Makes the tensors of a batch again, over their segments."""

    def __init__(
        self, source: memoryview, small: memoryview, contents: Contents, device_segments: list[torch.Tensor]
    ) -> None:
        self._source = source
        self._small = small
        self._contents = contents
        self._device_segments = device_segments
        self._storages: dict[int, Any] = {}

    def tensor(self, number: int) -> torch.Tensor:
        import torch

        place = self._contents.places[number]
        if place.segment < 0:
            device = "cpu" if place.device < 0 else torch.device("cuda", place.device)
            tensor = torch.empty_strided(place.size, place.stride, dtype=place.dtype, device=device)
        else:
            storage = self._storages.get(place.segment)
            if storage is None:
                storage = self._storages[place.segment] = self._segment(place.segment).untyped_storage()
            tensor = torch.empty(0, dtype=place.dtype, device=storage.device)
            tensor.set_(storage, place.offset, place.size, place.stride)
        return tensor.requires_grad_() if place.requires_grad else tensor

    def _segment(self, number: int) -> torch.Tensor:
        import torch

        extent = self._contents.segments[number]
        if isinstance(extent, int):
            return self._device_segments[extent]
        offset, size = extent
        small_first, small_size = self._contents.small
        if small_first <= offset < small_first + small_size:
            return torch.frombuffer(self._small, dtype=torch.uint8, count=size, offset=offset - small_first)
        return torch.frombuffer(self._source, dtype=torch.uint8, count=size, offset=offset)


def take_tensor(number: int) -> torch.Tensor:
    """Stands for a tensor in the pickle stream of a batch; the unpickler puts its own function in its place.

    Args:
        number: Of the tensor in the batch.

    Raises:
        pickle.UnpicklingError: Always: the stream was read by another unpickler.
    """
    raise pickle.UnpicklingError("The pickle stream of a batch can only be read with the memory beside it.")


def set_attributes(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    """Gives a tensor what a hook set on it as attributes."""
    tensor.__dict__.update(attributes)


class _BatchPickler(BlockPickler):
    """Pickles tensors as their numbers in a table; everything else as blocks of workers do."""

    def __init__(self, file: PieceList, table: TensorTable, beside: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, protocol=5, buffer_callback=beside)
        self._table = table
        torch = sys.modules.get("torch")
        self._kind = getattr(torch, "Tensor", None)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is self._kind:
            number = self._table.add(obj)
            if number is None:
                return NotImplemented
            if obj.__dict__:
                return take_tensor, (number,), dict(obj.__dict__), None, None, set_attributes
            return take_tensor, (number,)
        return super().reducer_override(obj)


class _BatchUnpickler(pickle.Unpickler):
    def __init__(self, stream: memoryview, buffers: list[memoryview], take: Callable[[int], torch.Tensor]) -> None:
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._take = take

    def find_class(self, module: str, name: str) -> Any:
        if name == take_tensor.__name__ and module == __name__:
            return self._take
        return super().find_class(module, name)
