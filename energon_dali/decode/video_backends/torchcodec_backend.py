"""torchcodec as a video backend: FFmpeg on the CPU, NVDEC on a GPU.

Read in its sources (0.13 and 0.17): frames without a colour matrix are converted with BT.601; on a GPU the matrix is
that of the packets alone, whatever the container says. Frames are rotated as the file says. Before 0.17 a cached
hardware decoder may cut frames as those of another file (pull request 1706).
"""

from __future__ import annotations

import functools
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.interface import Route
from energon_dali.decode.spec import BackendName
from energon_dali.decode.video_backends.base import Kind, VideoDevice
from energon_dali.decode.video_backends.frame_backend import FrameBackend
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch

    from energon_dali.av import MediaFile
    from energon_dali.decode.dali.runtime.device import Device
    from energon_dali.kernels.color_matrix import Standard

CUTS_RIGHT_FROM = (0, 17)
"""First release whose cached hardware decoders cut the frames of each file as that file says."""
_CACHED_DECODERS = 16
"""Hardware decoders that torchcodec keeps per GPU: as many as threads feed them at most."""
_MATRICES: dict[int, Standard] = {1: "bt709", 5: "bt601", 6: "bt601", 9: "bt2020", 10: "bt2020"}
"""AVColorSpace to the matrix with which torchcodec converts; BT.601 for all others."""


class TorchcodecBackend(FrameBackend):
    """torchcodec, in the workers on the CPU, and in threads of the rank on a GPU."""

    name: BackendName = "torchcodec"
    module = "torchcodec"
    extra = "torchcodec"
    kinds: frozenset[Kind] = frozenset(("cpu", "gpu"))
    routes: dict[Kind, Route] = {"cpu": "torchcodec-cpu", "gpu": "torchcodec-gpu"}  # noqa: RUF012

    def most_decoders(self, threads: int) -> int:
        return threads + _CACHED_DECODERS

    def runs_in_worker(self, kind: Kind) -> bool:
        return kind == "cpu"

    def refusal(self, handle: ClipsHandle, where: VideoDevice, file: MediaFile | None = None) -> str:
        from energon_dali.decode.dali.video.eligibility import is_eligible_video, suits_hardware

        if where.kind == "cpu":
            if not handle.packets_are_frames or handle.bit_depth != 8:
                return "torchcodec may count its frames in another way, or round its colours"
        elif _version() < CUTS_RIGHT_FROM:
            if not is_eligible_video(handle, "gpu", where.nvdec, file):
                return "NVDEC does not decode it, or torchcodec before 0.17 may cut its frames wrongly"
        elif not suits_hardware(handle, where.nvdec, file):
            return "NVDEC does not decode it"
        try:
            wanted = handle.find_colour(file).matrix
            declared = handle.declared_matrix
            if where.kind == "gpu":
                if handle.stream_matrix is None:
                    handle.stream_matrix = _matrix_of_packets(handle)
                declared = handle.stream_matrix
        except DecodeError as error:
            return error.reason
        if handle.stored_rotation:
            return "torchcodec rotates frames itself"
        if declared is None or wanted != _MATRICES.get(declared, "bt601"):
            return f"torchcodec does not see that its colours are those of {wanted}"
        return ""

    def read(self, handle: ClipsHandle, device: Device, stream: Any = None) -> torch.Tensor:
        decoders, resize = _load()
        options: dict[str, Any] = {"dimension_order": "NHWC", "device": "cpu"}
        if device.kind == "gpu":
            options["device"] = f"cuda:{device.ordinal}"
        elif handle.spec.size is not None:
            width, height = handle.spec.output_size(handle.width, handle.height)
            options["transforms"] = [resize((height, width))]
        decoder = decoders.VideoDecoder(bytes(handle.data), **options)  # type: ignore[arg-type]
        if len(decoder) != handle.frame_count:
            raise RuntimeError(f"torchcodec counts {len(decoder)} frames, and the file's index {handle.frame_count}")
        if device.kind == "gpu" and decoder.cpu_fallback:
            raise RuntimeError(f"torchcodec would decode on the CPU: {decoder.cpu_fallback}")
        frames: torch.Tensor = decoder.get_frames_at(np.unique(handle.frame_indices).tolist()).data
        return frames.contiguous()


@functools.cache
def _version() -> tuple[int, ...]:
    """Returns major and minor number of the installed version; (0, 0) if it has none."""
    try:
        return tuple(int(part) for part in metadata.version("torchcodec").split(".")[:2])
    except (metadata.PackageNotFoundError, ValueError):
        return (0, 0)


@functools.cache
def _load() -> tuple[Any, Any]:
    """Returns torchcodec's module of decoders and its transform that resizes.

    Raises:
        ImportError: It cannot be loaded, mostly because FFmpeg's libraries are missing.
    """
    try:
        decoders, transforms = import_module("torchcodec.decoders"), import_module("torchcodec.transforms")
    except (RuntimeError, OSError) as error:
        raise ImportError(str(error)) from error
    decoders.set_nvdec_cache_capacity(_CACHED_DECODERS)
    return decoders, transforms.Resize


def _matrix_of_packets(handle: ClipsHandle) -> int:
    """Returns the AVColorSpace of the first frame, decoded without what the container says about it.

    Args:
        handle: The video; its data is a file.

    Raises:
        DecodeError: No frame can be decoded.
    """
    import av

    from energon_dali.av.container import translated_errors
    from energon_dali.av.media_source import MemoryReader
    from energon_dali.demuxers import open_container

    reader = MemoryReader(memoryview(handle.data).cast("B"))  # type: ignore[arg-type]
    with translated_errors(), open_container(reader, {}) as container:
        stream: Any = container.streams.video[0]
        context: Any = av.CodecContext.create(stream.codec_context.codec.name, "r")
        context.extradata = stream.codec_context.extradata
        for packet in container.demux(stream):
            for frame in context.decode(packet if packet.size else None):
                return int(frame.colorspace)
    raise DecodeError("No frame of the video can be decoded", handle.codec, "torchcodec")
