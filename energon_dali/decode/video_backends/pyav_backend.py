"""PyAV as a video backend: it decodes every video, on the CPU, and is the reference for the others."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.interface import Outcome, Route
from energon_dali.decode.spec import BackendName
from energon_dali.decode.video_backends.base import Kind, VideoDevice
from energon_dali.decode.video_backends.frame_backend import FrameBackend

if TYPE_CHECKING:
    import torch

    from energon_dali.av import MediaFile
    from energon_dali.decode.dali.runtime.device import Device
    from energon_dali.decode.dali.runtime.pipeline import EngineOptions


class PyavBackend(FrameBackend):
    """PyAV, in the workers, or in host threads of the rank for what no worker decoded."""

    name: BackendName = "pyav"
    module = "av"
    kinds: frozenset[Kind] = frozenset(("cpu",))
    routes: dict[Kind, Route] = {"cpu": "pyav"}  # noqa: RUF012
    reads_ranges = True

    def refusal(self, handle: ClipsHandle, where: VideoDevice, file: MediaFile | None = None) -> str:
        return ""

    def has_room(self, handle: ClipsHandle, options: EngineOptions, device: Device) -> bool:
        return True

    def runs_in_worker(self, kind: Kind) -> bool:
        return True

    def read(self, handle: ClipsHandle, device: Device, stream: Any = None) -> torch.Tensor:
        import torch

        from energon_dali.av import MediaFile, VideoReader

        with MediaFile(handle.data, limits=handle.limits) as file:
            reader = VideoReader(file, decode_scale=handle.decode_scale)
            frames = reader.read(np.unique(handle.frame_indices), handle.spec.output_size)
        return torch.from_numpy(np.ascontiguousarray(frames))

    def submit(
        self, options: EngineOptions, device: Device, handles: Sequence[ClipsHandle], stream: Any = None
    ) -> Future[list[Outcome]]:
        from energon_dali.decode.dali.runtime.blocks import FutureGroup
        from energon_dali.decode.dali.runtime.host_decoding import decode_on_host

        block = FutureGroup(len(handles))
        for position, handle in enumerate(handles):
            block.put_when_done([position], decode_on_host(handle, device, stream))
        return block.future
