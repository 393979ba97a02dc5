"""GPU memory that another process can open: a few calls of the CUDA driver that torch does not offer.

Memory of torch's allocator does not serve here. With expandable segments, and always with DALI's allocator, it is
virtual memory without an IPC handle. And torch's own way to share a tensor makes the receiver wait for its whole CUDA
stream whenever it drops one, and leaves a named file in /dev/shm when the sender is killed.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

from energon_dali.errors import DeviceFailedError

if TYPE_CHECKING:
    import torch

GRANULE = 2 << 20
"""Bytes: an allocation of a multiple of this shares its memory block with no other, so its handle opens it alone."""

_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


@cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    pointer, size = ctypes.c_uint64, ctypes.c_size_t
    library.cuMemAlloc_v2.argtypes = [ctypes.POINTER(pointer), size]
    library.cuMemFree_v2.argtypes = [pointer]
    library.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(_Handle), pointer]
    library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(pointer), _Handle, ctypes.c_uint]
    library.cuIpcCloseMemHandle.argtypes = [pointer]
    library.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return library


def _call(device: int, what: str, name: str, *arguments: Any) -> None:
    import torch

    with torch.cuda.device(device):
        torch.cuda.current_stream(device).query()  # makes the device's context current, which the driver's calls use
        code = getattr(_driver(), name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        reason = (text.value or b"unknown error").decode()
        raise DeviceFailedError(
            f"{what} on GPU {device} failed: {reason} ({name}, {code}). The decode process sends batches in memory "
            "of its own on the GPU: make room for them (a smaller batch_size or prefetch_factor), or use "
            "decode_process=False."
        )


def allocate(device: int, size: int) -> int:
    """Returns the address of new GPU memory.

    Args:
        device: Index of the GPU.
        size: Bytes, a multiple of GRANULE.

    Raises:
        DeviceFailedError: There is no room.
    """
    address = ctypes.c_uint64()
    _call(device, f"Allocating {size} bytes", "cuMemAlloc_v2", ctypes.byref(address), size)
    return address.value


def free(device: int, address: int) -> None:
    """Frees what `allocate` returned; every process that opened it must have closed it.

    Raises:
        DeviceFailedError: The driver refuses.
    """
    _call(device, "Freeing memory", "cuMemFree_v2", address)


def export(device: int, address: int) -> bytes:
    """Returns the handle by which another process opens what `allocate` returned.

    Raises:
        DeviceFailedError: The driver refuses.
    """
    handle = _Handle()
    _call(device, "Exporting memory", "cuIpcGetMemHandle", ctypes.byref(handle), address)
    return bytes(handle)


def open_memory(device: int, handle: bytes) -> int:
    """Returns the address, in this process, of another process's GPU memory.

    Raises:
        DeviceFailedError: The driver refuses.
    """
    address = ctypes.c_uint64()
    _call(
        device,
        "Opening memory of the decode process",
        "cuIpcOpenMemHandle_v2",
        ctypes.byref(address),
        _Handle.from_buffer_copy(handle),
        _LAZY_PEER_ACCESS,
    )
    return address.value


def close_memory(device: int, address: int) -> None:
    """Closes what `open_memory` opened.

    Raises:
        DeviceFailedError: The driver refuses.
    """
    _call(device, "Closing memory of the decode process", "cuIpcCloseMemHandle", address)


class DeviceBytes:
    """Bytes on a GPU as an array that torch can view.

    Args:
        address: Of the first byte.
        size: In bytes, at least 1.
        owner: Kept alive by every tensor over them.
    """

    def __init__(self, address: int, size: int, owner: object = None) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }

    def as_tensor(self, device: int) -> torch.Tensor:
        """Returns a view of them: uint8, one-dimensional."""
        import torch

        return torch.as_tensor(self, device=torch.device("cuda", device))
