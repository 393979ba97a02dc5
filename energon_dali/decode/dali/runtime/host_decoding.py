"""Threads of the rank that decode single files, on CUDA streams of their own, next to the engines of DALI."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from energon_dali.decode.dali.runtime.blocks import bring_to_device, seal, work_stream
from energon_dali.decode.dali.runtime.device import Device, use_device
from energon_dali.decode.interface import Decoded, MediaHandle, Outcome
from energon_dali.decode.media_decoder import decode_on_cpu
from energon_dali.host_cores import cores_per_rank, divide_cores

_of_thread = threading.local()
"""`streams`: the CUDA streams on which a thread works, by device."""


@dataclass(slots=True, eq=False, repr=False)
class DecodedHandle(MediaHandle):
    """An image that PIL decoded in a worker, to be moved to a GPU by the rank; `data` is empty.

    A worker must not touch the GPU, and the rank's process has few threads to spare for PIL.
    """

    pixels: Any = None
    """Torch tensor, numpy array or PIL image, as the spec says, or what its front end makes of the image."""

    def decode(self) -> Any:
        """Returns the pixels, on the CPU."""
        return self.pixels


def decode_on_host(handle: MediaHandle, device: Device, consumer: Any) -> Future[list[Outcome]]:
    """Starts to decode a handle on the CPU, or to move what a worker decoded, and copies the values to the device.

    Args:
        handle: The handle.
        device: Where the other values of the block are.
        consumer: torch.cuda.Stream on which they will be used.
    """
    return host_threads().submit(run_on_stream, device, consumer, partial(_decode, handle, device))


def _decode(handle: MediaHandle, device: Device, stream: Any) -> Outcome:
    def bring(value: Any) -> Any:
        return bring_to_device(value, device, stream)

    if isinstance(handle, DecodedHandle):
        return Decoded(bring(handle.decode()), "pil")
    return decode_on_cpu(handle, bring)


def run_on_stream(device: Device, consumer: Any, decode: Callable[[Any], Outcome]) -> list[Outcome]:
    """Returns the outcome of work on a CUDA stream of the calling thread, which is one of ours.

    Args:
        device: Where the values of the outcome are.
        consumer: torch.cuda.Stream on which they will be used.
        decode: Called with the torch.cuda.Stream on which it works; None on the CPU.
    """
    use_device(device)
    streams: dict[Device, Any] = _of_thread.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = work_stream(device)
    work = streams[device]
    outcome = decode(consumer if work is None else work)
    seal([outcome], work, consumer)
    return [outcome]


def num_host_threads() -> int:
    """Returns the threads of this process that do on the CPU what DALI does not: PIL, PyAV, front ends, finishing."""
    return divide_cores(cores_per_rank(), gpu=True).fallbacks


def host_threads() -> ThreadPoolExecutor:
    """Returns these threads, which are started when they are first needed."""
    return _threads("energon-dali-pil", num_host_threads())


def video_threads(count: int) -> ThreadPoolExecutor:
    """Returns the threads that feed hardware decoders with videos, one each; started when they are first needed.

    Args:
        count: Of the threads; that of the first call holds for the process.
    """
    return _threads("energon-dali-video", count)


def _threads(name: str, count: int) -> ThreadPoolExecutor:
    with _pools_lock:
        if name not in _pools:
            _pools[name] = ThreadPoolExecutor(count, thread_name_prefix=name)
        return _pools[name]


def _forget_pools() -> None:
    """After a fork: the threads exist only in the parent."""
    global _pools, _pools_lock
    _pools, _pools_lock = {}, threading.Lock()


_pools: dict[str, ThreadPoolExecutor]
_pools_lock: threading.Lock
_forget_pools()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
