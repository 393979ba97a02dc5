"""What a video pipeline produces, as a value, and the DALI graph that produces it.

On the CPU the graph makes the final colours, dtype and layout; DALI's threads do it and need no interpreter lock. On
a GPU it gives bytes in DALI's colours, and `energon_dali.kernels.color_matrix` makes the rest in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.decode.dali.device import Device
from energon_dali.decode.dali.library import Pipeline, load_dali
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
        return cls(
            spec.size is not None, corrects, "float32" if spec.dtype == "bfloat16" else spec.dtype, spec.layout
        )


def find_correction(handle: ClipsHandle) -> ColorMatrix:
    """Returns what leads from DALI's colours, BT.601 always, to the colours of the file.

    Full and limited range DALI tells apart itself; the correction is the same for both.
    """
    assert handle.colour is not None, "videos without known colours do not suit DALI"
    assert handle.colour.matrix != "rgb", "nor do those in RGB"
    return ColorMatrix.between("bt601", handle.colour.matrix)


def build_video_pipeline(graph: VideoGraph, device: Device, *, num_threads: int, max_batch_size: int) -> Pipeline:
    """Returns a built pipeline: inputs "encoded", "frames", and "size", "weights", "offsets" as the graph says.

    Args:
        graph: What to produce.
        device: Where to decode.
        num_threads: CPU threads of the pipeline.
        max_batch_size: Largest number of videos per run.

    Raises:
        RuntimeError: DALI cannot build it.
    """
    dali = load_dali()
    fn, types = dali.fn, dali.types

    pipeline = dali.Pipeline(
        batch_size=max_batch_size, num_threads=num_threads, device_id=device.ordinal, prefetch_queue_depth=1,
        exec_dynamic=True, set_affinity=False,
    )  # fmt: skip
    with pipeline:
        encoded = _input("encoded", types.UINT8, 1)
        # Without padding a frame that is not there is an error; otherwise it would be black, and nobody would know.
        options: dict[str, Any] = {"device": "cpu", "frames": _input("frames", types.INT32, 1), "pad_mode": "none"}
        if device.kind == "gpu":
            options |= {"device": "mixed", "affine": False}
        video = fn.decoders.video(encoded, **options)
        if graph.resizes:
            # Widened when it shrinks, as swscale's bilinear filter is.
            video = fn.resize(
                video, size=_input("size", types.FLOAT, 1), interp_type=types.INTERP_LINEAR, antialias=True
            )
        pipeline.set_outputs(_finish(video, graph))
    pipeline.build()
    built: Pipeline = pipeline
    return built


def _finish(video: Any, graph: VideoGraph) -> Any:
    dali = load_dali()
    fn, types = dali.fn, dali.types

    if graph.corrects:
        video = fn.coord_transform(
            video, M=_input("weights", types.FLOAT, 2), T=_input("offsets", types.FLOAT, 1), dtype=types.UINT8
        )
    if graph.layout == "FCHW":
        video = fn.transpose(video, perm=[0, 3, 1, 2])
    if graph.dtype != "uint8":
        narrow = {"float32": types.FLOAT, "float16": types.FLOAT16}[graph.dtype]
        video = fn.lookup_table(video, keys=list(range(256)), values=_UNIT_VALUES, dtype=narrow)
    return video


def _input(name: str, dtype: Any, ndim: int) -> Any:
    return load_dali().fn.external_source(name=name, no_copy=True, batch=True, dtype=dtype, ndim=ndim)
