"""Chooses what decodes a file, and sends the handles of a block there: DALI engines, one per graph, and PIL or PyAV.

Workers choose for each file, which they decode themselves where DALI does not; the rank sends blocks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.images.codecs import has_gpu_codec
from energon_dali.decode.dali.images.engine import DaliImageEngine, render
from energon_dali.decode.dali.images.graph import ImageGraph, can_finish
from energon_dali.decode.dali.runtime.blocks import (
    FutureGroup,
    bring_to_device,
    consumer_stream,
    host_threads,
    seal,
    work_stream,
)
from energon_dali.decode.dali.runtime.device import Device, DeviceOption, resolve_device, use_device
from energon_dali.decode.dali.runtime.engine import engine_for, memory_of
from energon_dali.decode.dali.runtime.pipeline import EngineOptions, PipelineOptions
from energon_dali.decode.dali.thresholds import prefers_dali_clips
from energon_dali.decode.formats import ImageHeader
from energon_dali.decode.front_ends import VisionInput
from energon_dali.decode.images import screen_image
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome
from energon_dali.decode.media_decoder import decode_on_cpu
from energon_dali.decode.operations import crops_resized
from energon_dali.decode.reduction import decoded_factor
from energon_dali.decode.spec import ImageSpec
from energon_dali.errors import DecodeError

_LEAST_FACTOR = 4
"""Divisor of both sides from which on PIL's smaller image takes less time (docs/benchmarks.md, 1920 x 1080)."""
_MAX_VIDEOS_PER_RUN = 16
"""A run ends with its slowest video, and its frames take memory at their full size."""
_of_thread = threading.local()
"""`streams`: the CUDA streams on which a thread of the pool copies, by device."""


class DaliHandle(MediaHandle):
    """A handle that passed screening and `is_eligible_image`; the rank trusts it and screens all other handles."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class DecodedHandle(MediaHandle):
    """An image that PIL decoded in a worker, to be moved to a GPU by the rank; `data` is empty.

    A worker must not touch the GPU, and the rank's process has few threads to spare for PIL.
    """

    pixels: Any = None
    """Torch tensor, numpy array or PIL image, as the spec says."""

    def decode(self) -> Any:
        """Returns the pixels, on the CPU."""
        return self.pixels


def goes_to_dali(handle: ClipsHandle, option: DeviceOption, device: Device) -> bool:
    """Returns whether DALI, and not PyAV, decodes the clips of a video.

    Args:
        handle: The video.
        option: `video_decode_device` as the user gave it. "auto" takes DALI where it is faster; any other option takes
            it wherever it decodes the video correctly.
        device: Where DALI would decode it; a GPU without an ordinal in a process that must not touch the GPU.
    """
    from energon_dali.decode.dali.video.eligibility import is_eligible_video
    from energon_dali.decode.dali.video.nvdec import decodes_on

    if handle.decoded is not None or handle.rotation or handle.spec.damaged != "error":
        return False
    if option == "auto" and not prefers_dali_clips(
        handle.codec, handle.width, handle.height, handle.frames_to_decode, device.kind
    ):
        return False
    if device.kind == "gpu" and not decodes_on(device, handle.codec, handle.width, handle.height):
        return False
    return is_eligible_video(handle, device.kind, device.ordinal)


def is_left_to_pil(handle: MediaHandle) -> bool:
    """Returns whether PIL decodes an image at a smaller scale in less time than DALI its region, on the CPU.

    At half its size it does not, unless DALI would also resample.
    """
    return decoded_factor(handle) >= (_LEAST_FACTOR if can_finish(handle.spec) else 2)


def is_eligible_image(header: ImageHeader, spec: ImageSpec) -> bool:
    """Returns whether DALI is certain to decode an image, and to the pixels that PIL gives."""
    if not header.dali_decodable or header.bit_depth > 8:
        return False
    if spec.front_end is not None:
        # Transparent images are put on white, and a front end may refuse what is not RGB: both by PIL. So are crops
        # after a resize, which are resampled twice.
        return (
            not header.has_alpha
            and (spec.front_end.convert_rgb or header.color not in ("gray", "palette", "cmyk", "ycck"))
            and not crops_resized(spec.geometric)
        )
    if spec.mode == "RGBA":
        return not header.has_alpha  # DALI drops the alpha channel
    # PIL converts palettes and CMYK to gray with other formulas than RGB.
    return spec.mode != "L" or header.color not in ("palette", "cmyk", "ycck")


# --- in the rank's process -----------------------------------------------------------------------------------------


def submit_block(options: EngineOptions, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
    """Starts to decode a block with the engines of this process; returns a future of one outcome per handle.

    Args:
        options: Devices, threads and limits of the decoder.
        handles: Handles of any decoder. A DaliHandle is trusted; any other image is screened here, because a file that
            DALI's parser refuses would end the process.

    Raises:
        DeviceError: A device that the options name is not there.
    """
    clips = [position for position, handle in enumerate(handles) if isinstance(handle, ClipsHandle)]
    if not clips:
        return _submit_images(options, handles)
    from energon_dali.decode.dali.video.nvdec import warn_without_nvdec

    device = resolve_device(options.video_decode_device, "video")
    warn_without_nvdec(device)
    stream = consumer_stream(device)
    block = FutureGroup(len(handles), stream)
    for_dali: dict[int, ClipsHandle] = {}
    for position in clips:
        handle = handles[position]
        assert isinstance(handle, ClipsHandle)
        if goes_to_dali(handle, options.video_decode_device, device) and _has_decoder_for(handle, options, device):
            for_dali[position] = handle
        else:
            block.put_when_done([position], host_threads().submit(_decode_in_pool, handle, device, stream))
    if for_dali:
        submitted = list(for_dali.values())
        done = submit_clips(options, device, submitted, stream)
        if device.kind == "cpu" and any(handle.spec.front_end is not None for handle in submitted):
            done = _render_when_decoded(done, submitted)
        block.put_when_done(list(for_dali), done)
    if len(clips) < len(handles):
        chosen = set(clips)
        images = [position for position in range(len(handles)) if position not in chosen]
        block.put_when_done(images, _submit_images(options, [handles[position] for position in images]))
    return block.future


def _has_decoder_for(handle: ClipsHandle, options: EngineOptions, device: Device) -> bool:
    """Returns whether the memory of a GPU has room for the hardware decoders of a video's size."""
    if device.kind == "cpu":
        return True
    from energon_dali.decode.dali.video.nvdec import decoder_cache

    cache = decoder_cache(memory_of(device, options.gpu_memory_budget_bytes))
    return cache.admit(handle.codec, handle.width, handle.height, options.threads_on(device, "video"))


