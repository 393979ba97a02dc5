"""Imports DALI when it is first used, and finds the devices that can decode, without touching CUDA where possible.

DALI's own type stubs lack much of what is used here.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import logging
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from glob import glob
from importlib import import_module
from typing import Any, Literal

from energon_dali.errors import ConfigError, DeviceError

POOL_VARIABLE = "DALI_MALLOC_POOL_THRESHOLD"
"""DALI's variable for the size from which buffers on the CPU come from its own pool, read when DALI allocates first."""
_POOL_FROM = "64k"

_before_exit: list[Callable[[], None]] = []
_LOG = logging.getLogger(__name__)

DeviceOption = Literal["auto", "cpu", "gpu"] | int
"""What a user may give: "auto", a kind, or the ordinal of a GPU."""
Media = Literal["image", "video"]
"""What is decoded. Each has an option named after it: `image_decode_device`, `video_decode_device`."""

INSTALL_HINT = (
    'pip install "energon-dali[cuda12]" (driver 525.60 or newer) or "energon-dali[cuda13]" (driver 580 or newer)'
)
MENDED_BY = (
    "Two commands mend it with a driver from 525.60 on: `pip install --force-reinstall torch --index-url "
    'https://download.pytorch.org/whl/cu126`, then `pip install "energon-dali[cuda12]"`; for CUDA 13 install a driver '
    "from 580 on instead. `energon-dali doctor` says which part is missing."
)
"""What makes a GPU usable that is there: a torch and a DALI that the driver supports."""
_WITHOUT_DALI: dict[Media, str] = {"image": "PIL", "video": "PyAV"}
_ON_THE_CPU: dict[Media, str] = {"image": "DALI on the CPU", "video": "PyAV, or DALI where it is faster, on the CPU"}
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu")
_said: set[str] = set()
_of_thread = threading.local()
"""`gpu`: the GPU that a thread took before torch used CUDA. `is_ours`: whether the thread follows LOCAL_RANK."""
_process = {"uses gpu": False, "forked from one that does": False}


@functools.cache
def load_dali() -> Any:
    """Returns the module nvidia.dali with its `fn` and `types`; takes 0.8 s the first time.

    Decoded images then come from DALI's pool, unless the user set the variable. The allocator would give their memory
    back to the system after each run: a pipeline of JPEGs of 100 KB had 30 to 40 page faults per image, from the pool
    none as long as few runs are held.
    """
    os.environ.setdefault(POOL_VARIABLE, _POOL_FROM)
    module = import_module("nvidia.dali")
    import_module("nvidia.dali.fn")
    # Exit handlers run last in, first out: these run before DALI's own, which destroys pipelines that a thread may use.
    for callback in _before_exit:
        atexit.register(callback)
    return module


@functools.cache
def load_backend() -> Any:
    """Returns the module nvidia.dali.backend: tensors, tensor lists, devices and memory."""
    load_dali()
    return import_module("nvidia.dali.backend")


def call_before_dali_exits(callback: Callable[[], None]) -> None:
    """Registers a function to be called at exit, before DALI destroys its pipelines; never if DALI was not loaded."""
    _before_exit.append(callback)


@dataclass(frozen=True, slots=True)
class Device:
    """Where DALI decodes."""

    kind: Literal["cpu", "gpu"]
    """The CPU or a GPU."""
    ordinal: int | None = None
    """Ordinal of the GPU as CUDA counts in this process; None on the CPU."""

    def __str__(self) -> str:
        return "cpu" if self.ordinal is None else f"gpu {self.ordinal}"


def check_device_option(name: str, option: object) -> None:
    """Checks that an option names a device.

    Args:
        name: Name of the option, for the message.
        option: The value that the user gave.

    Raises:
        ConfigError: It is neither "auto", "cpu", "gpu" nor an ordinal.
    """
    if option in ("auto", "cpu", "gpu") or (isinstance(option, int) and not isinstance(option, bool) and option >= 0):
        return
    raise ConfigError(
        f'{name}={option!r} is not a device. Give "auto", which takes the GPU where there is one, "cpu", "gpu", or '
        "the ordinal of a GPU (0, 1, ...)."
    )


@functools.cache  # asked for every image that is read, and the search takes longer than reading it
def has_dali() -> bool:
    """Returns whether DALI is installed; does not import it."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except (ImportError, ValueError):
        return False


def sees_gpu() -> bool:
    """Returns whether this machine shows an NVIDIA GPU; looks only at device files and the environment.

    For processes that must not touch CUDA. A device file does not prove that the driver works: whoever builds a
    pipeline calls `resolve_device`.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # CUDA ignores everything after the first invalid entry.
    if visible is not None and visible.split(",")[0].strip() in ("", "-1", "NoDevFiles"):
        return False
    return _any_file(_GPU_FILES)


