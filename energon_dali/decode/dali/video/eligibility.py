"""Which videos DALI decodes correctly and without danger to the process."""

from __future__ import annotations

from typing import Literal

from energon_dali.av.sparse_media import SparseMedia
from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.dali.video.coded_size import has_whole_units
from energon_dali.decode.dali.video.frame_headers import has_uniform_frames
from energon_dali.errors import DecodeError

_CONTAINERS = frozenset({"matroska", "webm", "mov", "mp4"})
"""Not AVI: DALI's demuxer ends the process (SIGSEGV) on broken files and miscounts the frames of good ones."""

_CPU_FORMATS: dict[str, tuple[str, ...]] = {
    "vp8": ("yuv420p",),
    "vp9": ("yuv420p", "yuv444p"),
    "mjpeg": ("yuvj420p", "yuvj422p", "yuvj444p"),
}
"""Pixel formats by codec on the CPU, where DALI does not bring other codecs."""

_GPU_PROFILES: dict[str, tuple[str, ...]] = {
    "h264": ("Constrained Baseline", "Main", "High"),
    "hevc": ("Main",),
    "vp9": ("Profile 0",),
    "mpeg4": ("Simple Profile", "Advanced Simple Profile"),
    "av1": ("Main",),
}
_GPU_FORMATS = ("yuv420p", "yuvj420p")
"""DALI's colour conversion on a GPU reads only NV12."""
_GPU_SIDES: dict[str, tuple[int, int]] = {
    "h264": (64, 4096),
    "hevc": (144, 8192),
    "vp9": (128, 8192),
    "mpeg4": (64, 2048),
    "av1": (128, 8192),
}
"""Smallest and largest side in pixels: NVDEC Video Decoder API Programming Guide, table of capabilities."""


def is_eligible_video(handle: ClipsHandle, kind: Literal["cpu", "gpu"], ordinal: int | None = None) -> bool:
    """Returns whether DALI decodes the clips of a video correctly and without danger to the process.

    If all other tests pass, this reads the frame headers and decodes the first frame, once per handle.

    Args:
        handle: The video; its `uniform_frames` keeps what was found about the frames.
        kind: Where DALI would decode it.
        ordinal: Ordinal of the GPU that is asked whether it decodes AV1; None in a process that must not ask it, where
            the answer for AV1 is no.
    """
    if not handle.frame_indices.size or not handle.packets_are_frames:
        return False
    if _CONTAINERS.isdisjoint(handle.format.split(",")):
        return False
    if handle.bit_depth != 8:
        return False
    limits = handle.limits
    if limits is not None and count_decoded_bytes(handle) > limits.max_bytes:
        return False  # PyAV resizes frame by frame, and says what is wrong if even that takes too much
    formats = _GPU_FORMATS if kind == "gpu" else _CPU_FORMATS.get(handle.codec, ())
    if handle.pixel_format not in formats or (kind == "gpu" and not _suits_gpu(handle, ordinal)):
        return False
    if handle.uniform_frames is None:
        assert not isinstance(handle.data, SparseMedia), "of a sparse file, packets_are_frames is False"
        shape = (handle.width, handle.height, handle.pixel_format)
        handle.uniform_frames = has_uniform_frames(handle.data, handle.codec, shape)
    if not handle.uniform_frames:
        return False
    try:
        return handle.find_colour().matrix != "rgb"
    except DecodeError:
        return False


def count_decoded_bytes(handle: ClipsHandle) -> int:
    """Returns the bytes that DALI needs for the wanted frames of a video as RGB, before it resizes them."""
    return 3 * handle.frame_indices.size * handle.width * handle.height


def _suits_gpu(handle: ClipsHandle, ordinal: int | None) -> bool:
    if handle.profile not in _GPU_PROFILES.get(handle.codec, ()):
        return False
    smallest, largest = _GPU_SIDES[handle.codec]
    if not smallest <= min(handle.width, handle.height) <= max(handle.width, handle.height) <= largest:
        return False
    if not has_whole_units(handle.codec, handle.width, handle.height):
        return False  # `has_uniform_frames` reads the parameter sets of the others, which may cut frames too
    return handle.codec != "av1" or (ordinal is not None and _decodes_av1(ordinal))


def _decodes_av1(ordinal: int) -> bool:
    """Returns whether the GPU has an AV1 decoder: not up to Turing, and not the A100, H100 and H200."""
    import torch

    capability = torch.cuda.get_device_capability(ordinal)
    return capability >= (8, 6) and capability != (9, 0)
