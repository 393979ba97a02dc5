"""`pad_stack`: bytes as batch_pad_stack takes them, and normalised batches for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.kernel_cases.case import KernelCase, Run, Size, total_bytes
from benchmarks.kernel_cases.ragged import CHANNELS, ragged_images

SIZES: dict[Size, tuple[int, tuple[int, int]]] = {"small": (16, (64, 96)), "large": (256, (384, 1024))}
"""Images, and the range of their sides."""


def cases(device: str, sizes: Sequence[Size]) -> Iterator[KernelCase]:
    """Yields the cases; each makes its data on demand."""
    for size in sizes:
        count, sides = SIZES[size]
        for planes in (False, True):
            yield _bytes_case(size, ragged_images(count, sides, device, planes=planes), planes)
        yield _floats_case(size, ragged_images(count, sides, device))


def _largest(images: list[Any], planes: bool) -> tuple[int, int]:
    first = 1 if planes else 0
    return max(image.shape[first] for image in images), max(image.shape[first + 1] for image in images)


def _bytes_case(size: Size, images: list[Any], planes: bool) -> KernelCase:
    import torch
    from energon_dali.kernels.pad_stack import pad_stack, pad_stack_reference

    layout = "CHW" if planes else "HWC"
    height, width = _largest(images, planes)
    shape = (len(images), CHANNELS, height, width) if planes else (len(images), height, width, CHANNELS)

    def reference() -> list[Any]:
        batch = torch.empty(shape, dtype=torch.uint8, device=images[0].device)
        views = [image.movedim(0, -1) if planes else image for image in images]
        pad_stack_reference(views, [False] * len(views), None, batch.movedim(1, -1) if planes else batch)
        return [batch]

    def zeros_and_copies() -> list[Any]:
        batch = torch.zeros(shape, dtype=torch.uint8, device=images[0].device)
        for place, image in zip(batch, images, strict=True):
            place[tuple(slice(length) for length in image.shape)] = image
        return [batch]

    def pad_and_stack() -> list[Any]:
        padded = []
        for image in images:
            ends = [target - length for length, target in zip(image.shape, shape[1:], strict=True)]
            padded.append(torch.nn.functional.pad(image, [end for last in reversed(ends) for end in (0, last)]))
        return [torch.stack(padded)]

    return KernelCase(
        operation="pad_stack",
        size=size,
        variant=f"uint8 {layout} to uint8 {layout}",
        shapes=f"{len(images)} images up to {height} x {width}",
        bytes_moved=total_bytes(*images) + len(images) * CHANNELS * height * width,
        ours=lambda: [pad_stack(images, layout=layout, input_layout=layout)],
        reference=reference,
        pytorch={"zeros, copies": zeros_and_copies, "pad, stack": pad_and_stack},
    )


def _floats_case(size: Size, images: list[Any]) -> KernelCase:
    import torch
    from energon_dali.kernels.normalization import normalize_levels
    from energon_dali.kernels.pad_stack import Normalization, pad_stack, pad_stack_reference

    device = images[0].device
    normalization = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    flips = [index % 2 == 1 for index in range(len(images))]
    height, width = _largest(images, False)
    coefficients = normalization.coefficients(CHANNELS).to(device)
    shape = (len(images), CHANNELS, height, width)

    def reference() -> list[Any]:
        batch = torch.empty(shape, dtype=torch.bfloat16, device=device)
        pad_stack_reference(images, flips, coefficients, batch.movedim(1, -1))
        return [batch]

    def one_by_one() -> list[Any]:
        batch = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        for place, image, flip in zip(batch, images, flips, strict=True):
            levels = normalize_levels(image.flip(1) if flip else image, coefficients, torch.bfloat16)
            place[:, : image.shape[0], : image.shape[1]] = levels.permute(2, 0, 1)
        return [batch]

    def all_at_once() -> list[Any]:
        levels = torch.zeros((len(images), height, width, CHANNELS), dtype=torch.uint8, device=device)
        inside = torch.zeros((len(images), 1, height, width), dtype=torch.bool, device=device)
        for place, mask, image, flip in zip(levels, inside, images, flips, strict=True):
            place[: image.shape[0], : image.shape[1]] = image.flip(1) if flip else image
            mask[0, : image.shape[0], : image.shape[1]] = True
        shift, divisor = coefficients.view(2, 1, CHANNELS, 1, 1)
        normalised = levels.permute(0, 3, 1, 2).to(torch.float32).sub_(shift).div_(divisor).to(torch.bfloat16)
        return [normalised.contiguous().masked_fill_(~inside, 0)]

    runs: dict[str, Run] = {"each normalised and copied": one_by_one, "copied, then all normalised": all_at_once}
    return KernelCase(
        operation="pad_stack",
        size=size,
        variant="uint8 HWC to bfloat16 CHW, normalised, half of them mirrored",
        shapes=f"{len(images)} images up to {height} x {width}",
        bytes_moved=total_bytes(*images) + 2 * len(images) * CHANNELS * height * width,
        ours=lambda: [pad_stack(images, dtype="bfloat16", normalization=normalization, flips=flips)],
        reference=reference,
        pytorch=runs,
    )
