"""The CUDA device and stream of the thread that runs the rank's part, and how its batches reach the trainer's stream.

A new thread stands on GPU 0 and on its default stream, whatever `torch.cuda.set_device` and `torch.cuda.stream` said in
the trainer's. Here the rank's thread takes the trainer's device, so that "gpu" means the same GPU in both, and a stream
of its own, so that decoding and hooks wait for no training step and no training step waits for them. A batch changes
streams when the trainer takes it: the trainer's stream then waits for the work that made it, and memory of torch's
allocator is not used again before the trainer's work on it is done. (DALI does the latter itself: a tensor that torch
dropped is freed when the device has finished all that was begun before; read in DALI's source, dltensor.cc.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

from energon_dali.decode.dali.runtime.device import follow_local_rank

Seal = tuple[tuple[int, Any], ...]
"""(number of a GPU, torch.cuda.Event behind the work that made a batch there), one per GPU."""

_PLAIN = (str, bytes, bytearray, memoryview, int, float, complex, type(None), type, FunctionType, ModuleType)


class RankStream:
    """Where the rank's thread works; made in the trainer's thread. Without CUDA in use all of it does nothing.

    Args:
        cuda: torch.cuda, or what stands in for it.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._device: int | None = None
        self._trainer: Any = None
        if cuda.is_initialized():  # asking for more would begin to use CUDA here
            self._device = cuda.current_device()
            self._trainer = cuda.current_stream(self._device)

    def enter(self) -> None:
        """Puts the calling thread, the rank's, on the trainer's device and on a new stream of it."""
        if self._device is None:
            follow_local_rank()  # the trainer has not taken its GPU yet
            return
        self._cuda.set_device(self._device)
        # Another allocator refuses record_stream for memory that is not its own, such as DALI's.
        own = self._trainer
        if self._cuda.get_allocator_backend() == "native":
            own = self._cuda.Stream(self._device)
            own.wait_stream(self._trainer)  # what the hooks hold of the trainer's is ready
        self._cuda.set_stream(own)

    def seal(self, element: Any) -> Seal:
        """Returns what the trainer's streams wait for before they use an element; for the rank's thread."""
        if not self._cuda.is_initialized():
            return ()
        devices = set() if self._device is None else {self._device}
        for tensor in find_cuda_tensors(element):
            devices.add(tensor.device.index)
            if tensor.device.index == self._device:
                self._record(tensor, self._trainer)
        events = []
        for device in sorted(devices):
            event = self._cuda.Event()
            event.record(self._cuda.current_stream(device))
            events.append((device, event))
        return tuple(events)

    def hand_over(self, element: Any, seal: Seal) -> None:
        """Lets the current streams of the calling thread, the trainer's, use an element; nothing waits on the host."""
        elsewhere = {}
        for device, event in seal:
            stream = self._cuda.current_stream(device)
            stream.wait_event(event)
            if stream != self._trainer:
                elsewhere[device] = stream
        if elsewhere:
            for tensor in find_cuda_tensors(element):
                if tensor.device.index in elsewhere:
                    self._record(tensor, elsewhere[tensor.device.index])

    def _record(self, tensor: Any, stream: Any) -> None:
        if self._cuda.get_allocator_backend() == "native":
            for part in strided_parts(tensor):
                part.record_stream(stream)


def strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors that hold the memory of one: itself, or the parts of a sparse or a jagged tensor."""
    of_layout: dict[Any, tuple[str, ...]] = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
        torch.jagged: ("values", "offsets", "lengths"),
    }
    if tensor.layout == torch.strided:
        return [tensor]
    parts = [getattr(tensor, name)() for name in of_layout.get(tensor.layout, ())]
    return [part for part in parts if part is not None and part.is_cuda]


def find_cuda_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors on GPUs inside a batch, each once: in mappings, sequences and attributes."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, _PLAIN) or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            if found.is_cuda:
                yield found
        elif isinstance(found, Mapping):
            waiting.extend(found.values())
        elif isinstance(found, (list, tuple, set, frozenset)):
            waiting.extend(found)
        elif hasattr(found, "__dataclass_fields__"):
            waiting.extend(getattr(found, name) for name in found.__dataclass_fields__ if hasattr(found, name))
        elif hasattr(found, "__dict__"):
            waiting.extend(vars(found).values())
