"""What a video pipeline produces, as a value, and the DALI graph that produces it.

On the CPU the graph makes the final colours, dtype and layout; DALI's threads do it and need no interpreter lock. On
a GPU it gives bytes in DALI's colours, and `energon_dali.kernels.color_matrix` makes the rest in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.library import load_dali
from energon_dali.decode.dali.runtime.pipeline import PipelineOptions, define_input
from energon_dali.kernels.color_matrix import ColorMatrix

if TYPE_CHECKING:
    from energon_dali.decode.clips import ClipsHandle, VideoClips

_UNIT_VALUES = [value / 255 for value in range(256)]


@dataclass(frozen=True, slots=True)
class VideoGraph:
    """All that decides the graph of a video pipeline; equal graphs share one pipeline."""

    resizes: bool
    """Whether frames change their size."""
    corrects: bool
    """Whether colours are corrected inside the graph."""
    dtype: Literal["uint8", "float32", "float16"]
    """Type of one value in the pipeline; bfloat16, which DALI does not have, is float32 here."""
    layout: Literal["FCHW", "FHWC"]
    """Order of the axes in the pipeline."""

    @classmethod
    def from_spec(cls, spec: VideoClips, device: Device, *, corrects: bool) -> VideoGraph:
        """Returns the graph for clips of a spec.

        Args:
            spec: The clips.
            device: Where they are decoded.
            corrects: Whether some of them have other colours than DALI gives; of no meaning on a GPU.
        """
        if device.kind == "gpu":
            return cls(spec.size is not None, False, "uint8", "FHWC")
        return cls(spec.size is not None, corrects, "float32" if spec.dtype == "bfloat16" else spec.dtype, spec.layout)


def find_correction(handle: ClipsHandle) -> ColorMatrix:
    """Returns what leads from DALI's colours, BT.601 always, to the colours of the file.

    Full and limited range DALI tells apart itself; the correction is the same for both.

    Raises:
        DecodeError: No frame can be decoded, and nobody has looked at the colours yet.
    """
    colour = handle.find_colour()
    assert colour.matrix != "rgb", "videos in RGB do not suit DALI"
    return ColorMatrix.between("bt601", colour.matrix)


def define_video_pipeline(graph: VideoGraph, pipeline: PipelineOptions) -> Any:
    """Returns the output node of a pipeline with the inputs "encoded", "frames", and those that the graph needs.

    To be called inside a pipeline's scope. The further inputs are "size", "weights" and "offsets".

    Args:
        graph: What to produce.
        pipeline: Where and how it is decoded.
    """
    dali = load_dali()
    fn, types = dali.fn, dali.types

    encoded = define_input("encoded", types.UINT8, 1)
    # Without padding a frame that is not there is an error; otherwise it would be black, and nobody would know.
    options: dict[str, Any] = {"device": "cpu", "frames": define_input("frames", types.INT32, 1), "pad_mode": "none"}
    if pipeline.device.kind == "gpu":
        options |= {"device": "mixed", "affine": False}
    video = fn.decoders.video(encoded, **options)
    if graph.resizes:
        # Widened when it shrinks, as swscale's bilinear filter is.
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
