"""PyNvVideoCodec as a video backend: NVDEC, frames in NV12, which are converted here.

Written by its documentation and the sources of its wheel (2.2.4); it has not run.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.interface import Route
from energon_dali.decode.spec import BackendName
from energon_dali.decode.video_backends.base import Kind, VideoDevice
from energon_dali.decode.video_backends.frame_backend import FrameBackend

if TYPE_CHECKING:
    import torch

    from energon_dali.av import MediaFile
    from energon_dali.decode.dali.runtime.device import Device

_FRAMES_AT_ONCE = 16
"""Frames that are taken from the library before they are converted: each keeps memory of its decoder."""
_CACHED_DECODERS = 4
"""Hardware decoders of other sizes that a thread keeps; the library's default."""

_of_thread = threading.local()
"""`decoders`: the decoder of a thread, by GPU. It is used for the thread's next file too, which costs less than a new
one."""


class PynvvideocodecBackend(FrameBackend):
    """NVIDIA's PyNvVideoCodec, in threads of the rank; only on a GPU."""

    name: BackendName = "pynvvideocodec"
    module = "PyNvVideoCodec"
    extra = "pynvvideocodec"
    kinds: frozenset[Kind] = frozenset(("gpu",))
    routes: dict[Kind, Route] = {"gpu": "pynvvideocodec"}  # noqa: RUF012

    def most_decoders(self, threads: int) -> int:
        return threads * (1 + _CACHED_DECODERS)

    def refusal(self, handle: ClipsHandle, where: VideoDevice, file: MediaFile | None = None) -> str:
        from energon_dali.decode.dali.video.eligibility import suits_hardware

        if where.kind == "cpu":
            return "PyNvVideoCodec needs a GPU"
        return "" if suits_hardware(handle, where.nvdec, file) else "NVDEC does not decode it"

    def read(self, handle: ClipsHandle, device: Device, stream: Any = None) -> torch.Tensor:
        import torch
        from torch.utils.dlpack import from_dlpack

        from energon_dali.decode.video_backends.nv12 import nv12_to_rgb

        shape = (handle.height * 3 // 2, handle.width)
        result: list[torch.Tensor] = []
        # A file without a name: for the next file, the library takes nothing but a path.
        file = os.memfd_create("energon-dali-video")
        try:
            with open(file, "wb", closefd=False) as writer:
                writer.write(handle.data)  # type: ignore[arg-type]
            decoder = self._decoder(f"/proc/self/fd/{file}", device, stream)
            if len(decoder) != handle.frame_count:
                raise RuntimeError(f"it counts {len(decoder)} frames, and the file's index {handle.frame_count}")
            wanted = np.unique(handle.frame_indices).tolist()
            for start in range(0, len(wanted), _FRAMES_AT_ONCE):
                frames = decoder.get_batch_frames_by_index(wanted[start : start + _FRAMES_AT_ONCE])
                planes = [from_dlpack(frame) for frame in frames]
                if any(tuple(plane.shape) != shape for plane in planes):
                    raise RuntimeError(f"frames of {[tuple(plane.shape) for plane in planes]} instead of {shape}")
                result.append(nv12_to_rgb(torch.stack(planes), handle.find_colour()))
        except BaseException:
            _of_thread.__dict__.pop("decoders", None)  # what failed is not used again
            raise
        finally:
            os.close(file)
        return torch.cat(result) if len(result) > 1 else result[0]

    def _decoder(self, path: str, device: Device, stream: Any) -> Any:
        """Returns the decoder of the calling thread, set to a file."""
        decoders: dict[int | None, Any] = _of_thread.__dict__.setdefault("decoders", {})
        decoder = decoders.get(device.ordinal)
        if decoder is not None:
            decoder.reconfigure_decoder(path)
            return decoder
        library = import_module("PyNvVideoCodec")
        decoders[device.ordinal] = library.SimpleDecoder(
            path,
            gpu_id=device.ordinal,
            cuda_stream=0 if stream is None else stream.cuda_stream,
            use_device_memory=True,
            need_scanned_stream_metadata=True,
            decoder_cache_size=_CACHED_DECODERS,
            output_color_type=library.OutputColorType.NATIVE,
        )
        return decoders[device.ordinal]
