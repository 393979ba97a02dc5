"""Which videos hardware decoders, and DALI on the CPU, decode correctly and without danger to the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from energon_dali.av.sparse_media import SparseMedia
from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.dali.video.coded_size import has_whole_units
from energon_dali.decode.dali.video.frame_headers import has_uniform_frames
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from energon_dali.av import MediaFile
    from energon_dali.decode.video_backends.nvdec import Nvdec

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


def is_eligible_video(
    handle: ClipsHandle, kind: Literal["cpu", "gpu"], nvdec: Nvdec | None = None, file: MediaFile | None = None
) -> bool:
    """Returns whether DALI decodes the clips of a video correctly and without danger to the process.

    If all other tests pass, this reads the frame headers and decodes the first frame, once per handle.

    Args:
        handle: The video; its `uniform_frames` keeps what was found about the frames.
        kind: Where DALI would decode it.
        nvdec: What the GPU said that it decodes. None where nobody asked it: then the answer for AV1, which many GPUs
            lack, is negative.
        file: The same file, if it is already open; it stays open.
    """
    if not _has_plain_frames(handle):
        return False
    if kind == "cpu":
        if handle.pixel_format not in _CPU_FORMATS.get(handle.codec, ()):
            return False
    # `has_uniform_frames` reads the parameter sets of those with whole units, which may cut frames too.
    elif not _suits_nvdec(handle, nvdec) or not has_whole_units(handle.codec, handle.width, handle.height):
        return False
    if handle.uniform_frames is None:
        handle.uniform_frames = _reads_uniform(handle, whole=True)
    return handle.uniform_frames and _has_yuv_frames(handle, file)


def suits_hardware(handle: ClipsHandle, nvdec: Nvdec | None = None, file: MediaFile | None = None) -> bool:
    """Returns whether a hardware decoder that shows parts of frames decodes the clips of a video correctly.

    Such are those of torchcodec and PyNvVideoCodec: 1080 lines of H.264 are coded as 1088. Frames must still have one
    size, which is even, because colours are halved in both directions.

    Args:
        handle: The video; its `constant_frames` keeps what was found about the frames.
        nvdec: What the GPU said that it decodes, as for `is_eligible_video`.
        file: The same file, if it is already open; it stays open.
    """
    if not _has_plain_frames(handle) or not _suits_nvdec(handle, nvdec):
        return False
    if handle.width % 2 or handle.height % 2:
        return False
    if handle.constant_frames is None:
        handle.constant_frames = handle.uniform_frames or _reads_uniform(handle, whole=False)
    return handle.constant_frames and _has_yuv_frames(handle, file)


def count_decoded_bytes(handle: ClipsHandle) -> int:
    """Returns the bytes that the wanted frames of a video take as RGB, before they are resized."""
    return 3 * handle.frame_indices.size * handle.width * handle.height


def _has_plain_frames(handle: ClipsHandle) -> bool:
    """Returns whether packets are frames of 8 bits in a known container, and not too many to hold at once."""
    if not handle.frame_indices.size or not handle.packets_are_frames or handle.bit_depth != 8:
        return False
    if _CONTAINERS.isdisjoint(handle.format.split(",")):
        return False
    # PyAV resizes frame by frame, and says what is wrong if even that takes too much
    return handle.limits is None or count_decoded_bytes(handle) <= handle.limits.max_bytes


def _suits_nvdec(handle: ClipsHandle, nvdec: Nvdec | None) -> bool:
    if handle.pixel_format not in _GPU_FORMATS or handle.profile not in _GPU_PROFILES.get(handle.codec, ()):
        return False
    smallest, largest = _GPU_SIDES[handle.codec]
    if not smallest <= min(handle.width, handle.height) <= max(handle.width, handle.height) <= largest:
        return False
    return handle.codec != "av1" if nvdec is None else nvdec.decodes(handle.codec, handle.width, handle.height)


def _reads_uniform(handle: ClipsHandle, *, whole: bool) -> bool:
    assert not isinstance(handle.data, SparseMedia), "of a sparse file, packets_are_frames is False"
    shape = (handle.width, handle.height, handle.pixel_format)
    return has_uniform_frames(handle.data, handle.codec, shape, whole=whole)


def _has_yuv_frames(handle: ClipsHandle, file: MediaFile | None) -> bool:
    try:
        return handle.find_colour(file).matrix != "rgb"
    except DecodeError:
        return False
