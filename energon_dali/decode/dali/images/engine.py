"""Decodes blocks of images with one pipeline: divides them into runs, sets its inputs, takes and finishes its outputs.

Most results of the CPU are finished here: resampled, flipped, normalised and in their layout. numpy and torch take less
time for this than DALI's operators: decoded and finished, crops of 224 pixels take 0.6 of the CPU time, 0.44 with
bicubic, and uint8 at full size 0.92 (`python -m benchmarks.finishing`). The arithmetic is that of `decode.images`; only
resampling differs, by rounding.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from energon_dali.decode.dali.images.codecs import image_route
from energon_dali.decode.dali.images.graph import ImageBatch, ImageGraph, bytes_per_pixel, define_pipeline
from energon_dali.decode.dali.images.recovery import decode_by_pil, decode_suspects
from energon_dali.decode.dali.runtime.blocks import (
    RESULT_BYTES,
    RESULTS,
    FutureGroup,
    bring_to_device,
    copy_to_torch,
    split_block,
)
from energon_dali.decode.dali.runtime.device import Device, load_backend
from energon_dali.decode.dali.runtime.engine import DaliEngine, Run
from energon_dali.decode.dali.runtime.failure import first_line, raise_if_device_failed
from energon_dali.decode.dali.runtime.host_decoding import host_threads, num_host_threads
from energon_dali.decode.dali.runtime.pipeline import Pipeline
from energon_dali.decode.front_ends import VisionInput
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.geometry import Geometry, handle_geometry, upright_size
from energon_dali.decode.interface import DecodeFailure, MediaHandle, Outcome, Route
from energon_dali.decode.spec import ImageSpec
from energon_dali.errors import DecodeError
from energon_dali.shards.storage.local import LEAST_BYTES

if TYPE_CHECKING:
    import torch


_MOST_BYTES = RESULT_BYTES // 4
"""Larger results do not get memory that is used again."""
_MOST_BYTES_OF_ONE = 4 << 20
"""Pixels of larger images are reordered in place."""
_LEAST_IMAGES = 4
"""Images per thread: starting a thread's part takes as long as finishing a small image."""
_FLOAT_BYTES = 4
"""Of a pixel's channel while it is resampled on a GPU."""
_MOST_BYTES_AT_ONCE = 256 << 20
"""Most memory of images as float32 that a GPU resamples together."""
_LOG = logging.getLogger(__name__)
_of_thread = threading.local()
"""`scratch`: uint8[n], in which a thread reorders the pixels of an image."""


