"""The registered benchmarks of the kernels: one module per operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.kernel_cases import color_matrix, color_quantize, pack_tokens, pad_stack, patchify
from benchmarks.kernel_cases.case import KernelCase, Size

CASES: dict[str, Callable[[str, Sequence[Size]], Iterator[KernelCase]]] = {
    "color_matrix": color_matrix.cases,
    "color_quantize": color_quantize.cases,
    "pack_tokens": pack_tokens.cases,
    "pad_stack": pad_stack.cases,
    "patchify": patchify.cases,
}
"""The cases of each operation on a torch device, by size."""
