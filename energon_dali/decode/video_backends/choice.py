"""Chooses the backend of each video, and checks what a user asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.dali.runtime.device import Device, DeviceOption
from energon_dali.decode.dali.runtime.pipeline import EngineOptions
from energon_dali.decode.dali.thresholds import PREFERRED_BACKENDS, prefers_dali_clips
from energon_dali.decode.spec import BackendName, BackendOption
from energon_dali.decode.video_backends.base import VideoBackend, VideoDevice
from energon_dali.decode.video_backends.dali_backend import DaliBackend
from energon_dali.decode.video_backends.nvdec import ask_nvdec
from energon_dali.decode.video_backends.pyav_backend import PyavBackend
from energon_dali.decode.video_backends.pynvvideocodec_backend import PynvvideocodecBackend
from energon_dali.decode.video_backends.torchcodec_backend import TorchcodecBackend
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.av import MediaFile

BACKENDS: dict[BackendName, VideoBackend] = {
    backend.name: backend for backend in (PyavBackend(), DaliBackend(), TorchcodecBackend(), PynvvideocodecBackend())
}
"""All backends by name."""


def check_backend_option(option: object, device: DeviceOption) -> None:
    """Checks that videos can be decoded by the backend that a user names.

    Args:
        option: `video_backend` as the user gave it.
        device: `video_decode_device`, likewise.

    Raises:
        ConfigError: It is unknown, its library is not installed, or it does not decode on the device.
    """
    if option == "auto":
        return
    backend = BACKENDS.get(option) if isinstance(option, str) else None  # type: ignore[call-overload]
    there = ", ".join(f'"{name}"' for name, each in BACKENDS.items() if each.is_installed)
    if backend is None:
        names = ", ".join(f'"{name}"' for name in get_args(BackendOption))
        raise ConfigError(f"video_backend={option!r} is unknown. Give one of {names}.")
    if not backend.is_installed:
        extra = f'energon-dali[{backend.extra}]"' if backend.extra else 'energon-dali[cuda12]"'
        raise ConfigError(
            f'video_backend="{backend.name}" needs {backend.module}, which is not installed. Run '
            f'`pip install "{extra}`, or give "auto" or one of those that are installed: {there}.'
        )
    if device == "cpu" and "cpu" not in backend.kinds:
        raise ConfigError(
            f'video_backend="{backend.name}" was given with video_decode_device="cpu", and decodes on GPUs alone. Give '
            'another video_decode_device, or video_backend="auto", "pyav" or "torchcodec".'
        )


def device_of_rank(device: Device) -> VideoDevice:
    """Returns where the videos of a rank are decoded. Asks the GPU, so only the rank may call it.

    Args:
        device: As `resolve_device` returned it.
    """
    return VideoDevice(device.kind, None if device.ordinal is None else ask_nvdec(device.ordinal))


def choose_backend(
    handle: ClipsHandle, options: EngineOptions, where: VideoDevice, file: MediaFile | None = None
) -> VideoBackend:
    """Returns the backend that decodes the clips of a video: the one that was chosen before, if there is one.

    Args:
        handle: The video; it keeps what the choice finds out about it.
        options: Those of the decoder. With video_backend="auto" and video_decode_device="auto" it is what is fastest;
            otherwise DALI, or the backend that is named, wherever it decodes the video correctly.
        where: Where it would be decoded.
        file: The same file, if it is already open; it stays open.
    """
    if handle.backend is not None and handle.backend[1] == where.kind:
        return BACKENDS[handle.backend[0]]
    for backend in wanted_backends(handle, options, where):
        if not backend.refusal(handle, where, file):
            return backend
    return BACKENDS["pyav"]


def wanted_backends(handle: ClipsHandle, options: EngineOptions, where: VideoDevice) -> list[VideoBackend]:
    """Returns the backends that would decode the clips of a video before PyAV, best first, if the file suits them.

    Args:
        handle: The video. Its data is not looked at.
        options: Those of the decoder.
        where: Where it would be decoded.
    """
    named = options.video_backend
    if named == "pyav" or handle.decoded is not None or not handle.frame_indices.size:
        return []
    if handle.rotation or handle.spec.damaged != "error" or (where.nvdec is not None and where.nvdec.obstacle):
        return []
    if named == "auto" and options.video_decode_device == "auto":
        size = handle.width, handle.height
        if not prefers_dali_clips(handle.codec, *size, handle.frames_to_decode, where.kind):
            return []
    names: tuple[BackendName, ...] = PREFERRED_BACKENDS[where.kind] if named == "auto" else (named,)
    backends = [BACKENDS[name] for name in names]
    return [backend for backend in backends if backend.is_installed and where.kind in backend.kinds]
