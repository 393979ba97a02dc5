"""The CUDA device and stream of the thread that runs the rank's pipeline, and how batches reach the trainer's stream.

A new thread starts on GPU 0 and its default stream, whatever `torch.cuda.set_device` and `torch.cuda.stream` selected
in the trainer's thread. The rank's thread takes the trainer's device, so that "gpu" means the same GPU in both, and a
CUDA stream of its own, so that decoding and hooks wait for no training step, and no training step waits for them.

A batch changes CUDA streams when the trainer takes it: the trainer's stream waits for the work that made the batch, and
memory of torch's allocator is not reused before the trainer's work on it is done. (DALI does the latter itself: it
frees a tensor that torch dropped when the device has finished all work submitted before; see DALI's dltensor.cc.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

from energon_dali.decode.dali.runtime.device import follow_local_rank, take_gpu_of_rank
from energon_dali.samples.transfer import attributes_of, pin_batch

ReadyEvents = tuple[tuple[int, Any], ...]
"""(GPU index, torch.cuda.Event after the work that made a batch there), one per GPU."""

_PLAIN = (str, bytes, bytearray, memoryview, int, float, complex, type(None), type, FunctionType, ModuleType)


class CudaHandoff:
    """Hands batches from the rank's thread to the trainer's. Created in the trainer's thread; without CUDA in use it
    does nothing.

    Args:
        cuda: torch.cuda, or a stand-in for it.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._device: int | None = None
        self._trainer: Any = None
        if cuda.is_initialized():  # any further question would initialise CUDA here
            self._device = cuda.current_device()
            self._trainer = cuda.current_stream(self._device)

    def enter(self) -> None:
        """Moves the calling thread, the rank's, to the trainer's device and a new CUDA stream on it."""
        if self._device is None:
            follow_local_rank()  # the trainer has not chosen its GPU yet
            return
        self._cuda.set_device(self._device)
        # Other allocators refuse record_stream for memory that is not their own, such as DALI's.
        own = self._trainer
        if self._cuda.get_allocator_backend() == "native":
            own = self._cuda.Stream(self._device)
            own.wait_stream(self._trainer)  # what the hooks hold of the trainer's is ready
        self._cuda.set_stream(own)

    def record(self, element: Any) -> ReadyEvents:
        """Returns what the trainer's CUDA streams must wait for before they use an element; for the rank's thread."""
        if not self._cuda.is_initialized():
            return ()
        devices = set() if self._device is None else {self._device}
        for tensor in find_cuda_tensors(element):
            devices.add(tensor.device.index)
            if tensor.device.index == self._device:
                self._record_stream(tensor, self._trainer)
        events = []
        for device in sorted(devices):
            event = self._cuda.Event()
            event.record(self._cuda.current_stream(device))
            events.append((device, event))
        return tuple(events)

    def receive(self, element: Any, ready: ReadyEvents) -> None:
        """Lets the calling thread's current CUDA streams, the trainer's, use an element; the host does not wait."""
        elsewhere = {}
        for device, event in ready:
            stream = self._cuda.current_stream(device)
            stream.wait_event(event)
            if stream != self._trainer:
                elsewhere[device] = stream
        if elsewhere:
            for tensor in find_cuda_tensors(element):
                if tensor.device.index in elsewhere:
                    self._record_stream(tensor, elsewhere[tensor.device.index])

    def _record_stream(self, tensor: Any, stream: Any) -> None:
        if self._cuda.get_allocator_backend() == "native":
            for part in strided_parts(tensor):
                part.record_stream(stream)


def pin_for_trainer(batch: Any) -> Any:
    """Returns a batch in page-locked memory; a thread of ours takes the rank's GPU before it asks CUDA for any."""
    take_gpu_of_rank()
    return pin_batch(batch)


def strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors that hold the memory of a tensor: itself, or the parts of a sparse or jagged one."""
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
    """Yields each GPU tensor inside a batch once: in mappings, sequences and attributes."""
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
            waiting.extend(attributes_of(found).values())
        elif hasattr(found, "__dict__"):
            waiting.extend(vars(found).values())
