"""The benchmark of a kernel, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Size = Literal["small", "large"]
Device = Literal["cpu", "gpu"]
Run = Callable[[], "Sequence[torch.Tensor]"]
"""Runs the whole operation and returns its tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One operation on one input."""

    operation: str
    """Folder under kernels/."""
    size: Size
    """"large" shows the bandwidth, "small" the cost of a call."""
    variant: str
    """Short description of the operation: types and layouts."""
    shapes: str
    """Short description of the input."""
    bytes_moved: int
    """Bytes that have to be read and written once, from the sizes of inputs and outputs."""
    ours: Run
    """The operation as users call it."""
    reference: Run
    """The specification, in plain PyTorch; what `ours` and the others must equal bit for bit."""
    pytorch: Mapping[str, Run]
    """The best known ways to do the same in plain PyTorch."""
    bound_by_arithmetic: bool = False
    """Whether the operation is compute bound, so that no kernel can reach the bandwidth of a copy."""


def total_bytes(*tensors: torch.Tensor) -> int:
    """Returns the size of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
