"""Sends the handles of a block to where each belongs: an engine per graph, PIL and PyAV for what DALI must not see."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.dali.eligibility import decode_by_pil, goes_to_dali, is_eligible_image
from energon_dali.decode.dali.images.codecs import has_gpu_codec
from energon_dali.decode.dali.images.engine import DaliImageEngine
from energon_dali.decode.dali.images.graph import ImageGraph
from energon_dali.decode.dali.images.handles import DaliHandle, DecodedHandle
from energon_dali.decode.dali.runtime.device import Device, use_device
from energon_dali.decode.dali.runtime.gather import Gather
from energon_dali.decode.dali.runtime.output import bring_to_device, consumer_stream, seal, work_stream
from energon_dali.decode.dali.runtime.registry import engine_for
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome
from energon_dali.decode.screen import screen_image
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from energon_dali.decode.dali.decoder import DaliDecoder
    from energon_dali.decode.spec import ImageSpec

_PIL_THREADS = 2
_pil_pool: ThreadPoolExecutor | None = None
_pil_lock = threading.Lock()
_of_thread = threading.local()
"""`streams`: the CUDA streams that a thread of the pool copies on, by device."""


def submit_block(decoder: DaliDecoder, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
    """Starts to decode a block with the engines of this process; returns a future of one outcome per handle.

    Args:
        decoder: Gives device, threads and limits.
        handles: Of any decoder. A DaliHandle is trusted; any other is screened here, as a file that DALI's parser
            refuses would end the process.

    Raises:
        DeviceError: The decoder's device is not there.
    """
    clips = [position for position, handle in enumerate(handles) if isinstance(handle, ClipsHandle)]
    if not clips:
        return _submit_images(decoder, handles)
    gather = Gather(len(handles), consumer_stream(decoder.video_device))
    _submit_clips(decoder, handles, clips, gather)
    if len(clips) < len(handles):
        chosen = set(clips)
        images = [position for position in range(len(handles)) if position not in chosen]
        gather.put_when_done(images, _submit_images(decoder, [handles[position] for position in images]))
    return gather.future


def _submit_clips(
    decoder: DaliDecoder, handles: Sequence[MediaHandle], positions: Sequence[int], gather: Gather
) -> None:
    """Starts to decode the clips at some positions of a block."""
    device = decoder.video_device
    stream = consumer_stream(device)
    for_dali: dict[int, ClipsHandle] = {}
    for position in positions:
        handle = handles[position]
        assert isinstance(handle, ClipsHandle)
        if goes_to_dali(handle, decoder.video_decode_device, device):
            for_dali[position] = handle
        else:
            gather.put_when_done([position], _pool().submit(_bring, _decode_clips, handle, device, stream))
    if for_dali:
        from energon_dali.decode.dali.video import submit_clips

        gather.put_when_done(list(for_dali), submit_clips(decoder, device, list(for_dali.values()), stream))


def _bring(
    decode: Callable[[Any, Callable[[Any], Any]], Outcome], handle: MediaHandle, device: Device, consumer: Any
) -> list[Outcome]:
    """Returns the outcome of a handle that the CPU decodes; a thread of the pool copies its values to the device.

    Args:
        decode: Decodes a handle and brings what it made to the device by the function that it is given.
        handle: The handle.
        device: Where the other values of the block are.
        consumer: torch.cuda.Stream on which they will be used.
    """
    use_device(device)
    work = _work_stream_of_thread(device)
    copies = consumer if work is None else work
    outcomes = [decode(handle, lambda value: bring_to_device(value, device, copies))]
    seal(outcomes, work, consumer)
    return outcomes


def _work_stream_of_thread(device: Device) -> Any:
    """Returns the stream that the calling thread, one of the pool's, copies on: made once per GPU."""
    streams: dict[Device, Any] = _of_thread.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = work_stream(device)
    return streams[device]


def _decode_clips(handle: ClipsHandle, bring: Callable[[Any], Any]) -> Outcome:
    from energon_dali.decode.pyav import decode_by_pyav

    return decode_by_pyav(handle, bring)


def _submit_images(decoder: DaliDecoder, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
    device = decoder.device
    stream = consumer_stream(device)
    first = handles[0].spec if handles else decoder.spec
    # CPU threads decode some formats, and a pipeline for these has more threads.
    on_host = device.kind == "gpu" and bool(handles) and not has_gpu_codec(handles[0].format)
    if all(
        type(handle) is DaliHandle
        and handle.spec is first
        and (device.kind == "cpu" or has_gpu_codec(handle.format) != on_host)
        for handle in handles
    ):
        return _submit(decoder, first, device, handles, stream, on_host)
    gather = Gather(len(handles), stream)
    groups: dict[tuple[ImageSpec, bool], list[int]] = {}
    for position, handle in enumerate(handles):
        if isinstance(handle, DecodedHandle):
            gather.put_when_done([position], _pool().submit(_bring, _move_one, handle, device, stream))
            continue
        try:
            fit = type(handle) is DaliHandle or _is_fit(handle)
        except DecodeError as error:
            gather.put([position], [DecodeFailure(error.reason, error.format, error.route, handle.source)])
            continue
        if fit:
            on_host = device.kind == "gpu" and not has_gpu_codec(handle.format)
            groups.setdefault((handle.spec, on_host), []).append(position)
        else:
            gather.put_when_done([position], _pool().submit(_bring, decode_by_pil, handle, device, stream))
    for (spec, on_host), positions in groups.items():
        part = _submit(decoder, spec, device, [handles[i] for i in positions], stream, on_host)
        gather.put_when_done(positions, part)
    return gather.future


def _submit(
    decoder: DaliDecoder, spec: ImageSpec, device: Device, handles: Sequence[MediaHandle], stream: Any, on_host: bool
) -> Future[list[Outcome]]:
    engine = engine_for(
        DaliImageEngine,
        ImageGraph.from_spec(spec),
        decoder.pipeline_options(device, on_host=on_host),
        gpu_memory_budget_bytes=decoder.gpu_memory_budget_bytes,
    )
    return engine.submit(handles, stream=stream)


def _is_fit(handle: MediaHandle) -> bool:
    spec = handle.spec
    header = screen_image(handle.data, max_pixels=spec.max_pixels, max_bytes=spec.max_bytes)
    return is_eligible_image(header, spec) and (header.width, header.height) == (handle.width, handle.height)


def _move_one(handle: DecodedHandle, bring: Callable[[Any], Any]) -> Outcome:
    return Decoded(bring(handle.pixels), "pil")


def _pool() -> ThreadPoolExecutor:
    global _pil_pool
    with _pil_lock:
        if _pil_pool is None:
            _pil_pool = ThreadPoolExecutor(_PIL_THREADS, thread_name_prefix="energon-dali-pil")
        return _pil_pool


def _forget_pool() -> None:
    """After a fork: the pool's threads live in the parent alone."""
    global _pil_pool, _pil_lock
    _pil_pool, _pil_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
