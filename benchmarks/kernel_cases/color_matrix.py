"""`convert_colors`: clips from BT.601 to BT.709, with layout and type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.kernel_cases.case import KernelCase, Run, Size, total_bytes

SIZES: dict[Size, tuple[int, int, int, int]] = {"small": (2, 4, 90, 160), "large": (32, 16, 360, 640)}
"""Clips, frames, height, width."""


def cases(device: str, sizes: Sequence[Size]) -> Iterator[KernelCase]:
    """Yields the cases; each makes its data on demand."""
    for size in sizes:
        for dtype, layout in (("uint8", "FHWC"), ("uint8", "FCHW"), ("bfloat16", "FCHW")):
            yield _case(size, device, dtype, layout)


def _case(size: Size, device: str, dtype: str, layout: str) -> KernelCase:
    import torch
    from energon_dali.kernels.color_matrix import ColorMatrix, convert_colors, convert_colors_reference

    shape = SIZES[size]
    generator = torch.Generator(device).manual_seed(1)
    frames = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, device=device, generator=generator)
    matrix, kind, channels_first = ColorMatrix.between("bt601", "bt709"), getattr(torch, dtype), layout == "FCHW"
    matrices = [matrix] * shape[0]
    rows = torch.tensor([one.rows for one in matrices], dtype=torch.int32, device=device)
    weights = torch.tensor(matrix.weights, device=device).T.contiguous()  # float32[3, 3], exact
    offsets = torch.tensor(matrix.offsets, device=device) + 0.5

    def finished(levels: Any) -> list[Any]:
        """Returns levels float32[N, F, H, W, 3] as asked."""
        clipped = levels.floor_().clamp_(0, 255)
        if kind != torch.uint8:
            clipped = clipped.div_(255)
        return [(clipped.to(kind).movedim(-1, 2) if channels_first else clipped.to(kind)).contiguous()]

    def product() -> list[Any]:
        return finished(frames.to(torch.float32).matmul(weights).add_(offsets))

    def addmm() -> list[Any]:
        levels = torch.addmm(offsets, frames.view(-1, 3).to(torch.float32), weights)
        return finished(levels.view(frames.shape))

    runs: dict[str, Run] = {"matmul": product, "addmm": addmm}
    if device == "cuda":
        compiled: Any = torch.compile(convert_colors_reference)
        runs["compiled"] = lambda: [compiled(frames, rows, kind, channels_first)]
    return KernelCase(
        operation="color_matrix",
        size=size,
        variant=f"uint8 FHWC to {dtype} {layout}",
        shapes=f"{shape[0]} clips of {shape[1]} frames, {shape[3]} x {shape[2]}",
        bytes_moved=total_bytes(frames) * (1 + kind.itemsize),
        ours=lambda: [convert_colors(frames, matrices, dtype=dtype, layout=layout)],
        reference=lambda: [convert_colors_reference(frames, rows, kind, channels_first)],
        pytorch=runs,
    )
