"""`color_quantize`: the 512 colours of ImageGPT, and 16, where less is to be computed for each byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.kernel_cases.case import KernelCase, Run, Size, total_bytes

SIZES: dict[Size, tuple[int, int, int]] = {"small": (16, 32, 32), "large": (64, 512, 512)}
"""Images, height, width."""
_CHUNK = 1 << 26
"""Distances at a time: 256 MiB."""


def cases(device: str, sizes: Sequence[Size]) -> Iterator[KernelCase]:
    """Yields the cases; each makes its data on demand."""
    for size in sizes:
        for colors in (16, 512):
            yield _case(size, device, colors)


def _case(size: Size, device: str, colors: int) -> KernelCase:
    import torch
    from energon_dali.kernels.color_quantize import Palette, color_quantize, color_quantize_reference

    shape = SIZES[size]
    generator = torch.Generator(device).manual_seed(1)
    images = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, device=device, generator=generator)
    levels = torch.randint(0, 256, (colors, 3), generator=torch.Generator().manual_seed(2))
    palette = Palette.from_levels(levels.numpy())
    coefficients = torch.from_numpy(palette.coefficients()).to(device)
    centres = levels.to(device, torch.float32)
    pixels = images.view(-1, 3)
    step = max(_CHUNK // colors, 1)

    def reference() -> list[Any]:
        result = torch.empty(len(pixels), dtype=torch.int32, device=device)
        color_quantize_reference(pixels, coefficients, result)
        return [result.view(shape)]

    def chunked(nearest: Any) -> list[Any]:
        starts = range(0, len(pixels), step)
        parts = [nearest(pixels[start : start + step].to(torch.float32)).to(torch.int32) for start in starts]
        return [torch.cat(parts).view(shape)]

    def product() -> list[Any]:
        # Whole numbers below 2**24: exact, as long as TF32 is off, which is the default.
        return chunked(lambda part: torch.addmm(coefficients[:, 3], part - 128, coefficients[:, :3].T).argmin(dim=1))

    def differences() -> list[Any]:
        return chunked(lambda part: (part[:, None] - centres).square_().sum(dim=2).argmin(dim=1))

    def distances_of_all() -> list[Any]:
        part = pixels.to(torch.float32) - 128
        terms = [part[:, channel, None] * coefficients[:, channel] for channel in range(3)]
        return [(coefficients[:, 3] + terms[0] + terms[1] + terms[2]).argmin(dim=1).to(torch.int32).view(shape)]

    runs: dict[str, Run] = {"addmm, argmin": product, "differences, argmin": differences}
    if device == "cuda":
        runs["compiled distances, argmin"] = torch.compile(distances_of_all)
    return KernelCase(
        operation="color_quantize",
        size=size,
        variant=f"uint8 to int32, {colors} colours",
        shapes=f"{shape[0]} images of {shape[1]} x {shape[2]}",
        bytes_moved=total_bytes(images) + 4 * len(pixels),
        ours=lambda: [color_quantize(images, palette)],
        reference=reference,
        pytorch=runs,
        bound_by_arithmetic=colors > 16,
    )
