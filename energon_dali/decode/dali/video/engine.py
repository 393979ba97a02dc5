"""Decodes blocks of clips with one pipeline: the value that says what it produces, its DALI nodes, and its engine.

On the CPU the graph makes the final colours, dtype and layout, on DALI's threads and without the interpreter lock. On a
GPU it makes bytes in DALI's colours, and `energon_dali.kernels.color_matrix` does the rest in one pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.runtime.blocks import FutureGroup, bring_to_device, copy_to_torch, split_block
from energon_dali.decode.dali.runtime.device import Device, load_backend, load_dali
from energon_dali.decode.dali.runtime.engine import DaliEngine, Run
from energon_dali.decode.dali.runtime.failure import first_line, raise_if_device_failed
from energon_dali.decode.dali.runtime.pipeline import Pipeline, PipelineOptions, define_input
from energon_dali.decode.dali.video.eligibility import count_decoded_bytes
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome
from energon_dali.decode.pyav import decode_audio_of_clips, decode_by_pyav, render_video
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.kernels.backend import on_device
from energon_dali.kernels.color_matrix import ColorMatrix, convert_colors
from energon_dali.samples.kinds import Clips

if TYPE_CHECKING:
    import torch

_UNIT_VALUES = [value / 255 for value in range(256)]
_LOG = logging.getLogger(__name__)


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
    if graph.corrects:
        weights, offsets = define_input("weights", types.FLOAT, 2), define_input("offsets", types.FLOAT, 1)
        video = fn.coord_transform(video, M=weights, T=offsets, dtype=types.UINT8)
    if graph.layout == "FCHW":
        video = fn.transpose(video, perm=[0, 3, 1, 2])
    if graph.dtype != "uint8":
        narrow = {"float32": types.FLOAT, "float16": types.FLOAT16}[graph.dtype]
        video = fn.lookup_table(video, keys=list(range(256)), values=_UNIT_VALUES, dtype=narrow)
    return video


@dataclass(slots=True, eq=False)
class ClipBatch:
    """Videos that run through a pipeline together."""

    handles: list[ClipsHandle]
    """Eligible videos of one spec."""
    inputs: tuple[Any, ...] = ()
    """What the pipeline reads while it runs: DALI keeps no reference to the Python objects."""


class DaliVideoEngine(DaliEngine[VideoGraph, ClipBatch]):
    """The engine of one video graph."""

    media = "video"

    def submit(self, handles: Sequence[MediaHandle], *, stream: Any = None) -> Future[list[Outcome]]:
        block = FutureGroup(len(handles), stream)
        clips = cast("Sequence[ClipsHandle]", handles)
        if not clips:
            return block.future
        # The decoded frames, and the result.
        sizes = [(position, 2 * count_decoded_bytes(handle)) for position, handle in enumerate(clips)]
        runs = split_block(sizes, most_samples=self.options.max_batch_size, most_bytes=self._memory.run_bytes)
        self.enqueue(
            [Run(block, positions, ClipBatch([clips[i] for i in positions]), size) for positions, size in runs]
        )
        return block.future

    def define(self) -> Any:
        return define_video_pipeline(self.graph, self.options)

    def set_inputs(self, pipeline: Pipeline, batch: ClipBatch) -> None:
        backend = load_backend()
        TensorCPU, TensorListCPU = backend.TensorCPU, backend.TensorListCPU  # noqa: N806 - classes
        rows = batch_rows(self.graph, batch.handles)
        lists = {
            name: TensorListCPU([TensorCPU(row, "") for row in column], contiguous=False)
            for name, column in rows.items()
        }
        for name, values in lists.items():
            pipeline.feed_input(name, values)
        batch.inputs = (rows, lists)

    def take(self, outputs: Any, batch: ClipBatch, stream: Any) -> list[Any]:
        import torch

        values: list[Any] = []
        copies_to = self.options.tuning.copies_to(self.device)
        copied = None if copies_to is None else copy_to_torch(outputs, copies_to, stream)
        for handle, frames in zip(batch.handles, take_frames(outputs, batch.handles, stream, copied), strict=True):
            if frames is None:  # a bad file for which DALI did not raise
                _LOG.debug("%r: DALI did not return the number of frames that was asked for", handle)
                values.append(self._decode_by_pyav(handle, stream))
                continue
            try:
                clips = decode_audio_of_clips(handle)
            except DecodeError as error:
                values.append(DecodeFailure(error.reason, error.format or handle.format, error.route, handle.source))
                continue
            clips.frames, clips.timestamps = frames, torch.from_numpy(handle.timestamps)
            if handle.spec.front_end is not None and self.device.kind == "gpu":
                # Kernels are only started here. On the CPU other threads render: `dispatch`.
                with torch.cuda.stream(stream):
                    values.append(self._render(handle, clips, stream))
                continue
            values.append(clips)
        return values

    def _render(self, handle: ClipsHandle, clips: Clips, stream: Any) -> Any:
        """Returns what a front end makes of clips on a GPU; what it cannot make there, PyAV and the CPU make."""
        try:
            return render_video(handle, clips)
        except DecodeError as error:
            return DecodeFailure(error.reason, error.format or handle.format, error.route, handle.source)
        except (
            RuntimeError
        ) as error:  # torch refuses what its kernels cannot compute, and reports a failed GPU likewise
            raise_if_device_failed(error, self.device, "video", 4 * count_decoded_bytes(handle))
            _LOG.debug("%r: torch says %r", handle, first_line(error))
            return self._decode_by_pyav(handle, stream)

    def rescue(
        self, run: Run[ClipBatch], run_alone: Callable[[ClipBatch], list[Outcome]], stream: Any
    ) -> list[Outcome]:
        handles = run.batch.handles
        error = run.error
        outcomes: list[Outcome] = []
        for handle in handles:
            if len(handles) > 1:
                try:
                    outcomes += run_alone(ClipBatch([handle]))
                    continue
                except Exception as alone:  # DALI raises RuntimeError; a device's errors are raised below
                    error = alone
            assert error is not None
            raise_if_device_failed(error, self.device, "video", 2 * count_decoded_bytes(handle))
            _LOG.debug("%r: DALI says %r", handle, first_line(error))
            outcomes.append(self._decode_by_pyav(handle, stream))
        return outcomes

    def _decode_by_pyav(self, handle: ClipsHandle, stream: Any) -> Outcome:
        try:
            outcome = decode_by_pyav(handle, lambda frames: bring_to_device(frames, self.device, stream))
        except ConfigError as error:  # frames that were there when the clips were chosen, but no longer are
            return DecodeFailure(str(error), handle.format, "pyav", handle.source)
        return Decoded(outcome.value, "fallback") if isinstance(outcome, Decoded) else outcome


def batch_rows(graph: VideoGraph, handles: Sequence[ClipsHandle]) -> dict[str, list[Any]]:
    """Returns the inputs of a graph by name, with one value per video.

    Returns:
        "encoded": the files. "frames": int32[n], the wanted frames in ascending order, each once. "size": float32[2],
        (height, width). "weights": float32[3, 3], "offsets": float32[3], the colour correction.
    """
    rows: dict[str, list[Any]] = {
        "encoded": [handle.data for handle in handles],
        "frames": [np.unique(handle.frame_indices).astype(np.int32) for handle in handles],
    }
    if graph.resizes:
        sizes = [handle.spec.output_size(handle.width, handle.height) for handle in handles]
        rows["size"] = [np.array([height, width], np.float32) for width, height in sizes]
    if graph.corrects:
        corrections = [find_correction(handle) for handle in handles]
        rows["weights"] = [np.array(correction.weights, np.float32) for correction in corrections]
        rows["offsets"] = [np.array(correction.offsets, np.float32) for correction in corrections]
    return rows


def take_frames(
    outputs: Any, handles: Sequence[ClipsHandle], stream: Any = None, copied: list[torch.Tensor] | None = None
) -> list[torch.Tensor | None]:
    """Returns the clips of each video of a TensorList, in the dtype and layout of the handles' spec.

    Clips of one size are consecutive views of one memory, so that stacking them again needs no copy, unless frames
    repeat or are not in the order of time. Nothing overwrites them.

    Args:
        outputs: TensorListCPU with the final values, or TensorListGPU of uint8 [frames, H, W, 3] in DALI's colours.
        handles: The videos, of one spec.
        stream: torch.cuda.Stream on which the values will be used, where the list is on a GPU. Nothing waits.
        copied: What `copy_to_torch` made of a list on a GPU, to be used in its place.

    Returns:
        Tensors [clips, frames, 3, H, W], or with the channels last, on the list's device; None where DALI did not
        return the number of frames that was asked for.
    """
    import torch

    if type(outputs).__name__ != "TensorListGPU":
        videos = [_arrange(video, handle) for video, handle in zip(_rows(outputs), handles, strict=True)]
        if handles[0].spec.dtype == "bfloat16":  # DALI does not have bfloat16: its pipeline returns float32
            videos = [None if video is None else video.to(torch.bfloat16) for video in videos]
    else:
        with torch.cuda.stream(stream):
            videos = _finish_on_gpu(outputs, handles, copied)
    return [
        None if video is None else video.view(*handle.frame_indices.shape, *video.shape[1:])
        for video, handle in zip(videos, handles, strict=True)
    ]


def _finish_on_gpu(
    outputs: Any, handles: Sequence[ClipsHandle], copied: list[torch.Tensor] | None
) -> list[torch.Tensor | None]:
    from torch.utils.dlpack import from_dlpack

    spec = handles[0].spec
    corrections = [find_correction(handle) for handle in handles]
    if copied is None and outputs.is_dense_tensor() and all(map(_is_in_order, handles)):
        whole = from_dlpack(outputs.as_tensor())
        if all(handle.frame_indices.size == whole.shape[1] for handle in handles):
            return list(convert_colors(whole, corrections, dtype=spec.dtype, layout=spec.layout).unbind(0))
    rows = _rows(outputs) if copied is None else copied
    videos = [_arrange(row, handle) for row, handle in zip(rows, handles, strict=True)]
    return [
        None if video is None else convert_colors(video[None], [each], dtype=spec.dtype, layout=spec.layout)[0]
        for video, each in zip(videos, corrections, strict=True)
    ]


def _rows(outputs: Any) -> list[torch.Tensor]:
    import torch
    from torch.utils.dlpack import from_dlpack

    if outputs.is_dense_tensor():
        return list(from_dlpack(outputs.as_tensor()).unbind(0))
    if type(outputs).__name__ == "TensorListGPU":
        return [from_dlpack(video) for video in outputs]
    return [torch.from_numpy(np.asarray(video)) for video in outputs]


def _is_in_order(handle: ClipsHandle) -> bool:
    return bool((np.diff(handle.frame_indices.ravel()) > 0).all())


def _arrange(frames: torch.Tensor, handle: ClipsHandle) -> torch.Tensor | None:
    """Returns the frames repeated and ordered as in the clips; None if their number is not the wanted one."""
    import torch

    wanted, positions = np.unique(handle.frame_indices, return_inverse=True)
    if len(frames) != wanted.size:
        return None
    if _is_in_order(handle):
        return frames
    return frames.index_select(0, on_device(torch.from_numpy(positions.ravel()), frames.device))
