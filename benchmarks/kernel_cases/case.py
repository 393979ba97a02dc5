"""What a benchmark of a kernel is, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Size = Literal["small", "large"]
Device = Literal["cpu", "gpu"]
Run = Callable[[], "Sequence[torch.Tensor]"]
"""Does the whole operation anew and returns its tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One operation on one input."""

    operation: str
    """Folder under kernels/."""
    size: Size
    """"large" shows the bandwidth, "small" what a call costs."""
    variant: str
    """What is computed, in a few words: types and layouts."""
    shapes: str
    """What it is computed on, in a few words."""
    bytes_moved: int
    """What has to be read and written once, from the sizes of inputs and outputs."""
    ours: Run
    """The operation as users call it."""
    reference: Run
    """The specification, in plain PyTorch; what `ours` and the others must equal bit for bit."""
    pytorch: Mapping[str, Run]
    """The best ways of plain PyTorch that we know to do the same."""
    bound_by_arithmetic: bool = False
    """Whether no kernel could reach the bandwidth of a copy, as there is too much to compute for each byte."""


def total_bytes(*tensors: torch.Tensor) -> int:
    """Returns the bytes of the elements of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
