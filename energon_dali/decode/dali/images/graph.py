"""The graph of an image pipeline: a value that says what it produces, and the DALI nodes that produce it.

On a GPU the graph makes the final layout and dtype: a torch operation per sample would release the interpreter lock
each time. On the CPU it mostly decodes and crops, and `finish_images` does the rest in less time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from energon_dali.decode.dali.images.codecs import decodes_regions
from energon_dali.decode.dali.runtime.device import load_dali
from energon_dali.decode.dali.runtime.pipeline import PipelineOptions, define_input
from energon_dali.decode.geometry import Geometry
from energon_dali.decode.interface import MediaHandle
from energon_dali.decode.operations import (
    CenterCrop,
    GeometricOperation,
    HorizontalFlip,
    Interpolation,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    crops_resized,
)
from energon_dali.decode.spec import ImageDtype, ImageLayout, ImageMode, ImageSpec

_GRAY_WEIGHTS = [19595 / 65536, 38470 / 65536, 7471 / 65536]
"""PIL's L = (19595 R + 38470 G + 7471 B + 32768) >> 16. All sums stay below 2**24, so float32 holds them exactly, and
DALI rounds halves up: equal for all 2**24 colours (tests/decode/dali/images/test_graph.py)."""
_UNIT_VALUES = [value / 255 for value in range(256)]
"""As float32 these equal numpy's float32 division by 255. A multiplication by 1/255 would not."""


@dataclass(frozen=True, slots=True)
class ImageGraph:
    """Everything that decides the graph of an image pipeline; equal graphs share one pipeline."""

    mode: ImageMode
    """Channels."""
    dtype: ImageDtype
    """Type of one value in the pipeline. DALI does not have bfloat16, which is float32 here."""
    layout: ImageLayout
    """Order of the axes."""
    upright: bool
    """Whether the EXIF orientation is applied."""
    crops: bool
    """Whether the image is cropped (only the region is decoded, where the format allows that)."""
    mean: tuple[float, ...] | None = None
    """Per channel, in units of [0, 1]; None without Normalize."""
    std: tuple[float, ...] | None = None
    """Likewise."""
    resamples: bool = False
    """Whether the size changes."""
    crops_resized: bool = False
    """Whether a crop follows a resize, so that the box is in fractions of source pixels."""
    flips: bool = False
    """Whether some images are mirrored."""
    size: tuple[int, int] | None = None
    """(height, width) of all results, if the operations alone decide it."""
    interpolation: Interpolation = "bilinear"
    """The filter."""
    antialias: bool = True
    """Whether the filter is widened when the image shrinks."""
    is_finished_later: bool = False
    """Whether `finish_images` makes the results of what the pipeline decodes and crops."""
    inputs: tuple[str, ...] = field(init=False, compare=False)
    """Names of the inputs besides "encoded", in the order of `geometry_rows`."""

    def __post_init__(self) -> None:
        names: tuple[str, ...] = ("start", "shape") if self.crops else ()
        names += ("roi_start", "roi_end") if self.crops_resized else ()
        names += ("size",) if self.resamples and self.size is None else ()
        object.__setattr__(self, "inputs", names + (("mirror",) if self.flips else ()))

    @classmethod
    def from_spec(cls, spec: ImageSpec, device: Literal["cpu", "gpu"] = "gpu") -> ImageGraph:
        """Returns the graph that produces what a spec asks for.

        Args:
            spec: What to produce.
            device: Where the pipeline decodes.
        """
        normalize, operations = spec.normalize, spec.geometric
        if device == "cpu" and can_finish(spec):
            return cls(
                mode="RGB",
                dtype="uint8",
                layout="HWC",
                upright=spec.apply_exif_orientation,
                crops=_crops(operations),
                is_finished_later=True,
            )
        # A front end resamples: DALI only decodes, crops and flips.
        resamples = spec.front_end is None and any(isinstance(op, (Resize, RandomResizedCrop)) for op in operations)
        return cls(
            mode=spec.mode,
            dtype="float32" if spec.dtype == "bfloat16" else spec.dtype,
            layout=spec.layout,
            upright=spec.apply_exif_orientation,
            crops=_crops(operations),
            mean=None if normalize is None else _per_channel(normalize.mean, spec.channels),
            std=None if normalize is None else _per_channel(normalize.std, spec.channels),
            resamples=resamples,
            crops_resized=crops_resized(operations),
            flips=any(isinstance(op, HorizontalFlip) for op in operations),
            size=_fixed_size(operations) if resamples else None,
            interpolation=spec.interpolation,
            antialias=spec.antialias,
        )


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


@dataclass(slots=True, eq=False)
class ImageBatch:
    """Images that run through a pipeline together."""

    handles: list[MediaHandle]
    """Screened images that DALI's parser accepts."""
    geometries: list[Geometry | None]
    """Window, size and flip of each; None leaves the image as it is."""
    inputs: tuple[Any, ...] = ()
    """What the pipeline reads while it runs: DALI keeps no reference to the Python objects."""

    def __len__(self) -> int:
        return len(self.handles)

    def select(self, positions: Sequence[int]) -> ImageBatch:
        """Returns a batch of some of the images."""
        return ImageBatch([self.handles[i] for i in positions], [self.geometries[i] for i in positions])


@functools.lru_cache(maxsize=256)  # asked for every block
def bytes_per_pixel(spec: ImageSpec) -> int:
    """Returns the bytes per source pixel while it is decoded: the RGB bytes, and the result if it is not resampled."""
    graph = ImageGraph.from_spec(spec)
    width = {"uint8": 1, "float16": 2, "float32": 4}[graph.dtype]
    return 3 + (0 if graph.size is not None else (3 if graph.dtype != "uint8" else 0) + width * len(graph.mode))


