"""Where the tensors of a batch lie in memory: what has to be copied, once, so that each tensor can be made again.

Tensors that look at the same memory (two views of one storage, an expanded tensor, a permuted one) do so again on the
other side, with their strides: what is copied are the bytes that they span, not their elements one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SPARSE = 2
"""Tensors that span more than this many times their own bytes are copied element by element, and contiguous then."""


@dataclass(slots=True, eq=False)
class TensorPlace:
    """A tensor of a batch, apart from its memory."""

    segment: int
    """Number of the segment that it lies in; -1 where it has no elements."""
    offset: int
    """Of its first element in the segment, in elements."""
    dtype: torch.dtype
    """Type of its elements."""
    size: tuple[int, ...]
    """Its shape."""
    stride: tuple[int, ...]
    """Its strides in elements."""
    requires_grad: bool
    """Whether gradients are wanted for it."""
    device: int
    """Number of the GPU that it is on, -1 for the CPU; its segment says so too, where it has elements."""


@dataclass(slots=True, eq=False)
class Segment:
    """Bytes that one or several tensors look at."""

    address: int
    """Where they begin, in this process."""
    size: int
    """How many there are."""
    device: int
    """Number of the GPU that they lie on, -1 for the CPU."""
    tensors: list[torch.Tensor]
    """The tensors that look at them."""


class TensorTable:
    """Collects the tensors of a batch while it is pickled, and finds out which memory they span."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._requires_grad: list[bool] = []

    def add(self, tensor: torch.Tensor) -> int | None:
        """Returns the number of a tensor; None for one that has to be pickled whole (sparse, quantized, nested)."""
        import torch

        known = tensor.device.type in ("cpu", "cuda") and tensor.layout is torch.strided
        if not known or tensor.is_quantized or tensor.is_nested:
            return None
        self._tensors.append(tensor.detach().resolve_conj().resolve_neg())
        self._requires_grad.append(tensor.requires_grad)
        return len(self._tensors) - 1

    def lay_out(self) -> tuple[list[TensorPlace], list[Segment]]:
        """Returns where each tensor lies, by number, and the segments that hold them; tensors may be copied for it."""
        tensors = self._tensors
        segments: list[Segment] = []
        places: dict[int, TensorPlace] = {}
        groups = _overlapping(tensors)
        while groups:
            group = groups.pop()
            first = min(tensors[number].data_ptr() for number in group)
            size = max(_end(tensors[number]) for number in group) - first
            used = sum(tensors[number].numel() * tensors[number].element_size() for number in group)
            odd = any((tensors[number].data_ptr() - first) % tensors[number].element_size() for number in group)
            if size > SPARSE * used or odd:
                for number in group:
                    tensors[number] = _copied(tensors[number])
                groups += [[number] for number in group]
                continue
            for number in group:
                offset = (tensors[number].data_ptr() - first) // tensors[number].element_size()
                places[number] = self._place(number, len(segments), offset)
            device = places[group[0]].device
            segments.append(Segment(first, size, device, [tensors[n] for n in group]))
        return [places.get(number) or self._place(number, -1, 0) for number in range(len(tensors))], segments

    def _place(self, number: int, segment: int, offset: int) -> TensorPlace:
        tensor = self._tensors[number]
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        device = -1 if tensor.device.type == "cpu" else tensor.device.index
        return TensorPlace(segment, offset, tensor.dtype, size, stride, self._requires_grad[number], device)


def _overlapping(tensors: list[torch.Tensor]) -> list[list[int]]:
    """Returns the numbers of tensors in groups that span common bytes; without those that have no elements."""
    spans = sorted(
        (tensor.device.type, tensor.device.index or 0, tensor.data_ptr(), _end(tensor), number)
        for number, tensor in enumerate(tensors)
        if tensor.numel()
    )
    groups: list[list[int]] = []
    last: tuple[Any, ...] = ()
    end = 0
    for kind, index, begin, stop, number in spans:
        if last == (kind, index) and begin < end:
            groups[-1].append(number)
        else:
            groups.append([number])
            end = 0
        last, end = (kind, index), max(end, stop)
    return groups


def _end(tensor: torch.Tensor) -> int:
    """Returns the address behind the last byte that a tensor looks at."""
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.clone(memory_format=torch.contiguous_format)