class DaliImageEngine(DaliEngine[ImageGraph, ImageBatch]):
    """The engine of one image graph. A block costs about 15 us per handle in the thread that submits it."""

    media = "image"

    def submit(self, handles: Sequence[MediaHandle], *, stream: Any = None) -> Future[list[Outcome]]:
        block = FutureGroup(len(handles), stream)
        if not handles:
            return block.future
        spec = handles[0].spec
        geometries: list[Geometry | None] = [None] * len(handles)
        refused: set[int] = set()
        for position, handle in enumerate(handles) if spec.geometric else ():
            try:
                geometries[position] = handle_geometry(handle)
            except DecodeError as error:
                refused.add(position)
                block.put([position], [DecodeFailure(error.reason, handle.format, "screen", handle.source)])
        pixel_bytes = bytes_per_pixel(spec)
        sizes = [(i, each.width * each.height * pixel_bytes) for i, each in enumerate(handles) if i not in refused]
        runs = split_block(sizes, most_samples=self.options.max_batch_size, most_bytes=self._memory.run_bytes)
        self.enqueue(
            [
                Run(block, run, ImageBatch([handles[i] for i in run], [geometries[i] for i in run]), size)
                for run, size in runs
            ]
        )
        return block.future

    @property
    def kept_bytes(self) -> int:
        """What nvJPEG allocates for each thread of the pipeline."""
        return self.options.num_threads * self.options.tuning.device_memory_padding

    def define(self) -> Any:
        return define_pipeline(self.graph, self.options)

    def set_inputs(self, pipeline: Pipeline, batch: ImageBatch) -> None:
        """Sets the inputs of a pipeline to a batch; costs about 2 us per image, whatever its size.

        The data is not copied: the batch keeps alive what DALI reads until the outputs are there.
        """
        backend = load_backend()
        TensorCPU, TensorListCPU = backend.TensorCPU, backend.TensorListCPU  # noqa: N806 - classes
        encoded = TensorListCPU([TensorCPU(handle.data, "") for handle in batch.handles], contiguous=False)
        pipeline.feed_input("encoded", encoded)
        set_geometry_inputs(pipeline, self.graph, batch)
        batch.inputs = (encoded, *batch.inputs)

    def take(self, outputs: Any, batch: ImageBatch, stream: Any) -> list[Any]:
        spec = batch.handles[0].spec
        values = take_results(
            outputs, self.graph, batch, self.options.num_threads, stream, self.options.tuning.copies_to(self.device)
        )
        if self.device.kind == "gpu" and spec.front_end is not None:
            import torch

            # Kernels are only started here. On the CPU other threads render: `dispatch`.
            with torch.cuda.stream(stream):
                return self._render_all(batch.handles, values, stream)
        return values

    def _render_all(self, handles: Sequence[MediaHandle], values: Sequence[torch.Tensor], stream: Any) -> list[Any]:
        """Returns what a front end makes of images on a GPU; those of one size and layout are rendered together."""
        rendered: list[Any] = [None] * len(handles)
        for positions in _alike(handles, values):
            made: list[VisionInput] | None = None
            if len(positions) > 1:
                # Where one of them fails, each is rendered alone, and its own error found.
                with suppress(DecodeError, RuntimeError):
                    made = render_alike(handles[positions[0]], [values[position] for position in positions])
            for number, position in enumerate(positions):
                rendered[position] = (
                    self._render(handles[position], values[position], stream) if made is None else made[number]
                )
        return rendered

    def _render(self, handle: MediaHandle, pixels: torch.Tensor, stream: Any) -> VisionInput | Outcome:
        """Returns what a front end makes of an image on a GPU; what it cannot make there, PIL makes on the CPU."""
        try:
            return render(handle, pixels)
        except DecodeError as error:
            return DecodeFailure(error.reason, error.format or handle.format, error.route, handle.source)
        except (
            RuntimeError
        ) as error:  # torch refuses what its kernels cannot compute, and reports a failed GPU likewise
            raise_if_device_failed(error, self.device, needed_bytes=pixels.numel() * _FLOAT_BYTES)
            _LOG.debug("%r: torch says %r", handle, first_line(error))
            return decode_by_pil(handle, first_line(error), lambda value: bring_to_device(value, self.device, stream))

    def route_of(self, batch: ImageBatch, position: int) -> Route:
        return "dali-cpu" if self.device.kind == "cpu" else image_route(batch.handles[position].format)

    def rescue(
        self, run: Run[ImageBatch], run_alone: Callable[[ImageBatch], list[Outcome]], stream: Any
    ) -> list[Outcome]:
        assert run.error is not None
        return decode_suspects(
            run.batch,
            run.error,
            run_alone,
            self.suspend_pipeline,
            lambda value: bring_to_device(value, self.device, stream),
            self.device,
        )


def render(handle: MediaHandle, pixels: torch.Tensor) -> VisionInput:
    """Returns what the front end of a handle makes of its pixels.

    Args:
        handle: A handle whose spec has a front end.
        pixels: uint8[H, W, 3], decoded, turned, cropped and flipped, but not resampled.
    """
    front_end = handle.spec.front_end
    assert front_end is not None
    return front_end.render(Pixels(tensor=pixels.permute(2, 0, 1)), handle.layout)


def render_alike(handle: MediaHandle, pixels: Sequence[torch.Tensor]) -> list[VisionInput]:
    """Returns what a front end makes of several images of one size and layout, with as many kernels as for one.

    Args:
        handle: Of one of them.
        pixels: uint8[H, W, 3] each, as for `render`.
    """
    import torch

    front_end = handle.spec.front_end
    assert front_end is not None
    return front_end.render_alike(torch.stack(list(pixels)).permute(0, 3, 1, 2), handle.layout)


