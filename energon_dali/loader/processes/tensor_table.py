"""Which memory the tensors of a batch span, so that it is copied once and each tensor can be rebuilt over it.

Tensors that share memory (two views of one storage, an expanded tensor, a permuted one) share it again in the other
process, with their strides: the bytes that they span are copied, not their elements one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

MAX_SPAN = 2
"""A tensor that spans more than this many times its own bytes is copied element by element, and contiguous then."""

Extent = tuple[int, int]
"""(offset, size) in bytes."""


class TensorView(NamedTuple):
    """A tensor of a batch, without its memory."""

    segment: int
    """Number of the segment that holds its elements; -1 if it has none."""
    offset: int
    """Of its first element in the segment, in elements."""
    dtype: torch.dtype
    """Type of its elements."""
    size: tuple[int, ...]
    """Its shape."""
    stride: tuple[int, ...]
    """Its strides, in elements."""
    requires_grad: bool
    """Whether it requires gradients."""
    device: int
    """Index of its GPU, -1 for the CPU."""


class TensorLayout(NamedTuple):
    """Where the tensors of a serialized batch are."""

    views: list[TensorView]
    """The tensors, by number."""
    segments: list[Extent | int]
    """By number: the extent of a segment in the batch's bytes, or its number among the segments on GPUs."""
    small: Extent
    """The extent of all small segments together."""


@dataclass(slots=True, eq=False)
class Segment:
    """A run of bytes that one or more tensors share."""

    address: int
    """Of its first byte, in this process."""
    size: int
    """In bytes."""
    device: int
    """Index of the GPU that holds it, -1 for the CPU."""
    tensors: list[torch.Tensor]
    """The tensors over it; they keep its memory alive."""


class TensorTable:
    """Collects the tensors of a batch while it is pickled, and finds the memory that they span."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._requires_grad: list[bool] = []

    def add(self, tensor: torch.Tensor) -> int | None:
        """Returns the number of a tensor; None for one that must be pickled whole (sparse, quantized, nested)."""
        import torch

        known = tensor.device.type in ("cpu", "cuda") and tensor.layout is torch.strided
        if not known or tensor.is_quantized or tensor.is_nested:
            return None
        self._tensors.append(tensor.detach().resolve_conj().resolve_neg())
        self._requires_grad.append(tensor.requires_grad)
        return len(self._tensors) - 1

    def find_segments(self) -> tuple[list[TensorView], list[Segment]]:
        """Returns the view of each tensor, by number, and the segments they refer to. Sparse views are copied."""
        tensors = self._tensors
        segments: list[Segment] = []
        views: dict[int, TensorView] = {}
        groups = _overlapping(tensors)
        while groups:
            group = groups.pop()
            first = min(tensors[number].data_ptr() for number in group)
            size = max(_end(tensors[number]) for number in group) - first
            used = sum(tensors[number].numel() * tensors[number].element_size() for number in group)
            misaligned = any((tensors[number].data_ptr() - first) % tensors[number].element_size() for number in group)
            if size > MAX_SPAN * used or misaligned:
                for number in group:
                    tensors[number] = _contiguous_copy(tensors[number])
                groups += [[number] for number in group]
                continue
            for number in group:
                offset = (tensors[number].data_ptr() - first) // tensors[number].element_size()
                views[number] = self._view(number, len(segments), offset)
            device = views[group[0]].device
            segments.append(Segment(first, size, device, [tensors[number] for number in group]))
        return [views.get(number) or self._view(number, -1, 0) for number in range(len(tensors))], segments

    def _view(self, number: int, segment: int, offset: int) -> TensorView:
        tensor = self._tensors[number]
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        device = -1 if tensor.device.type == "cpu" else tensor.device.index
        return TensorView(segment, offset, tensor.dtype, size, stride, self._requires_grad[number], device)


def _overlapping(tensors: list[torch.Tensor]) -> list[list[int]]:
    """Returns the numbers of tensors, grouped by overlapping bytes; tensors without elements are left out."""
    spans = sorted(
        (tensor.device.type, tensor.device.index or 0, tensor.data_ptr(), _end(tensor), number)
        for number, tensor in enumerate(tensors)
        if tensor.numel()
    )
    groups: list[list[int]] = []
    last: tuple[Any, ...] = ()
    end = 0
    for kind, index, start, stop, number in spans:
        if last == (kind, index) and start < end:
            groups[-1].append(number)
        else:
            groups.append([number])
            end = 0
        last, end = (kind, index), max(end, stop)
    return groups


def _end(tensor: torch.Tensor) -> int:
    """Returns the address after the last byte of a tensor."""
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _contiguous_copy(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.clone(memory_format=torch.contiguous_format)


class TensorRebuilder:
    """Rebuilds the tensors of a batch over their segments.

    Args:
        source: The bytes of the batch, writable.
        layout: Where the tensors are in it.
        device_segments: The segments on GPUs, as one-dimensional uint8 tensors.
    """

    def __init__(self, source: memoryview, layout: TensorLayout, device_segments: list[torch.Tensor]) -> None:
        offset, size = layout.small
        self._source = source
        # One copy for all: a label that the user keeps must not keep the pixels next to it alive.
        self._small = memoryview(bytearray(source[offset : offset + size]))
        self._layout = layout
        self._device_segments = device_segments
        self._storages: dict[int, Any] = {}

    def tensor(self, number: int) -> torch.Tensor:
        """Returns the tensor with a number: a view of its segment."""
        import torch

        view = self._layout.views[number]
        if view.segment < 0:
            device = "cpu" if view.device < 0 else torch.device("cuda", view.device)
            tensor = torch.empty_strided(view.size, view.stride, dtype=view.dtype, device=device)
        else:
            storage = self._storages.get(view.segment)
            if storage is None:
                storage = self._storages[view.segment] = self._segment(view.segment).untyped_storage()
            tensor = torch.empty(0, dtype=view.dtype, device=storage.device)
            tensor.set_(storage, view.offset, view.size, view.stride)
        return tensor.requires_grad_() if view.requires_grad else tensor

    def _segment(self, number: int) -> torch.Tensor:
        import torch

        extent = self._layout.segments[number]
        if isinstance(extent, int):
            return self._device_segments[extent]
        offset, size = extent
        small_offset, small_size = self._layout.small
        if small_offset <= offset < small_offset + small_size:
            return torch.frombuffer(self._small, dtype=torch.uint8, count=size, offset=offset - small_offset)
        return torch.frombuffer(self._source, dtype=torch.uint8, count=size, offset=offset)
