"""What the hardware video decoder of a GPU (NVDEC) can do, asked once per GPU, and what its decoders keep in memory.

DALI reports a missing NVDEC like a bad video. So the route of a video is decided before, from the driver's own answer.
The rank asks before its workers start, and the answer travels to them as plain data.

Source: cuviddec.h and nvcuvid.h of NVIDIA's Video Codec SDK 13.0, as torchcodec 0.17 ships them.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from energon_dali.decode.dali.runtime.blocks import DeviceMemory
from energon_dali.decode.dali.runtime.device import Device, current_device, say_once

LIBRARY = "libnvcuvid.so.1"
_DRIVER = "libcuda.so.1"
REMEDY = (
    "It belongs to the driver. In containers set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video (docker run -e, or "
    "ENV in the Dockerfile); on Debian and Ubuntu run apt-get install libnvidia-decode-NNN, NNN being the driver's "
    "first number."
)
"""What mends a missing library."""

_CODECS = {"h264": 4, "hevc": 8, "vp9": 10, "mpeg4": 2, "av1": 11}
"""Number of each codec in cudaVideoCodec, by FFmpeg's name."""
_CHROMA_420 = 1

_SURFACES = 22
"""Frames that a decoder keeps: up to 16 references, those being decoded, and those being shown."""
MOST_OF_DALI = 100
"""Decoders that DALI 2.4 keeps per GPU."""
_CACHES_PER_BUDGET = 4
"""The decoders may take this part of a budget."""


class _Capabilities(ctypes.Structure):
    """CUVIDDECODECAPS."""

    _fields_ = (
        ("codec", ctypes.c_int),
        ("chroma", ctypes.c_int),
        ("bit_depth_minus_8", ctypes.c_uint),
        ("_reserved1", ctypes.c_uint * 3),
        ("supported", ctypes.c_ubyte),
        ("engines", ctypes.c_ubyte),
        ("output_formats", ctypes.c_ushort),
        ("most_width", ctypes.c_uint),
        ("most_height", ctypes.c_uint),
        ("most_blocks", ctypes.c_uint),
        ("least_width", ctypes.c_ushort),
        ("least_height", ctypes.c_ushort),
        ("_histogram", ctypes.c_ubyte * 2),
        ("_bins", ctypes.c_ushort),
        ("_reserved3", ctypes.c_uint * 10),
    )


@dataclass(frozen=True, slots=True)
class CodecLimits:
    """What a GPU decodes of a codec, in 8 bits and 4:2:0."""

    width: tuple[int, int]
    """Fewest and most pixels."""
    height: tuple[int, int]
    """Likewise."""
    blocks: int
    """Most blocks of 16 x 16 pixels."""
    engines: int
    """Number of decoders of the GPU that work at the same time; 0 if the driver does not say."""

    def include(self, width: int, height: int) -> bool:
        """Returns whether frames of a size are decoded."""
        return (
            self.width[0] <= width <= self.width[1]
            and self.height[0] <= height <= self.height[1]
            and -(-width // 16) * -(-height // 16) <= self.blocks
        )


@dataclass(frozen=True, slots=True)
class Nvdec:
    """The answer of a driver."""

    codecs: dict[str, CodecLimits]
    """By FFmpeg's name; without those that the GPU does not decode."""
    obstacle: str = ""
    """Why nothing can be decoded; "" if something can."""

    def decodes(self, codec: str, width: int, height: int) -> bool:
        """Returns whether frames of a size are decoded.

        Args:
            codec: FFmpeg's name.
            width: In pixels.
            height: Likewise.
        """
        limits = self.codecs.get(codec)
        return limits is not None and limits.include(width, height)


def library_obstacle() -> str:
    """Returns why this process cannot load the driver's video library, "" if it can; does not touch CUDA."""
    return _load()[1]


@functools.cache
def _load() -> tuple[Any, str]:
    try:
        return ctypes.CDLL(LIBRARY), ""
    except OSError:
        return None, f"{LIBRARY} is missing"


@functools.cache
def ask_nvdec(ordinal: int) -> Nvdec:
    """Returns what a GPU decodes. Touches the driver, so only the rank may call it.

    No context is left on a GPU that this process does not use yet, so workers may still be forked.

    Args:
        ordinal: Of the GPU.
    """
    library, obstacle = _load()
    if library is None:
        return Nvdec({}, obstacle)
    try:
        with _context(ordinal):
            return _ask(library)
    except OSError as error:
        return Nvdec({}, str(error))


@contextmanager
def _context(ordinal: int) -> Iterator[None]:
    """Makes the context of a GPU current, which the driver's video library asks for.

    Raises:
        OSError: The driver cannot be used.
    """
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with current_device(Device("gpu", ordinal)):
            yield
        return
    driver = ctypes.CDLL(_DRIVER)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), ordinal)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxPushCurrent_v2", (context,)),
    ):
        status = getattr(driver, name)(*arguments)
        if status:
            raise OSError(f"{name} fails with CUDA error {status}")
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _ask(library: Any) -> Nvdec:
    codecs: dict[str, CodecLimits] = {}
    refused: set[int] = set()
    for name, number in _CODECS.items():
        asked = _Capabilities(codec=number, chroma=_CHROMA_420)
        status = library.cuvidGetDecoderCaps(ctypes.byref(asked))
        if status:
            refused.add(status)
        elif asked.supported:
            codecs[name] = CodecLimits(
                (asked.least_width, asked.most_width),
                (asked.least_height, asked.most_height),
                asked.most_blocks,
                asked.engines,
            )
    if codecs:
        return Nvdec(codecs)
    numbers = ", ".join(map(str, sorted(refused)))
    return Nvdec(
        {}, f"the driver refuses to say what NVDEC can do (CUDA error {numbers})" if refused else "it has none"
    )


