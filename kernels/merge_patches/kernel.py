"""`merge_patches` as one Triton kernel and one launch: each byte is read once, each value written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..normalization import as_integers

_MOST_ELEMENTS = 1024
"""Values of a patch per program."""


@triton.jit  # type: ignore[untyped-decorator]
def _merge_patches(  # type: ignore[no-untyped-def]
    frames,  # uint8[n, FRAMES, C, H, W], of the strides below
    values,  # integers of the result's size[C, 256]: the value of each byte; not read if TO_BYTES
    result,  # integers[n * times * patches, CHANNELS * TIMES * height * width], contiguous
    along_image,
    along_frame,
    along_channel,
    along_y,
    along_x,
    count,  # frames of an image or clip
    times,
    patches,  # of a frame
    columns,  # patches along x
    blocks,  # programs per patch
    height,  # of a patch. Not a constant: each size of a whole image would be compiled again
    width,
    CHANNELS: tl.constexpr,  # noqa: N803 - constants of the compiler
    TIMES: tl.constexpr,  # noqa: N803
    MERGE: tl.constexpr,  # noqa: N803
    CHANNELS_LAST: tl.constexpr,  # noqa: N803
    TO_BYTES: tl.constexpr,  # noqa: N803
    ELEMENTS: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    token = program // blocks  # of all images
    number = token % patches  # in its frame, in the order of merging
    time = token // patches % times
    image = token // patches // times
    inside, block = number % (MERGE * MERGE), number // (MERGE * MERGE)
    per_row = columns // MERGE
    row = block // per_row * MERGE + inside // MERGE
    column = block % per_row * MERGE + inside % MERGE
    element = program % blocks * ELEMENTS + tl.arange(0, ELEMENTS)  # int32[ELEMENTS], in the patch
    pixels = height * width
    length = CHANNELS * TIMES * pixels
    mask = element < length
    if CHANNELS_LAST:
        channel, rest = element % CHANNELS, element // CHANNELS
    else:
        channel, rest = element // (TIMES * pixels), element % (TIMES * pixels)
    frame = tl.minimum(time * TIMES + rest // pixels, count - 1)  # after the end the last one is repeated
    y, x = row * height + rest // width % height, column * width + rest % width
    # 64 bits: a batch of frames may exceed 2 GiB.
    offsets = frame.to(tl.int64) * along_frame + channel.to(tl.int64) * along_channel
    offsets += y.to(tl.int64) * along_y + x.to(tl.int64) * along_x
    value = tl.load(frames + image.to(tl.int64) * along_image + offsets, mask=mask, other=0)
    if not TO_BYTES:
        value = tl.load(values + channel * 256 + value.to(tl.int32), mask=mask, other=0)
    tl.store(result + token.to(tl.int64) * length + element, value, mask=mask)


def merge_patches_triton(
    frames: torch.Tensor,
    patch: tuple[int, int],
    merge_size: int,
    frames_per_patch: int,
    values: torch.Tensor | None,
    channels_last: bool,
    result: torch.Tensor,
) -> None:
    """Writes what `merge_patches_reference` returns into `result`; does not synchronise the stream.

    Args:
        frames: uint8[n, frames, C, H, W] of any strides.
        patch: (height, width) of a patch.
        merge_size: Patches per side of a block.
        frames_per_patch: Frames of a patch.
        values: dtype[C, 256], contiguous; None for bytes.
        channels_last: Whether the fastest axis of a patch is the channel.
        result: dtype[n, times, patches, ...] in any shape, contiguous.
    """
    if not result.numel():
        return
    images, count, channels, _, width = frames.shape
    times, patches = -(-count // frames_per_patch), frames.shape[3] // patch[0] * (width // patch[1])
    length = channels * frames_per_patch * patch[0] * patch[1]
    elements = min(_MOST_ELEMENTS, triton.next_power_of_2(length))
    blocks = triton.cdiv(length, elements)
    integers = as_integers(result)
    _merge_patches[(images * times * patches * blocks,)](
        frames,
        integers if values is None else as_integers(values),
        integers,
        *frames.stride(),
        count,
        times,
        patches,
        width // patch[1],
        blocks,
        *patch,
        CHANNELS=channels,
        TIMES=frames_per_patch,
        MERGE=merge_size,
        CHANNELS_LAST=channels_last,
        TO_BYTES=values is None,
        ELEMENTS=elements,
        enable_fp_fusion=False,
    )
