"""DALI as a video backend: blocks of videos run through its pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.interface import Outcome
from energon_dali.decode.spec import BackendName
from energon_dali.decode.video_backends.base import Kind, VideoBackend, VideoDevice

if TYPE_CHECKING:
    from energon_dali.av import MediaFile
    from energon_dali.decode.dali.runtime.device import Device
    from energon_dali.decode.dali.runtime.pipeline import EngineOptions

_MAX_VIDEOS_PER_RUN = 16
"""A run ends with its slowest video, and its frames take memory at their full size."""


class DaliBackend(VideoBackend):
    """NVIDIA DALI, on a GPU or on the CPU."""

    name: BackendName = "dali"
    module = "nvidia.dali"
    kinds: frozenset[Kind] = frozenset(("cpu", "gpu"))

    def refusal(self, handle: ClipsHandle, where: VideoDevice, file: MediaFile | None = None) -> str:
        from energon_dali.decode.dali.video.eligibility import is_eligible_video

        if is_eligible_video(handle, where.kind, where.nvdec, file):
            return ""
        return "DALI would decode it to other pixels, or not at all"

    def has_room(self, handle: ClipsHandle, options: EngineOptions, device: Device) -> bool:
        if device.kind == "cpu":
            return True
        from energon_dali.decode.dali.runtime.engine import memory_of
        from energon_dali.decode.video_backends.nvdec import decoder_cache

        cache = decoder_cache(memory_of(device, options.gpu_memory_budget_bytes))
        return cache.admit(handle.codec, handle.width, handle.height, options.threads_on(device, "video"))

    def submit(
        self, options: EngineOptions, device: Device, handles: Sequence[ClipsHandle], stream: Any = None
    ) -> Future[list[Outcome]]:
        from energon_dali.decode.dali.runtime.blocks import FutureGroup
        from energon_dali.decode.dali.runtime.engine import submit_to_engine
        from energon_dali.decode.dali.video.engine import DaliVideoEngine, VideoGraph, find_correction

        groups: dict[VideoClips, list[int]] = {}
        for position, handle in enumerate(handles):
            groups.setdefault(handle.spec, []).append(position)
        block = FutureGroup(len(handles))
        for spec, positions in groups.items():
            group = [handles[i] for i in positions]
            corrects = any(not find_correction(handle).is_identity for handle in group)
            done = submit_to_engine(
                DaliVideoEngine,
                VideoGraph.from_spec(spec, device, corrects=corrects),
                options.on(device, "video", most_samples=_MAX_VIDEOS_PER_RUN),
                group,
                stream=stream,
                gpu_memory_budget_bytes=options.gpu_memory_budget_bytes,
            )
            block.put_when_done(positions, done)
        return block.future