@functools.cache
def _any_file(patterns: tuple[str, ...]) -> bool:
    return any(glob(pattern) for pattern in patterns)


def uses_dali(option: DeviceOption, media: Media = "image") -> bool:
    """Returns whether DALI decodes with this option; touches neither DALI nor CUDA.

    Args:
        option: `image_decode_device` or `video_decode_device` as the user gave it.
        media: Which of the two.

    Raises:
        DeviceError: The option names a device, and DALI or every sign of a GPU is missing.
    """
    if not has_dali():
        if option != "auto":
            raise DeviceError(
                f"{media}_decode_device={option!r} needs NVIDIA DALI, which is not installed. DALI decodes both "
                f'on the GPU and on the "cpu" device. Run {INSTALL_HINT}, or leave it at "auto" to decode with '
                f"{_WITHOUT_DALI[media]}."
            )
        # On a host with a GPU, whoever left "auto" expects the GPU.
        say_once(
            f"{_WITHOUT_DALI[media]} decodes {media}s in the workers: DALI is not installed. To use it: "
            f"{INSTALL_HINT}.",
            logging.WARNING if sees_gpu() else logging.INFO,
        )
        return False
    if option not in ("auto", "cpu") and not sees_gpu():
        why = "none is visible (no /dev/nvidia*, or CUDA_VISIBLE_DEVICES hides it)"
        raise DeviceError(_no_gpu(media, option, why))
    return True


def resolve_device(option: DeviceOption, media: Media = "image") -> Device:
    """Returns the device that an option means in this process. May initialise CUDA, so only the rank may call it.

    "auto" logs once which device it took, and why.

    Args:
        option: `image_decode_device` or `video_decode_device` as the user gave it.
        media: Which of the two.

    Raises:
        DeviceError: DALI or the GPU that the option names is not there, torch cannot use it, or the process was forked
            from one that uses CUDA.
    """
    if not uses_dali(option, media):
        raise DeviceError(f"DALI is not installed, so there is no device to decode on. Run {INSTALL_HINT}.")
    if option != "cpu" and sees_gpu():
        _check_fork(option, media)
    plural = f"{media.capitalize()}s"
    if option == "cpu" or (option == "auto" and not sees_gpu()):
        if option == "auto":
            say_once(f"{plural} are decoded by {_ON_THE_CPU[media]}: no NVIDIA GPU is visible.")
        return Device("cpu")
    count = _count_gpus()
    why = _why_unusable(count)
    if why is not None:
        if option == "auto":
            say_once(
                f"{plural} are decoded by {_ON_THE_CPU[media]}, although this machine has a GPU: {why}. {MENDED_BY}",
                logging.WARNING,
            )
            return Device("cpu")
        raise DeviceError(_no_gpu(media, option, why))
    ordinal = option if isinstance(option, int) else _current_gpu(count)
    if ordinal >= count:
        raise DeviceError(
            f"{media}_decode_device={ordinal} does not exist: CUDA sees {count} GPU(s), numbered from 0 to "
            f'{count - 1}. Give one of these numbers, or "gpu" for the current device of torch.'
        )
    if option == "auto":
        say_once(f"{plural} are decoded by DALI on GPU {ordinal}.")
    _process["uses gpu"] = True
    return Device("gpu", ordinal)


def say_once(message: str, level: int = logging.INFO) -> None:
    """Logs a message once per process, by default at level INFO."""
    if message not in _said:
        _said.add(message)
        _LOG.log(level, message)


def _count_gpus() -> int:
    try:
        return int(load_backend().GetCUDADeviceCount())
    except RuntimeError:  # a driver that is broken or too old
        return 0


def _why_unusable(count: int) -> str | None:
    """Returns why the GPUs that DALI counts cannot be used; None if they can.

    DALI and torch each bring a CUDA runtime, and the two may need different drivers. Both must work: DALI's outputs
    become torch tensors.
    """
    if count == 0:
        return "CUDA finds no usable GPU (driver missing, too old, or no device visible)"
    import torch

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built only for the CPU"
    return f"torch {torch.__version__} cannot use it: the driver is probably too old for CUDA {torch.version.cuda}"


def _check_fork(option: object, media: Media) -> None:
    """Raises DeviceError in a process that was forked from one that uses CUDA."""
    import torch

    in_bad_fork = getattr(torch.cuda, "_is_in_bad_fork", bool)
    if _process["forked from one that does"] or in_bad_fork():
        raise DeviceError(
            f"{media}_decode_device={option!r} does not work in this process: it was forked from one that had used a "
            'GPU, and CUDA does not work after a fork. Start the process with start_method="spawn" or "forkserver", '
            'fork before anything touches CUDA (torch.cuda.is_available() does), or give "cpu".'
        )


