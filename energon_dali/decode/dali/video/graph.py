"""The graph of a video pipeline: a value that says what it produces, and the DALI nodes that produce it.

On the CPU the graph makes the final colours, dtype and layout, on DALI's threads and without the interpreter lock. On a
GPU it makes bytes in DALI's colours, and `energon_dali.kernels.color_matrix` does the rest in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.library import load_dali
from energon_dali.decode.dali.runtime.pipeline import PipelineOptions, define_input
from energon_dali.kernels.color_matrix import ColorMatrix

_UNIT_VALUES = [value / 255 for value in range(256)]


@dataclass(frozen=True, slots=True)
class VideoGraph:
    """Everything that decides the graph of a video pipeline; equal graphs share one pipeline."""

    resizes: bool
    """Whether frames are resized."""
    corrects: bool
    """Whether colours are corrected inside the graph."""
    dtype: Literal["uint8", "float32", "float16"]
    """Type of one value in the pipeline. DALI does not have bfloat16, which is float32 here."""
    layout: Literal["FCHW", "FHWC"]
    """Order of the axes in the pipeline."""

    @classmethod
    def from_spec(cls, spec: VideoClips, device: Device, *, corrects: bool) -> VideoGraph:
        """Returns the graph for clips of a spec.

        Args:
            spec: The clips.
            device: Where they are decoded.
            corrects: Whether some have other colours than DALI produces; ignored on a GPU.
        """
        if device.kind == "gpu":
            return cls(spec.size is not None, False, "uint8", "FHWC")
        return cls(spec.size is not None, corrects, "float32" if spec.dtype == "bfloat16" else spec.dtype, spec.layout)


def find_correction(handle: ClipsHandle) -> ColorMatrix:
    """Returns the matrix from DALI's colours, which are always BT.601, to the colours of the file.

    DALI itself distinguishes full and limited range; the correction is the same for both.

    Raises:
        DecodeError: The colours were not looked up yet, and no frame can be decoded.
    """
    colour = handle.find_colour()
    assert colour.matrix != "rgb", "videos in RGB are not eligible for DALI"
    return ColorMatrix.between("bt601", colour.matrix)


def define_video_pipeline(graph: VideoGraph, pipeline: PipelineOptions) -> Any:
    """Returns the output node of a pipeline with the inputs "encoded", "frames", and those that the graph needs.

    Call it inside a pipeline's scope. The graph may need the inputs "size", "weights" and "offsets".

    Args:
        graph: What to produce.
        pipeline: Where and how it is decoded.
    """
    dali = load_dali()
    fn, types = dali.fn, dali.types

    encoded = define_input("encoded", types.UINT8, 1)
    # Without padding, a missing frame is an error. With it the frame would be black, and nobody would know.
    options: dict[str, Any] = {"device": "cpu", "frames": define_input("frames", types.INT32, 1), "pad_mode": "none"}
    if pipeline.device.kind == "gpu":
        options |= {"device": "mixed", "affine": False}
    video = fn.decoders.video(encoded, **options)
    if graph.resizes:
        # The filter is widened to shrink a frame, as swscale's bilinear filter is.
        size = define_input("size", types.FLOAT, 1)
        video = fn.resize(video, size=size, interp_type=types.INTERP_LINEAR, antialias=True)
    return _finish(video, graph)


def _finish(video: Any, graph: VideoGraph) -> Any:
    dali = load_dali()
    fn, types = dali.fn, dali.types

    if graph.corrects:
        weights, offsets = define_input("weights", types.FLOAT, 2), define_input("offsets", types.FLOAT, 1)
        video = fn.coord_transform(video, M=weights, T=offsets, dtype=types.UINT8)
    if graph.layout == "FCHW":
        video = fn.transpose(video, perm=[0, 3, 1, 2])
    if graph.dtype != "uint8":
        narrow = {"float32": types.FLOAT, "float16": types.FLOAT16}[graph.dtype]
        video = fn.lookup_table(video, keys=list(range(256)), values=_UNIT_VALUES, dtype=narrow)
    return video
