"""`patchify`: images of different sizes to bfloat16 tokens of 14 x 14 pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.kernel_cases.case import KernelCase, Size, total_bytes
from benchmarks.kernel_cases.ragged import CHANNELS, ragged_images

PATCH = 14
SIZES: dict[Size, tuple[int, tuple[int, int]]] = {"small": (8, (56, 112)), "large": (128, (448, 1344))}
"""Images, and the range of their sides."""


def cases(device: str, sizes: Sequence[Size]) -> Iterator[KernelCase]:
    """Yields the cases; each makes its data on demand."""
    for size in sizes:
        count, sides = SIZES[size]
        for dtype in ("uint8", "bfloat16"):
            yield _case(size, ragged_images(count, sides, device), dtype)


def _case(size: Size, images: list[Any], dtype: str) -> KernelCase:
    import torch
    from energon_dali.kernels.normalization import normalize_levels
    from energon_dali.kernels.patchify import Grid, Normalization, patchify, patchify_reference

    device, kind = images[0].device, getattr(torch, dtype)
    normalization = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if dtype != "uint8" else None
    coefficients = normalization and normalization.coefficients(CHANNELS).to(device)
    tokens = sum(Grid.of(image, PATCH, 1).tokens for image in images)
    length = CHANNELS * PATCH**2

    def ours() -> list[Any]:
        made = patchify(images, PATCH, dtype=dtype, normalization=normalization)
        return [made.tokens, made.positions]

    def reference() -> list[Any]:
        result = [
            torch.empty((tokens, length), dtype=kind, device=device),
            torch.empty((tokens, 3), dtype=torch.int32, device=device),
        ]
        patchify_reference([image[None] for image in images], PATCH, 1, coefficients, *result)
        return result

    def padded(image: Any) -> Any:
        """Returns dtype[rows * P, columns * P, C], normalised."""
        values = image if coefficients is None else normalize_levels(image, coefficients, kind)
        ends = [-image.shape[1] % PATCH, -image.shape[0] % PATCH]
        return torch.nn.functional.pad(values, (0, 0, 0, ends[0], 0, ends[1]))

    def positions() -> Any:
        rows = []
        for image in images:
            axes = [torch.arange(number, dtype=torch.int32, device=device) for number in Grid.of(image, PATCH, 1)]
            rows.append(torch.cartesian_prod(*axes))
        return torch.cat(rows)

    def views() -> list[Any]:
        parts = []
        for image in images:
            whole = padded(image)
            cut = whole.view(whole.shape[0] // PATCH, PATCH, whole.shape[1] // PATCH, PATCH, CHANNELS)
            parts.append(cut.permute(0, 2, 4, 1, 3).reshape(-1, length))
        return [torch.cat(parts), positions()]

    def unfolds() -> list[Any]:
        parts = []
        for image in images:
            whole = padded(image).permute(2, 0, 1)
            parts.append(whole.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).permute(1, 2, 0, 3, 4).flatten(2))
        return [torch.cat([part.flatten(0, 1) for part in parts]), positions()]

    return KernelCase(
        operation="patchify",
        size=size,
        variant=f"uint8 HWC to {dtype}{', normalised' if normalization else ''}",
        shapes=f"{len(images)} images, {tokens} patches of {PATCH} x {PATCH}",
        bytes_moved=total_bytes(*images) + tokens * (length * kind.itemsize + 12),
        ours=ours,
        reference=reference,
        pytorch={"views, cat": views, "unfold, cat": unfolds},
    )