def submit_clips(
    options: EngineOptions, device: Device, handles: Sequence[ClipsHandle], stream: Any = None
) -> Future[list[Outcome]]:
    """Starts to decode the clips of videos with DALI; returns a future of one outcome per handle, in their order.

    PyAV decodes a video that DALI cannot decode after all (route "fallback"), and always the audio.

    Args:
        options: Threads and limits of the decoder.
        device: Where to decode.
        handles: Videos that pass `is_eligible_video` there. Their data must not change until the future is done.
        stream: torch.cuda.Stream on which the frames will be used, on a GPU. It does not wait for them yet.

    Returns:
        A future that fails only with DeviceFailedError or MemoryError, never because of a file.
    """
    from energon_dali.decode.dali.video.engine import (
        DaliVideoEngine,  # PyAV too: blocks of images do without it
        VideoGraph,
        find_correction,
    )

    groups: dict[VideoClips, list[int]] = {}
    for position, handle in enumerate(handles):
        groups.setdefault(handle.spec, []).append(position)
    block = FutureGroup(len(handles))
    for spec, positions in groups.items():
        group = [handles[i] for i in positions]
        corrects = any(not find_correction(handle).is_identity for handle in group)
        engine = engine_for(
            DaliVideoEngine,
            VideoGraph.from_spec(spec, device, corrects=corrects),
            options.on(device, "video", most_samples=_MAX_VIDEOS_PER_RUN),
            gpu_memory_budget_bytes=options.gpu_memory_budget_bytes,
        )
        block.put_when_done(positions, engine.submit(group, stream=stream))
    return block.future