def warn_without_nvdec(device: Device) -> None:
    """Warns once if a GPU decodes no video, with what mends it; does nothing on the CPU."""
    obstacle = "" if device.ordinal is None else ask_nvdec(device.ordinal).obstacle
    if obstacle:
        say_once(
            f"PyAV decodes all videos on the CPU: NVDEC of {device} cannot be used, {obstacle}. {REMEDY}",
            logging.WARNING,
        )


def decoder_bytes(width: int, height: int) -> int:
    """Returns the memory of a hardware decoder, estimated: its frames as NV12."""
    return _SURFACES * width * height * 3 // 2


class DecoderCache:
    """Counts the hardware decoders that a library keeps on a GPU, and bounds the memory that they may take.

    DALI frees none before it keeps 100 of them, of any sizes. Each of its threads may need one of each size.

    Args:
        memory: Of the GPU; the decoders count in its budget, of which they get a quarter.
        library: Name of the backend.
        most_decoders: Decoders that the library has at most.
    """

    def __init__(self, memory: DeviceMemory, library: str = "dali", most_decoders: int = MOST_OF_DALI) -> None:
        self._memory = memory
        self._library = library
        self._most_decoders = most_decoders
        self._most_bytes = (memory.budget_bytes or 0) // _CACHES_PER_BUDGET
        self._threads: dict[tuple[str, int, int], int] = {}
        self._lock = threading.Lock()

    def admit(self, codec: str, width: int, height: int, threads: int) -> bool:
        """Returns whether the library may decode a video; from then on, decoders of its size are counted.

        Args:
            codec: FFmpeg's name.
            width: In pixels.
            height: Likewise.
            threads: Threads of the library, each of which may need a decoder of the size.
        """
        size = (codec, width, height)
        with self._lock:
            known = self._threads.get(size, 0)
            if known >= threads:
                return True
            after = {**self._threads, size: threads}
            taken = _kept_bytes(after, self._most_decoders)
            if taken > self._most_bytes and self._threads:
                if not known:
                    say_once(
                        f"PyAV decodes videos of {width} x {height} ({codec}), and of further sizes that are as large: "
                        f"the hardware decoders of {len(self._threads)} sizes take a quarter of the memory that "
                        "gpu_memory_budget_bytes allows. A larger budget or a smaller num_threads mends it."
                    )
                return known > 0
            self._threads = after
            self._memory.keep(("NVDEC", self._library), taken)
            return True


def _kept_bytes(threads: dict[tuple[str, int, int], int], most_decoders: int) -> int:
    """Returns the memory of the largest decoders, as many as are kept."""
    left, total = most_decoders, 0
    for (_, width, height), count in sorted(threads.items(), key=lambda item: -decoder_bytes(*item[0][1:])):
        total += min(left, count) * decoder_bytes(width, height)
        left -= min(left, count)
    return total


_caches: WeakKeyDictionary[DeviceMemory, dict[str, DecoderCache]] = WeakKeyDictionary()
_caches_lock = threading.Lock()


def decoder_cache(memory: DeviceMemory, library: str = "dali", most_decoders: int = MOST_OF_DALI) -> DecoderCache:
    """Returns the cache of a library on a GPU; the arguments are those of `DecoderCache`."""
    with _caches_lock:
        of_gpu = _caches.setdefault(memory, {})
        if library not in of_gpu:
            of_gpu[library] = DecoderCache(memory, library, most_decoders)
        return of_gpu[library]
