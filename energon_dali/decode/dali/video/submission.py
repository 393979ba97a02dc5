"""Sends clips to the engines of this process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.gather import Gather
from energon_dali.decode.dali.runtime.registry import engine_for
from energon_dali.decode.dali.video.engine import DaliVideoEngine
from energon_dali.decode.dali.video.graph import VideoGraph, find_correction
from energon_dali.decode.interface import Outcome

if TYPE_CHECKING:
    from energon_dali.decode.dali.decoder import DaliDecoder

_MAX_BATCH_SIZE = 16
"""Videos per run at most: a run ends with its slowest video, and its frames take memory at their full size."""


def submit_clips(
    decoder: DaliDecoder, device: Device, handles: Sequence[ClipsHandle], stream: Any = None
) -> Future[list[Outcome]]:
    """Starts to decode the clips of videos with DALI; returns a future of one outcome per handle, in their order.

    What DALI cannot decode after all is decoded by PyAV, alone (route "fallback"); sound is decoded by PyAV always.

    Args:
        decoder: Gives threads and limits.
        device: Where to decode.
        handles: Videos that suit DALI there (`is_eligible_video`). Their data must stay unchanged until it is done.
        stream: torch.cuda.Stream on which the frames will be used, on a GPU; nothing waits for them.

    Returns:
        A future that fails with DeviceFailedError or MemoryError alone, never because of a file.
    """
    groups: dict[VideoClips, list[int]] = {}
    for position, handle in enumerate(handles):
        groups.setdefault(handle.spec, []).append(position)
    gather = Gather(len(handles))
    for spec, positions in groups.items():
        group = [handles[i] for i in positions]
        corrects = any(not find_correction(handle).is_identity for handle in group)
        engine = engine_for(
            DaliVideoEngine,
            VideoGraph.from_spec(spec, device, corrects=corrects),
            decoder.pipeline_options(device, most_samples=_MAX_BATCH_SIZE),
            gpu_memory_budget_bytes=decoder.gpu_memory_budget_bytes,
        )
        gather.put_when_done(positions, engine.submit(group, stream=stream))
    return gather.future
