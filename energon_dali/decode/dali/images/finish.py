"""Makes results of the images that DALI decodes on the CPU: resampled, flipped, normalised and in their layout.

numpy and torch take less time for this than DALI's operators: decoded and finished, crops of 224 pixels take 0.6 of the
CPU time, 0.44 with bicubic, and uint8 at full size 0.92 (`python -m benchmarks.finishing`). The arithmetic is that of
`decode.pil`; only resampling differs, by rounding.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from energon_dali.decode.dali.runtime.blocks import NUM_THREADS, RESULT_BYTES, RESULTS, host_threads
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.operations import RandomResizedCrop, Resize, crops_resized
from energon_dali.shards.storage.reused_buffers import LEAST_BYTES

if TYPE_CHECKING:
    from energon_dali.decode.geometry import Geometry
    from energon_dali.decode.spec import ImageSpec

Shape = tuple[int, int, int]

_MOST_BYTES = RESULT_BYTES // 4
"""Larger results do not get memory that is used again."""
_MOST_BYTES_OF_ONE = 4 << 20
"""Pixels of larger images are reordered in place."""
_LEAST_IMAGES = 4
"""Images per thread: starting a thread's part takes as long as finishing a small image."""
_of_thread = threading.local()
"""`scratch`: uint8[n], in which a thread reorders the pixels of an image."""


def can_finish(spec: ImageSpec) -> bool:
    """Returns whether `finish_images` makes the results of a spec.

    It makes RGB of what it need not resample, or of what torch resamples as PIL does: whole pixels that become fewer or
    more by a filter that is widened when the image shrinks.
    """
    if spec.front_end is not None or spec.mode != "RGB":
        return False
    if not any(isinstance(operation, (Resize, RandomResizedCrop)) for operation in spec.geometric):
        return True
    return spec.antialias and spec.interpolation in ("bilinear", "bicubic") and not crops_resized(spec.geometric)


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

    count = max(1, min(num_threads, NUM_THREADS + 1, len(images) // _LEAST_IMAGES))
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


def _shape(image: NDArray[np.uint8], geometry: Geometry | None, spec: ImageSpec) -> Shape:
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
