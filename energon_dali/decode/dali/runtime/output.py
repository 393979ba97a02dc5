"""Hands a pipeline's output to torch, numpy or PIL: one hand-over of the interpreter lock per batch, no copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.interface import Decoded, Outcome
from energon_dali.samples.transfer import map_tensors

if TYPE_CHECKING:
    import torch

    from energon_dali.decode.spec import ImageSpec


def take_values(images: Any, spec: ImageSpec, stream: Any = None) -> list[Any]:
    """Returns one value per image of a TensorList, as the spec's container.

    Tensors and arrays of one size are consecutive views of one memory, so that stacking them again needs no copy; they
    keep that memory alive and are never overwritten. Results of different sizes are made through numpy where they
    are on the CPU, because creating a torch tensor from an array does not release the interpreter lock.

    Args:
        images: TensorListCPU or TensorListGPU.
        spec: Its container and dtype are looked at; the layout is what the pipeline made.
        stream: torch.cuda.Stream on which the values are to be used, where the list is on a GPU. Nothing waits.

    Returns:
        Torch tensors on the list's device, or numpy arrays, or PIL images.
    """
    on_gpu = type(images).__name__ == "TensorListGPU"
    if spec.container != "torch":
        arrays = _rows_of_arrays(images.as_cpu() if on_gpu else images)
        return [_pil_image(array) for array in arrays] if spec.container == "pil" else arrays
    import torch

    if on_gpu:
        with torch.cuda.stream(stream):
            return _tensors(images, spec)
    return _tensors(images, spec)


def bring_to_device(value: Any, device: Device, stream: Any) -> Any:
    """Returns a value of PIL or PyAV on a device; arrays and PIL images stay where they are.

    On a GPU it is copied from page-locked memory on `stream`, and the host does not wait for it.

    Args:
        value: Torch tensor, numpy array or PIL image.
        device: Where the other values of its block are.
        stream: torch.cuda.Stream that copies.
    """
    if device.kind == "cpu" or not hasattr(value, "pin_memory"):
        return value
    import torch

    with torch.cuda.stream(stream):
        return value.pin_memory().to(f"cuda:{device.ordinal}", non_blocking=True)


def work_stream(device: Device) -> Any:
    """Returns a new torch.cuda.Stream for a thread of ours to work on, beside the consumer's stream.

    None on the CPU, and where torch's allocator is not its own: other allocators refuse `record_stream` for memory that
    is not theirs, such as DALI's, and all work is done on the consumer's stream there.
    """
    if device.kind == "cpu":
        return None
    import torch

    if torch.cuda.get_allocator_backend() != "native":
        return None
    stream: Any = torch.cuda.Stream
    return stream(device.ordinal)


def seal(outcomes: Sequence[Outcome], work: Any, consumer: Any) -> None:
    """Notes in outcomes when their values are ready, and keeps the values' memory until the consumer has used it.

    Args:
        outcomes: What was made on `work`.
        work: torch.cuda.Stream that made the values; None where it was the consumer's, which has nothing to wait for.
        consumer: torch.cuda.Stream on which the values will be used.
    """
    if work is None:
        return
    import torch

    decoded = [outcome for outcome in outcomes if isinstance(outcome, Decoded)]
    kept: set[int] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # Once per memory: each call gives the interpreter lock away, and the images of a block are views of one memory.
        memory = tensor if tensor._base is None else tensor._base
        if tensor.is_cuda and id(memory) not in kept:
            kept.add(id(memory))
            memory.record_stream(consumer)
        return tensor

    for outcome in decoded:
        map_tensors(outcome.value, keep)
    make_event: Any = torch.cuda.Event
    event = make_event()
    event.record(work)
    for outcome in decoded:
        outcome.ready = event


def consumer_stream(device: Device) -> Any:
    """Returns the torch.cuda.Stream that is current in the calling thread; None on the CPU."""
    if device.kind == "cpu":
        return None
    import torch

    return torch.cuda.current_stream(device.ordinal)


def count_bytes(images: Any) -> int:
    """Returns the number of bytes that a TensorList holds."""
    itemsize = {"UINT8": 1, "FLOAT16": 2, "FLOAT": 4}[images.dtype.name]
    shapes: list[tuple[int, ...]] = images.shape()
    if images.is_dense_tensor():
        return len(shapes) * math.prod(shapes[0]) * itemsize
    return sum(map(math.prod, shapes)) * itemsize


def _tensors(images: Any, spec: ImageSpec) -> list[Any]:
    import torch
    from torch.utils.dlpack import from_dlpack

    narrow = spec.dtype == "bfloat16"  # DALI has no bfloat16: its pipeline gives float32
    if images.is_dense_tensor():
        batch = from_dlpack(images.as_tensor())
        return list((batch.to(torch.bfloat16) if narrow else batch).unbind(0))
    if type(images).__name__ == "TensorListGPU":
        tensors = split_memory(images)
    else:
        tensors = [torch.from_numpy(np.asarray(image)) for image in images]
    return [tensor.to(torch.bfloat16) for tensor in tensors] if narrow else tensors


def split_memory(images: Any) -> list[Any]:
    """Returns one tensor per sample of a TensorListGPU, which may differ in size: views of one memory where it is one.

    Two calls of torch for all samples, each of which gives the interpreter lock away, instead of one per sample with an
    event on the stream.
    """
    from torch import from_numpy
    from torch._utils import _unflatten_dense_tensors
    from torch.utils.dlpack import from_dlpack

    shapes: list[tuple[int, ...]] = images.shape()
    try:
        memory = images.as_reshaped_tensor([sum(map(math.prod, shapes))])
    except RuntimeError:  # samples that were allocated one by one
        return [from_dlpack(image) for image in images]
    # What the shapes are read from: arrays of one byte, as making them does not give the lock away.
    byte = np.zeros(1, np.uint8)
    templates = [from_numpy(np.lib.stride_tricks.as_strided(byte, shape, (0,) * len(shape))) for shape in shapes]
    return list(_unflatten_dense_tensors(from_dlpack(memory), templates))  # type: ignore[no-untyped-call]


def _rows_of_arrays(images: Any) -> list[Any]:
    if images.is_dense_tensor():
        return list(np.asarray(images.as_tensor()))
    return [np.asarray(image) for image in images]


def _pil_image(array: Any) -> Any:
    from PIL import Image

    return Image.fromarray(array)