def define_pipeline(graph: ImageGraph, options: PipelineOptions) -> Any:
    """Returns the output node of a pipeline with the inputs "encoded" and `graph.inputs`.

    Call this and the next two functions inside a pipeline's scope.
    """
    encoded = define_input("encoded", load_dali().types.UINT8, 1)
    return define_graph(encoded, define_inputs(graph), graph, options)


def define_inputs(graph: ImageGraph) -> dict[str, Any]:
    """Returns the nodes of `graph.inputs` by name."""
    types = load_dali().types
    return {
        name: define_input(
            name, types.FLOAT if name in ("roi_start", "roi_end", "size") else types.INT32, 0 if name == "mirror" else 1
        )
        for name in graph.inputs
    }


def define_graph(encoded: Any, arguments: dict[str, Any], graph: ImageGraph, options: PipelineOptions) -> Any:
    """Returns the output node of the graph after a node of encoded images.

    Args:
        encoded: Node of uint8[n] samples on the CPU.
        arguments: Nodes of `graph.inputs` by name.
        graph: What to produce.
        options: Where and how it is decoded.
    """
    dali = load_dali()
    fn, types = dali.fn, dali.types

    image = _decode(encoded, arguments, graph, options)
    if graph.mode == "L":
        image = fn.coord_transform(image, M=_GRAY_WEIGHTS, T=[0.0], dtype=types.UINT8)
    if graph.resamples:
        roi = {name: arguments[name] for name in ("roi_start", "roi_end") if name in arguments}
        size = arguments["size"] if graph.size is None else [float(side) for side in graph.size]
        kinds = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC, "nearest": types.INTERP_NN}
        kind = kinds[graph.interpolation]
        image = fn.resize(image, size=size, interp_type=kind, antialias=graph.antialias, **roi)
    return _finish(image, arguments.get("mirror"), graph)


def _decode(encoded: Any, arguments: dict[str, Any], graph: ImageGraph, pipeline: PipelineOptions) -> Any:
    dali = load_dali()
    fn, types = dali.fn, dali.types

    # Always RGB: a grayscale JPEG with ANY_DATA ends the process (SIGSEGV), and GRAY does not use PIL's formula.
    options: dict[str, Any] = {"device": "cpu", "output_type": types.RGB, "adjust_orientation": graph.upright}
    if pipeline.device.kind == "gpu":
        # Threads are not pinned to cores, because several pipelines share them.
        options |= {"device": "mixed", "affine": False, **pipeline.tuning.image_decoder_options}
    if not graph.crops:
        return fn.decoders.image(encoded, **options)
    if decodes_whole(pipeline):
        image = fn.decoders.image(encoded, **options)
        return fn.slice(image, start=arguments["start"], shape=arguments["shape"], axis_names="HW")
    return fn.decoders.image_slice(
        encoded, start=arguments["start"], shape=arguments["shape"], axis_names="HW", **options
    )


def decodes_whole(pipeline: PipelineOptions) -> bool:
    """Returns whether to decode the whole image and then crop it, because the GPU cannot decode a region.

    DALI's CPU threads would decode the region. Without interpolated chroma the GPU could do it, but its pixels would
    differ more from the CPU's (docs/gpu-evidence.md), and entropy decoding needs the whole file in any case.
    """
    return pipeline.device.kind == "gpu" and not decodes_regions(pipeline.tuning.jpeg_fancy_upsampling)


def _finish(image: Any, mirror: Any, graph: ImageGraph) -> Any:
    """Returns the image with its flip, alpha channel, dtype and layout."""
    dali = load_dali()
    fn, types = dali.fn, dali.types

    flip = {} if mirror is None else {"mirror": mirror}
    layout = "CHW" if graph.layout == "CHW" else "HWC"
    narrow = {"float32": types.FLOAT, "float16": types.FLOAT16, "uint8": types.UINT8}[graph.dtype]
    # Not crop_mirror_normalize(pad_output=True): it fills with zeros and ignores fill_values (DALI 2.4.0).
    alpha = {"shape": [4], "fill_value": 255}
    if graph.mean is not None and graph.std is not None:
        if graph.mode == "RGBA":
            image = fn.pad(image, axes=[2], **alpha)
        mean, std = [255 * value for value in graph.mean], [255 * value for value in graph.std]
        image = fn.crop_mirror_normalize(image, dtype=narrow, output_layout=layout, mean=mean, std=std, **flip)
    else:
        if layout == "CHW":
            # In five sixths of the time of fn.transpose, on the CPU.
            image = fn.crop_mirror_normalize(
                image, dtype=types.UINT8, output_layout="CHW", mean=[0.0], std=[1.0], **flip
            )
        elif mirror is not None:
            image = fn.flip(image, horizontal=mirror)
        if graph.mode == "RGBA":
            image = fn.pad(image, axes=[0 if layout == "CHW" else 2], **alpha)
        if graph.dtype != "uint8":
            image = fn.lookup_table(image, keys=list(range(256)), values=_UNIT_VALUES, dtype=narrow)
    return fn.squeeze(image, axes=[2]) if graph.layout == "HW" else image


def _crops(operations: tuple[GeometricOperation, ...]) -> bool:
    return any(isinstance(op, (CenterCrop, RandomCrop, RandomResizedCrop)) for op in operations)


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values * channels if len(values) == 1 else values


def _fixed_size(operations: tuple[GeometricOperation, ...]) -> tuple[int, int] | None:
    """Returns (height, width) of the result if the operations alone decide it."""
    for operation in reversed(operations):
        if not isinstance(operation, HorizontalFlip):
            return (operation.size[0], operation.size[1]) if isinstance(operation.size, tuple) else None
    return None