def _submit_images(options: EngineOptions, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
    device = resolve_device(options.image_decode_device)
    stream = consumer_stream(device)
    if not handles:
        return FutureGroup(0).future
    first = handles[0].spec
    # CPU threads decode some formats on a GPU's pipeline too; a pipeline for these has more threads.
    on_host = device.kind == "gpu" and not has_gpu_codec(handles[0].format)
    if all(
        type(handle) is DaliHandle
        and handle.spec is first
        and (device.kind == "cpu" or has_gpu_codec(handle.format) != on_host)
        for handle in handles
    ):
        return _submit_to_engine(options, first, device, handles, stream, on_host)
    block = FutureGroup(len(handles), stream)
    groups: dict[tuple[ImageSpec, bool], list[int]] = {}
    for position, handle in enumerate(handles):
        try:
            eligible = type(handle) is DaliHandle or _is_eligible(handle, device)
        except DecodeError as error:
            block.put([position], [DecodeFailure(error.reason, error.format, error.route, handle.source)])
            continue
        if eligible:
            on_host = device.kind == "gpu" and not has_gpu_codec(handle.format)
            groups.setdefault((handle.spec, on_host), []).append(position)
        else:
            block.put_when_done([position], host_threads().submit(_decode_in_pool, handle, device, stream))
    for (spec, on_host), positions in groups.items():
        part = _submit_to_engine(options, spec, device, [handles[i] for i in positions], stream, on_host)
        block.put_when_done(positions, part)
    return block.future


def _submit_to_engine(
    options: EngineOptions,
    spec: ImageSpec,
    device: Device,
    handles: Sequence[MediaHandle],
    stream: Any,
    on_host: bool,
) -> Future[list[Outcome]]:
    graph, runs = _image_pipeline(options, spec, device, on_host)
    engine = engine_for(DaliImageEngine, graph, runs, gpu_memory_budget_bytes=options.gpu_memory_budget_bytes)
    decoded = engine.submit(handles, stream=stream)
    if spec.front_end is None or device.kind == "gpu":
        return decoded
    return _render_when_decoded(decoded, handles)


@functools.lru_cache(maxsize=256)  # asked for every block
def _image_pipeline(
    options: EngineOptions, spec: ImageSpec, device: Device, on_host: bool
) -> tuple[ImageGraph, PipelineOptions]:
    """Returns what the pipeline of a spec produces, and how it runs: on the cores that the first block finds."""
    return ImageGraph.from_spec(spec, device.kind), options.on(device, on_host=on_host)


def _render_when_decoded(decoded: Future[list[Outcome]], handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
    """Returns a future of what front ends make of pixels that DALI decodes on the CPU, in threads of their own."""
    block = FutureGroup(len(handles))

    def start(done: Future[list[Outcome]]) -> None:
        try:
            for position, outcome in enumerate(done.result()):
                # PIL and PyAV render what they decode after a failure of DALI.
                handle, renders = handles[position], handles[position].spec.front_end is not None
                if renders and isinstance(outcome, Decoded) and not isinstance(outcome.value, VisionInput):
                    block.put_when_done([position], host_threads().submit(_render, handle, outcome))
                else:
                    block.put([position], [outcome])
        except BaseException as error:  # nobody would hear of an error raised in a callback
            block.fail(error)

    decoded.add_done_callback(start)
    return block.future


def _is_eligible(handle: MediaHandle, device: Device) -> bool:
    """Returns whether DALI may decode the handle of another decoder, whose fields may not fit its data."""
    spec = handle.spec
    if isinstance(handle, DecodedHandle) or (device.kind == "cpu" and is_left_to_pil(handle)):
        return False
    header = screen_image(handle.data, max_pixels=spec.max_pixels, max_bytes=spec.max_bytes)
    return is_eligible_image(header, spec) and (header.width, header.height) == (handle.width, handle.height)


# --- on the threads of the pool ------------------------------------------------------------------------------------


def _decode_in_pool(handle: MediaHandle, device: Device, consumer: Any) -> list[Outcome]:
    """Returns the outcome of a handle that the CPU decodes, or has decoded, with its values copied to the device.

    Args:
        handle: The handle.
        device: Where the other values of the block are.
        consumer: torch.cuda.Stream on which they will be used.
    """
    use_device(device)
    streams: dict[Device, Any] = _of_thread.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = work_stream(device)
    work = streams[device]
    copies = consumer if work is None else work

    def bring(value: Any) -> Any:
        return bring_to_device(value, device, copies)

    decoded = isinstance(handle, DecodedHandle)
    outcome = Decoded(bring(handle.decode()), "pil") if decoded else decode_on_cpu(handle, bring)
    seal([outcome], work, consumer)
    return [outcome]


def _render(handle: MediaHandle, outcome: Decoded) -> list[Outcome]:
    if isinstance(handle, ClipsHandle):
        from energon_dali.decode.pyav import render_video  # images do without PyAV

        return [Decoded(render_video(handle, outcome.value), outcome.route)]
    try:
        return [Decoded(render(handle, outcome.value), outcome.route)]
    except DecodeError as error:  # such as a page of Nougat, whose size is known without its margins
        return [DecodeFailure(error.reason, error.format or handle.format, outcome.route, handle.source)]