def use_device(device: Device) -> None:
    """Makes a GPU the current one of the calling thread; does nothing for the CPU.

    Each thread that this package starts must call this before it touches CUDA. The current device of a new thread is
    GPU 0, and whatever falls back to it (DALI's default stream, the end of `with torch.cuda.stream(...)`) would open a
    context on GPU 0 in every rank.
    """
    if device.kind == "gpu":
        import torch

        torch.cuda.set_device(device.ordinal)


def refuse_capture(what: str) -> None:
    """Refuses to hand decoded media over to a thread that captures a CUDA graph. Does not initialise CUDA.

    Args:
        what: The beginning of the message: what was asked for.

    Raises:
        ConfigError: The current CUDA stream of the calling thread is being captured.
    """
    import torch

    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        raise ConfigError(
            f"{what} while this thread captures a CUDA graph. The graph would read the memory of this one batch in "
            "every replay, and CUDA lets no captured stream wait for work outside of the graph. Take the batch before "
            "the capture, copy it into tensors that the graph reads, and copy each later batch there before the "
            "replay (docs/cuda-graphs.md)."
        )


def current_device(device: Device) -> AbstractContextManager[None]:
    """Makes a GPU the current one of the calling thread, which is the user's, inside a `with`; no effect on the CPU."""
    if device.kind == "cpu":
        return nullcontext()
    import torch

    gpu: AbstractContextManager[None] = torch.cuda.device(device.ordinal)
    return gpu


def follow_local_rank() -> None:
    """Makes "gpu" mean the GPU of LOCAL_RANK in the calling thread, whatever its current device is.

    For threads of this package that start before the trainer has taken its GPU. CUDA is not touched until something is
    decoded on a GPU. That GPU then becomes the thread's current device, for hooks as well.
    """
    _of_thread.is_ours = True


def take_gpu_of_rank() -> None:
    """Makes the GPU of LOCAL_RANK current in a thread that follows it (`follow_local_rank`), before it touches CUDA.

    A thread that only moves batches into page-locked memory asks CUDA about them, which would open a context on GPU 0
    in every rank. Does nothing in the trainer's own threads.
    """
    if not getattr(_of_thread, "is_ours", False) or hasattr(_of_thread, "gpu"):
        return
    import torch

    count = torch.cuda.device_count()
    if count:
        _current_gpu(count)


def device_works(device: Device) -> bool:
    """Returns whether a device still computes. After a CUDA error such as an illegal address a GPU no longer does.

    Waits for a tiny computation on its own CUDA stream, not for other work on the GPU.
    """
    if device.kind == "cpu":
        return True
    import torch

    try:
        with torch.cuda.stream(torch.cuda.Stream(device.ordinal)):  # type: ignore[no-untyped-call]
            return int(torch.ones(1, device=f"cuda:{device.ordinal}").add_(1).item()) == 2
    except RuntimeError:
        return False


def _current_gpu(count: int) -> int:
    """Returns the GPU that torch uses in this thread, or if torch uses none yet, the one of torchrun's LOCAL_RANK.

    A thread that took the latter keeps it: a new thread's current device is 0, whatever other threads set.
    """
    import torch

    chosen: int | None = getattr(_of_thread, "gpu", None)
    if chosen is not None and chosen < count:
        return chosen
    is_ours = getattr(_of_thread, "is_ours", False)
    if not is_ours and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.current_device())
    local_rank = os.environ.get("LOCAL_RANK", "0")
    _of_thread.gpu = int(local_rank) % count if local_rank.isdigit() else 0
    if is_ours:
        torch.cuda.set_device(_of_thread.gpu)
    return int(_of_thread.gpu)


def likely_gpu(option: DeviceOption) -> int:
    """Returns the ordinal of the GPU that an option will mean in this process; opens no context on it.

    Args:
        option: `video_decode_device` as the user gave it, other than "cpu".
    """
    if isinstance(option, int):
        return option
    import torch

    if not getattr(_of_thread, "is_ours", False) and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.current_device())
    local_rank = os.environ.get("LOCAL_RANK", "0")
    return int(local_rank) % max(1, torch.cuda.device_count()) if local_rank.isdigit() else 0


def _mark_fork() -> None:
    _process["forked from one that does"] |= _process["uses gpu"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_fork)


def _no_gpu(media: Media, option: object, why: str) -> str:
    return (
        f"{media}_decode_device={option!r} needs an NVIDIA GPU, and {why}. Make the GPU visible to this process and "
        "install a driver, a torch and an extra of DALI that fit together: `energon-dali doctor` says what is missing, "
        "and docs/installation.md#torch-dali-and-the-driver how to install it. Or give "
        '"cpu", or "auto" to take the GPU only where it can be used.'
    )
