"""Hands the frames of a video pipeline to torch, as the clips that were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.dali.video.graph import find_correction
from energon_dali.kernels.color_matrix import convert_colors

if TYPE_CHECKING:
    import torch

    from energon_dali.decode.clips import ClipsHandle


def take_frames(outputs: Any, handles: Sequence[ClipsHandle], stream: Any = None) -> list[torch.Tensor | None]:
    """Returns the clips of each video of a TensorList, in the dtype and layout of the handles' spec.

    Clips of one size are consecutive views of one memory, so that stacking them again needs no copy, unless frames come
    twice or not in the order of time; nothing is ever overwritten.

    Args:
        outputs: TensorListCPU with the final values, or TensorListGPU of uint8 [frames, H, W, 3] in DALI's colours.
        handles: The videos, of one spec.
        stream: torch.cuda.Stream on which the values are to be used, where the list is on a GPU. Nothing waits.

    Returns:
        Tensors [clips, frames, 3, H, W], or with the channels last, on the list's device; None where DALI gave another
        number of frames than was asked for.
    """
    import torch

    if type(outputs).__name__ != "TensorListGPU":
        videos = [_arrange(video, handle) for video, handle in zip(_rows(outputs), handles, strict=True)]
        if handles[0].spec.dtype == "bfloat16":  # DALI has none: its pipeline gives float32
            videos = [None if video is None else video.to(torch.bfloat16) for video in videos]
    else:
        with torch.cuda.stream(stream):
            videos = _finish_on_gpu(outputs, handles)
    return [
        None if video is None else video.view(*handle.frame_indices.shape, *video.shape[1:])
        for video, handle in zip(videos, handles, strict=True)
    ]


def _finish_on_gpu(outputs: Any, handles: Sequence[ClipsHandle]) -> list[torch.Tensor | None]:
    from torch.utils.dlpack import from_dlpack

    spec = handles[0].spec
    corrections = [find_correction(handle) for handle in handles]
    if outputs.is_dense_tensor() and all(map(_is_in_order, handles)):
        whole = from_dlpack(outputs.as_tensor())
        if all(handle.frame_indices.size == whole.shape[1] for handle in handles):
            return list(convert_colors(whole, corrections, dtype=spec.dtype, layout=spec.layout).unbind(0))
    videos = [_arrange(row, handle) for row, handle in zip(_rows(outputs), handles, strict=True)]
    return [
        None if video is None else convert_colors(video[None], [each], dtype=spec.dtype, layout=spec.layout)[0]
        for video, each in zip(videos, corrections, strict=True)
    ]


def _rows(outputs: Any) -> list[torch.Tensor]:
    import torch
    from torch.utils.dlpack import from_dlpack

    if outputs.is_dense_tensor():
        return list(from_dlpack(outputs.as_tensor()).unbind(0))
    if type(outputs).__name__ == "TensorListGPU":
        return [from_dlpack(video) for video in outputs]
    return [torch.from_numpy(np.asarray(video)) for video in outputs]


def _is_in_order(handle: ClipsHandle) -> bool:
    return bool((np.diff(handle.frame_indices.ravel()) > 0).all())


def _arrange(frames: torch.Tensor, handle: ClipsHandle) -> torch.Tensor | None:
    """Returns the frames as often and in the order as the clips have them; None if they are not as many as wanted."""
    import torch

    wanted, places = np.unique(handle.frame_indices, return_inverse=True)
    if len(frames) != wanted.size:
        return None
    if _is_in_order(handle):
        return frames
    return frames.index_select(0, torch.from_numpy(places.ravel()).to(frames.device))
