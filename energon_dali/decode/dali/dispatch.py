"""Sends the handles of a block to what decodes them: video backends, DALI engines, one per graph, and PIL.

Workers choose for each file, and decode themselves what no GPU takes; the rank sends blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from energon_dali.decode.audio_front_ends.audio_handle import AudioHandle
from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.dali.images.codecs import has_gpu_codec
from energon_dali.decode.dali.images.engine import DaliImageEngine, render
from energon_dali.decode.dali.images.graph import ImageGraph, can_finish
from energon_dali.decode.dali.runtime.blocks import FutureGroup, consumer_stream
from energon_dali.decode.dali.runtime.device import Device, resolve_device
from energon_dali.decode.dali.runtime.engine import submit_to_engine
from energon_dali.decode.dali.runtime.host_decoding import DecodedHandle, decode_on_host, host_threads
from energon_dali.decode.dali.runtime.pipeline import EngineOptions, PipelineOptions
from energon_dali.decode.formats import ImageHeader
from energon_dali.decode.front_ends import VisionInput
from energon_dali.decode.images import screen_image
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome
from energon_dali.decode.operations import crops_resized
from energon_dali.decode.reduction import decoded_factor
from energon_dali.decode.spec import ImageSpec
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from energon_dali.decode.video_backends.base import VideoBackend

_LEAST_FACTOR = 4
"""Divisor of both sides from which on PIL's smaller image takes less time (docs/benchmarks.md, 1920 x 1080)."""
_MOST_BYTES_PER_PIXEL = 0.15
"""Of a file that PIL decodes at a smaller scale: it reads all of it, and DALI nothing below the region. With 0.125 PIL
took two thirds of DALI's time, with 0.17 and 0.33 slightly more (photographs of 2 and 12 megapixels)."""


class DaliHandle(MediaHandle):
    """A handle that passed screening and `is_eligible_image`; the rank trusts it and screens all other handles."""

    __slots__ = ()


def is_left_to_pil(handle: MediaHandle) -> bool:
    """Returns whether PIL decodes an image at a smaller scale in less time than DALI its region, on the CPU.

    At half its size it does not, unless DALI would also resample, nor if the file is large for its pixels.
    """
    if len(handle.data) > _MOST_BYTES_PER_PIXEL * handle.width * handle.height:
        return False
    return decoded_factor(handle) >= (_LEAST_FACTOR if can_finish(handle.spec) else 2)


def is_eligible_image(header: ImageHeader, spec: ImageSpec) -> bool:
    """Returns whether DALI is certain to decode an image, and to the pixels that PIL gives."""
    if not header.dali_decodable or header.bit_depth > 8:
        return False
    # nvJPEG takes stored RGB for YCbCr (seen with 13.0 and 13.3 on an H100). Left to PIL on every device: the plan does
    # not know which it will be.
    if (header.format, header.color) == ("jpeg", "rgb"):
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
    recordings = [position for position, handle in enumerate(handles) if isinstance(handle, AudioHandle)]
    if not clips and not recordings:
        return _submit_images(options, handles)
    device = Device("cpu")  # which recordings stay on
    if clips:
        device = resolve_device(options.video_decode_device, "video")
    elif len(recordings) < len(handles):
        device = resolve_device(options.image_decode_device)
    stream = consumer_stream(device)
    block = FutureGroup(len(handles), stream)
    for position in recordings:
        block.put_when_done(
            [position], host_threads().submit(_decode_recording, cast("AudioHandle", handles[position]))
        )
    videos = {position: cast("ClipsHandle", handles[position]) for position in clips}
    if videos:
        _submit_videos(options, device, videos, stream, block)
    if len(clips) + len(recordings) < len(handles):
        chosen = {*clips, *recordings}
        images = [position for position in range(len(handles)) if position not in chosen]
        block.put_when_done(images, _submit_images(options, [handles[position] for position in images]))
    return block.future


def _submit_videos(
    options: EngineOptions, device: Device, handles: dict[int, ClipsHandle], stream: Any, block: FutureGroup
) -> None:
    """Starts to decode videos, each with the backend that a worker chose, or that is chosen now.

    Args:
        options: Of the decoder.
        device: Where the block is decoded.
        handles: Videos by their positions in the block.
        stream: torch.cuda.Stream on which the frames will be used; None on the CPU.
        block: Takes the outcomes.
    """
    from energon_dali.decode.video_backends.choice import BACKENDS, choose_backend, device_of_rank
    from energon_dali.decode.video_backends.nvdec import warn_without_nvdec

    warn_without_nvdec(device)
    where = device_of_rank(device)
    groups: dict[VideoBackend, list[int]] = {}
    for position, handle in handles.items():
        backend = choose_backend(handle, options, where)
        if not backend.has_room(handle, options, device):
            backend = BACKENDS["pyav"]
        groups.setdefault(backend, []).append(position)
    for backend, positions in groups.items():
        group = [handles[position] for position in positions]
        done = backend.submit(options, device, group, stream)
        if backend.name == "dali" and device.kind == "cpu" and any(handle.spec.front_end for handle in group):
            done = _render_when_decoded(done, group)
        block.put_when_done(positions, done)


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
        return _submit_group(options, first, device, handles, stream, on_host)
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
            block.put_when_done([position], decode_on_host(handle, device, stream))
    for (spec, on_host), positions in groups.items():
        part = _submit_group(options, spec, device, [handles[i] for i in positions], stream, on_host)
        block.put_when_done(positions, part)
    return block.future


def _submit_group(
    options: EngineOptions,
    spec: ImageSpec,
    device: Device,
    handles: Sequence[MediaHandle],
    stream: Any,
    on_host: bool,
) -> Future[list[Outcome]]:
    graph, runs = _image_pipeline(options, spec, device, on_host)
    budget = options.gpu_memory_budget_bytes
    decoded = submit_to_engine(DaliImageEngine, graph, runs, handles, stream=stream, gpu_memory_budget_bytes=budget)
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


def _decode_recording(handle: AudioHandle) -> list[Outcome]:
    from energon_dali.decode.audio_front_ends.audio_decoding import decode_outcome  # images do without PyAV

    return [decode_outcome(handle)]


def _render(handle: MediaHandle, outcome: Decoded) -> list[Outcome]:
    if isinstance(handle, ClipsHandle):
        from energon_dali.decode.pyav import render_video  # images do without PyAV

        return [Decoded(render_video(handle, outcome.value), outcome.route)]
    try:
        return [Decoded(render(handle, outcome.value), outcome.route)]
    except DecodeError as error:  # such as a page of Nougat, whose size is known without its margins
        return [DecodeFailure(error.reason, error.format or handle.format, outcome.route, handle.source)]