def _alike(handles: Sequence[MediaHandle], values: Sequence[torch.Tensor]) -> list[list[int]]:
    """Returns the positions of the images of each size and layout, in parts that are resampled together."""
    groups: dict[Any, list[int]] = {}
    for position, (handle, value) in enumerate(zip(handles, values, strict=True)):
        try:
            key: Any = (tuple(value.shape), handle.layout)
        except DecodeError:  # raised again, and reported, when it is rendered
            key = position
        groups.setdefault(key, []).append(position)
    parts = []
    for positions in groups.values():
        most = max(1, _MOST_BYTES_AT_ONCE // max(1, _FLOAT_BYTES * values[positions[0]].numel()))
        parts += [positions[first : first + most] for first in range(0, len(positions), most)]
    return parts


def set_geometry_inputs(pipeline: Pipeline, graph: ImageGraph, batch: ImageBatch) -> None:
    """Sets `graph.inputs` to the geometries of a batch, which keeps them alive until the outputs are there."""
    tensor_list = load_backend().TensorListCPU
    arrays = geometry_rows(graph, batch)
    lists = [tensor_list(array) for array in arrays.values()]
    for name, rows in zip(arrays, lists, strict=True):
        pipeline.feed_input(name, rows)
    batch.inputs = (arrays, lists)


def geometry_rows(graph: ImageGraph, batch: ImageBatch) -> dict[str, NDArray[Any]]:
    """Returns the arrays for `graph.inputs`, one row per image.

    Args:
        graph: Says which inputs there are.
        batch: A batch of n images.

    Returns:
        "start", "shape": int32[n, 2], the window (y, x). "roi_start", "roi_end": float32[n, 2], the box inside the
        window. "size": float32[n, 2], (height, width) of the result. "mirror": int32[n].
    """
    names = graph.inputs
    if not names:
        return {}
    rows: list[tuple[float, ...]] = []
    for handle, geometry in zip(batch.handles, batch.geometries, strict=True):
        if geometry is None:
            geometry = Geometry.whole(*upright_size(handle))
        top, left, height, width = geometry.window
        box_top, box_left = geometry.top - top, geometry.left - left
        bottom, right = min(box_top + geometry.height, height), min(box_left + geometry.width, width)
        size = (geometry.out_height, geometry.out_width)
        rows.append((top, left, height, width, box_top, box_left, bottom, right, *size, geometry.flip))
    table = np.array(rows, np.float64)  # float64[n, 11]
    columns: dict[str, tuple[slice | int, type[np.generic]]] = {
        "start": (slice(0, 2), np.int32),
        "shape": (slice(2, 4), np.int32),
        "roi_start": (slice(4, 6), np.float32),
        "roi_end": (slice(6, 8), np.float32),
        "size": (slice(8, 10), np.float32),
        "mirror": (10, np.int32),
    }
    return {name: np.ascontiguousarray(table[:, columns[name][0]], columns[name][1]) for name in names}


def take_results(
    images: Any,
    graph: ImageGraph,
    batch: ImageBatch,
    num_threads: int,
    stream: Any = None,
    copies_to: Device | None = None,
) -> list[Any]:
    """Returns one result per image of a TensorList, made by its graph and, if need be, by `finish_images`.

    Args:
        images: TensorListCPU or TensorListGPU.
        graph: Of the pipeline.
        batch: The images of the run.
        num_threads: Most threads that finish them.
        stream: See `take_values`.
        copies_to: The GPU, where tensors are copied into torch's memory: `DaliTuning.copies_to_torch`.
    """
    spec = batch.handles[0].spec
    if not graph.is_finished_later:
        if copies_to is not None and spec.container == "torch":
            return _narrowed(copy_to_torch(images, copies_to, stream), spec, stream)
        return take_values(images, spec, stream)
    return finish_images(_rows_of_arrays(images), batch.geometries, spec, num_threads)


def _narrowed(tensors: list[Any], spec: ImageSpec, stream: Any) -> list[Any]:
    """Returns the tensors of a GPU in the dtype of a spec: DALI does not have bfloat16, and returns float32."""
    if spec.dtype != "bfloat16":
        return tensors
    import torch

    with torch.cuda.stream(stream):
        return [tensor.to(torch.bfloat16) for tensor in tensors]


def take_values(images: Any, spec: ImageSpec, stream: Any = None) -> list[Any]:
    """Returns one value per image of a TensorList, as the spec's container.

    No value is copied. Tensors and arrays of one size are consecutive views of one memory, so stacking them again needs
    no copy. They keep that memory alive, and nothing overwrites it. Results of different sizes on the CPU are made
    through numpy, because torch.from_numpy does not release the interpreter lock.

    Args:
        images: TensorListCPU or TensorListGPU.
        spec: Decides container and dtype; the pipeline already made the layout.
        stream: torch.cuda.Stream on which the values will be used, where the list is on a GPU. Nothing waits.

    Returns:
        Torch tensors on the list's device, or numpy arrays, or PIL images.
    """
    on_gpu = type(images).__name__ == "TensorListGPU"
    if spec.container != "torch":
        arrays = _rows_of_arrays(images.as_cpu() if on_gpu else images)
        return [Image.fromarray(array) for array in arrays] if spec.container == "pil" else arrays
    import torch

    if on_gpu:
        with torch.cuda.stream(stream):
            return _tensors(images, spec)
    return _tensors(images, spec)


def _tensors(images: Any, spec: ImageSpec) -> list[Any]:
    import torch
    from torch.utils.dlpack import from_dlpack

    narrow = spec.dtype == "bfloat16"  # DALI does not have bfloat16: its pipeline returns float32
    if images.is_dense_tensor():
        batch = from_dlpack(images.as_tensor())
        return list((batch.to(torch.bfloat16) if narrow else batch).unbind(0))
    if type(images).__name__ == "TensorListGPU":
        tensors = split_memory(images)
    else:
        tensors = [torch.from_numpy(np.asarray(image)) for image in images]
    return [tensor.to(torch.bfloat16) for tensor in tensors] if narrow else tensors


def split_memory(images: Any) -> list[Any]:
    """Returns one tensor per sample of a TensorListGPU, whose samples may differ in size: views of one memory if it is.

    This makes two torch calls for all samples, each of which releases the interpreter lock, instead of one per sample
    with an event on the CUDA stream.
    """
    from torch import from_numpy
    from torch._utils import _unflatten_dense_tensors
    from torch.utils.dlpack import from_dlpack

    shapes: list[tuple[int, ...]] = images.shape()
    try:
        memory = images.as_reshaped_tensor([sum(map(math.prod, shapes))])
    except RuntimeError:  # the samples were allocated one by one
        return [from_dlpack(image) for image in images]
    # _unflatten_dense_tensors reads only their shapes. Making these one-byte arrays does not release the lock.
    byte = np.zeros(1, np.uint8)
    templates = [from_numpy(np.lib.stride_tricks.as_strided(byte, shape, (0,) * len(shape))) for shape in shapes]
    return list(_unflatten_dense_tensors(from_dlpack(memory), templates))  # type: ignore[no-untyped-call]


def _rows_of_arrays(images: Any) -> list[Any]:
    if images.is_dense_tensor():
        return list(np.asarray(images.as_tensor()))
    return [np.asarray(image) for image in images]


def finish_images(
    images: Sequence[NDArray[np.uint8]], geometries: Sequence[Geometry | None], spec: ImageSpec, num_threads: int
) -> list[Any]:
    """Returns one result per image, in several threads. Results of one size are consecutive views of one memory.

    Args:
        images: uint8[h, w, 3] each: the window of its geometry. Their memory may become that of the results.
        geometries: Of the images.
        spec: One for which `can_finish` is true.
        num_threads: Most threads.

    Returns:
        Torch tensors, numpy arrays or PIL images, in the layout and of the dtype of the spec.
    """
    shapes = [_shape(image, geometry, spec) for image, geometry in zip(images, geometries, strict=True)]
    dtype = np.dtype({"uint8": np.uint8, "float16": np.float16}.get(spec.dtype, np.float32))
    memory = None
    if len(set(shapes)) == 1 and not _stay_in_place(images, geometries, spec):
        memory = _new_array((len(images), *shapes[0]), dtype)
        targets = list(memory)
    else:
        targets = [
            image.reshape(shape) if _stay_in_place([image], [geometry], spec) else _new_array(shape, dtype)
            for image, geometry, shape in zip(images, geometries, shapes, strict=True)
        ]

    def finish(positions: Iterable[int]) -> None:
        for position in positions:
            _finish(images[position], geometries[position], spec, targets[position])

    count = max(1, min(num_threads, num_host_threads() + 1, len(images) // _LEAST_IMAGES))
    parts = [range(first, len(images), count) for first in range(count)]
    others = [(part, host_threads().submit(finish, part)) for part in parts[1:]]
    finish(parts[0])
    for part, done in others:
        if done.cancel():  # the threads are busy: waiting for their turn would take longer
            finish(part)
        else:
            done.result()
    if spec.container != "torch":
        return [Image.fromarray(target) for target in targets] if spec.container == "pil" else targets
    import torch

    tensors = [torch.from_numpy(target) for target in targets] if memory is None else torch.from_numpy(memory).unbind(0)
    return [tensor.to(torch.bfloat16) for tensor in tensors] if spec.dtype == "bfloat16" else list(tensors)


def _new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns an array whose memory is used again when nobody sees it any more, unless it is small or large."""
    size = math.prod(shape) * dtype.itemsize
    if not LEAST_BYTES <= size <= _MOST_BYTES:
        return np.empty(shape, dtype)
    return np.frombuffer(RESULTS.take(size), dtype).reshape(shape)


def _stay_in_place(images: Sequence[NDArray[np.uint8]], geometries: Sequence[Geometry | None], spec: ImageSpec) -> bool:
    """Returns whether images become their results in place: as they are, or because other memory would be too much."""
    if spec.dtype != "uint8" or any(geometry is not None and geometry.resamples for geometry in geometries):
        return False
    return spec.layout == "HWC" or max(image.size for image in images) > _MOST_BYTES_OF_ONE


def _shape(image: NDArray[np.uint8], geometry: Geometry | None, spec: ImageSpec) -> tuple[int, int, int]:
    if geometry is not None and geometry.resamples:
        height, width = geometry.out_height, geometry.out_width
    else:
        height, width = image.shape[:2]
    return (3, height, width) if spec.layout == "CHW" else (height, width, 3)


def _finish(pixels: NDArray[np.uint8], geometry: Geometry | None, spec: ImageSpec, target: NDArray[Any]) -> None:
    """Writes the result of an image to a target, which may be its own memory."""
    source = pixels
    if geometry is not None and geometry.resamples:
        source = _resampled(pixels, geometry, spec)
    if geometry is not None and geometry.flip:
        source = source[:, ::-1]
    if spec.layout == "CHW":
        source = source.transpose(2, 0, 1)
    if spec.dtype == "uint8":
        if np.may_share_memory(source, target):
            if source is pixels:
                return
            scratch = _scratch(target.size).reshape(target.shape)
            np.copyto(scratch, source)
            source = scratch
        np.copyto(target, source)
        return
    values = target if target.dtype == np.float32 else np.empty(target.shape, np.float32)
    np.divide(source, np.float32(255), out=values, dtype=np.float32)
    if spec.normalize is not None:
        shape = (-1, 1, 1) if spec.layout == "CHW" else (-1,)
        values -= np.array(spec.normalize.mean, np.float32).reshape(shape)
        values /= np.array(spec.normalize.std, np.float32).reshape(shape)
    if values is not target:
        target[...] = values


def _resampled(pixels: NDArray[np.uint8], geometry: Geometry, spec: ImageSpec) -> NDArray[np.uint8]:
    """Returns uint8[out_height, out_width, 3]."""
    import torch

    image = Pixels(tensor=torch.from_numpy(pixels).permute(2, 0, 1))
    resized = image.resized(geometry.out_height, geometry.out_width, spec.interpolation, "torch")
    return resized.tensor.permute(1, 2, 0).numpy()


def _scratch(size: int) -> NDArray[np.uint8]:
    scratch: NDArray[np.uint8] | None = getattr(_of_thread, "scratch", None)
    if scratch is None or len(scratch) < size:
        scratch = _of_thread.scratch = np.empty(size, np.uint8)
    return scratch[:size]
