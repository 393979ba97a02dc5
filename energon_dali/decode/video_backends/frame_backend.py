"""Backends that open one file at a time and read frames by number, in threads; and what becomes of these frames."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.interface import Decoded, DecodeFailure, Outcome, Route
from energon_dali.decode.video_backends.base import Kind, VideoBackend
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch

    from energon_dali.decode.dali.runtime.device import Device
    from energon_dali.decode.dali.runtime.pipeline import EngineOptions

_LOG = logging.getLogger(__name__)


class FrameBackend(VideoBackend):
    """A backend that opens one file at a time and reads frames by their numbers."""

    routes: dict[Kind, Route]
    """What is counted as having decoded a video."""

    def most_decoders(self, threads: int) -> int:
        """Returns how many hardware decoders the library has at most on a GPU: in use, and kept for later files.

        Args:
            threads: Number of files that are decoded at the same time.
        """
        return threads

    @abstractmethod
    def read(self, handle: ClipsHandle, device: Device, stream: Any = None) -> torch.Tensor:
        """Returns the wanted frames of a video, each once, in the order of time.

        Args:
            handle: The video; `refusal` was asked about it.
            device: Where to decode.
            stream: torch.cuda.Stream of the work, on a GPU; it is the current one.

        Returns:
            uint8[n, H, W, 3], contiguous, in the colours that the file declares, of the size of the video, or of that
            which the spec asks for where the backend resizes. New memory.

        Raises:
            Exception: The library failed on the file, or has other frames than the index of the file.
        """

    def has_room(self, handle: ClipsHandle, options: EngineOptions, device: Device) -> bool:
        if device.kind == "cpu":
            return True
        from energon_dali.decode.dali.runtime.engine import memory_of
        from energon_dali.decode.video_backends.nvdec import decoder_cache

        threads = options.threads_on(device, "video")
        memory = memory_of(device, options.gpu_memory_budget_bytes)
        cache = decoder_cache(memory, self.name, self.most_decoders(threads))
        return cache.admit(handle.codec, handle.width, handle.height, threads)

    def submit(
        self, options: EngineOptions, device: Device, handles: Sequence[ClipsHandle], stream: Any = None
    ) -> Future[list[Outcome]]:
        from energon_dali.decode.dali.runtime.blocks import FutureGroup
        from energon_dali.decode.dali.runtime.host_decoding import run_on_stream, video_threads

        block = FutureGroup(len(handles))
        threads = video_threads(options.threads_on(device, "video"))
        for position, handle in enumerate(handles):
            decode = partial(self._decode_in_budget, options, handle, device)
            block.put_when_done([position], threads.submit(run_on_stream, device, stream, decode))
        return block.future

    def _decode_in_budget(self, options: EngineOptions, handle: ClipsHandle, device: Device, stream: Any) -> Outcome:
        from energon_dali.decode.dali.runtime.engine import memory_of
        from energon_dali.decode.dali.video.eligibility import count_decoded_bytes

        memory = memory_of(device, options.gpu_memory_budget_bytes)
        needed = 2 * count_decoded_bytes(handle)  # the decoded frames, and the result
        memory.acquire(needed, wait=True)
        try:
            return self.decode(handle, device, stream)
        finally:
            memory.release_run(needed)

    def decode(self, handle: ClipsHandle, device: Device, stream: Any = None) -> Outcome:
        """Returns the outcome of decoding a video in the calling thread; PyAV decodes it where this backend fails.

        Args:
            handle: A video that the backend does not refuse on the device.
            device: Where to decode.
            stream: torch.cuda.Stream of the work, on a GPU.

        Raises:
            DeviceFailedError: The device failed, or its memory is full.
        """
        from energon_dali.decode.dali.runtime.blocks import bring_to_device
        from energon_dali.decode.pyav import decode_audio_of_clips, decode_by_pyav, render_video

        try:
            clips = decode_audio_of_clips(handle)
        except DecodeError as error:
            return DecodeFailure(error.reason, error.format or handle.format, error.route, handle.source)
        try:
            with current_stream(device, stream):
                import torch

                clips.frames = finish_clips(self.read(handle, device, stream), handle)
                clips.timestamps = torch.from_numpy(handle.timestamps)
                value = clips if handle.spec.front_end is None else render_video(handle, clips)
                return Decoded(value, self.routes[device.kind])
        except DecodeError as error:  # the front end refuses the frames
            return DecodeFailure(error.reason, error.format or handle.format, error.route, handle.source)
        except Exception as error:
            self._check_device(error, handle, device)
            _LOG.debug("%r: %s says %r", handle, self.name, str(error)[:300])
        try:
            outcome = decode_by_pyav(handle, lambda value: bring_to_device(value, device, stream))
        except ConfigError as error:  # frames that were there when the clips were chosen, but no longer are
            return DecodeFailure(str(error), handle.format, "pyav", handle.source)
        return Decoded(outcome.value, "fallback") if isinstance(outcome, Decoded) else outcome

    def _check_device(self, error: Exception, handle: ClipsHandle, device: Device) -> None:
        """Raises if the device failed; warns once if the library cannot be loaded."""
        from energon_dali.decode.dali.runtime.device import say_once
        from energon_dali.decode.dali.runtime.failure import raise_if_device_failed
        from energon_dali.decode.dali.video.eligibility import count_decoded_bytes

        if isinstance(error, (ImportError, OSError)):
            say_once(
                f"PyAV decodes the videos of {self.name}, which is installed and cannot be loaded: {str(error)[:300]}",
                logging.WARNING,
            )
            return
        if not isinstance(error, MemoryError):
            error = RuntimeError(str(error))  # libraries have exceptions of their own for bad files
        raise_if_device_failed(error, device, "video", 2 * count_decoded_bytes(handle), library=self.name)


def current_stream(device: Device, stream: Any) -> AbstractContextManager[Any]:
    """Makes a torch.cuda.Stream the current one inside a `with`; no effect on the CPU."""
    if device.kind == "cpu" or stream is None:
        return nullcontext()
    import torch

    context: AbstractContextManager[Any] = torch.cuda.stream(stream)
    return context


def finish_clips(frames: torch.Tensor, handle: ClipsHandle) -> torch.Tensor:
    """Returns the clips of a video in the size, order, layout and dtype of its spec.

    Args:
        frames: uint8[n, H, W, 3], contiguous: the wanted frames, each once, in the order of time.
        handle: The video.

    Returns:
        Tensor [clips, frames, 3, H, W], or with the channels last, on the device of the frames.

    Raises:
        RuntimeError: Their number is not the wanted one, or torch cannot resize them so far.
    """
    import torch

    from energon_dali.decode.pyav import finish_frames
    from energon_dali.kernels.backend import on_device
    from energon_dali.kernels.color_matrix import IDENTITY, convert_colors

    spec = handle.spec
    wanted, positions = np.unique(handle.frame_indices, return_inverse=True)
    if len(frames) != wanted.size:
        raise RuntimeError(f"{len(frames)} frames instead of {wanted.size}")
    width, height = spec.output_size(handle.width, handle.height)
    if tuple(frames.shape[1:3]) != (height, width):
        if tuple(frames.shape[1:3]) != (handle.height, handle.width):
            raise RuntimeError(f"frames of {tuple(frames.shape[1:3])} instead of {(handle.height, handle.width)}")
        planes = frames.permute(0, 3, 1, 2).to(torch.float32)
        planes = torch.nn.functional.interpolate(planes, (height, width), mode="bilinear", antialias=True)
        frames = planes.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    if not bool((np.diff(handle.frame_indices.ravel()) > 0).all()):
        frames = frames.index_select(0, on_device(torch.from_numpy(positions.ravel()), frames.device))
    if spec.front_end is not None or frames.device.type == "cpu":
        return finish_frames(frames, handle)
    clips = frames.view(*handle.frame_indices.shape, *frames.shape[1:])
    if spec.dtype == "uint8" and spec.layout == "FHWC":
        return clips
    converted: torch.Tensor = convert_colors(clips, [IDENTITY] * len(clips), dtype=spec.dtype, layout=spec.layout)
    return converted
