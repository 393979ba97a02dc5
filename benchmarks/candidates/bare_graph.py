"""The graphs of bare DALI, as a user would write them without this package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.dlpack import from_dlpack

from benchmarks.candidates.files import suffixes_of
from benchmarks.candidates.outputs import CLIPS, CROP_PIXELS, FRAMES_PER_CLIP, MEAN, STD, make_patches
from benchmarks.candidates.task import LeftOutError, Task
from energon_dali.host_cores import cores_per_rank, divide_cores

_SEED = 42
_OF_VIDEOS = ("frames", "frames224", "frame-patches")
"""Outputs that are made of videos."""


def make_pipeline(define: Callable[[Any], Any], task: Task, *, default_threads: int = 0, **options: Any) -> Any:
    """Returns a pipeline that is not built yet.

    Args:
        define: Gets `nvidia.dali.fn` and returns the outputs.
        task: Its option `threads` overrides the number of CPU threads.
        default_threads: On the CPU; 0 are all cores. On a GPU there are as many as energon_dali has for the same media,
            because a ceiling with more threads would compare threads.
        **options: Of the pipeline.
    """
    dali: Any = importlib.import_module("nvidia.dali")
    cores = cores_per_rank()
    on_gpu = task.decodes_on == "gpu"
    threads = int(task.options.get("threads", 0)) or (gpu_threads(task.output) if on_gpu else default_threads or cores)
    settings = {
        "batch_size": task.batch_size,
        "num_threads": threads,
        "device_id": 0 if on_gpu else None,
        "prefetch_queue_depth": 2,
        **options,
    }
    return dali.pipeline_def(lambda: define(dali.fn))(**settings)


def gpu_threads(output: str) -> int:
    """Returns the threads that energon_dali's pipeline on a GPU has for an output."""
    shares = divide_cores(cores_per_rank(), gpu=True)
    return shares.videos if output in _OF_VIDEOS else shares.images


def decode_images(encoded: Any, task: Task) -> Any:
    """Returns the node of images for the output of a task; patches are cut later from "uint8"."""
    dali: Any = importlib.import_module("nvidia.dali")
    fn, types = dali.fn, dali.types
    # The chroma filter of energon_dali, which matches the CPU's.
    device = {"device": "mixed", "jpeg_fancy_upsampling": True} if task.decodes_on == "gpu" else {"device": "cpu"}
    if task.output == "float224":
        pixels = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], seed=_SEED, **device)
        pixels = fn.resize(pixels, size=[CROP_PIXELS, CROP_PIXELS])
        return fn.crop_mirror_normalize(
            pixels,
            mirror=fn.random.coin_flip(seed=_SEED),
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
        )
    pixels = fn.decoders.image(encoded, adjust_orientation=False, **device)
    if task.layout == "CHW" and not task.options.get("permute", False):
        pixels = fn.transpose(pixels, perm=[2, 0, 1])
    return pixels


def decode_videos(encoded: Any, frames: Sequence[int], task: Task) -> Any:
    """Returns the node of the clips of videos, one after the other: uint8[32, 3, H, W].

    Args:
        encoded: Node of encoded videos.
        frames: Numbers of the frames of all clips.
        task: Says the size.

    Raises:
        LeftOutError: DALI cannot decode the codec on this device.
    """
    dali: Any = importlib.import_module("nvidia.dali")
    fn = dali.fn
    if task.decodes_on == "cpu" and suffixes_of(task) == ["mp4"]:
        raise LeftOutError("DALI decodes no H.264 on the CPU.")
    device = "mixed" if task.decodes_on == "gpu" else "cpu"
    video = fn.decoders.video(encoded, frames=list(frames), pad_mode="none", device=device)
    if task.output == "frames224":
        video = fn.resize(video, size=[CROP_PIXELS, CROP_PIXELS])
    return fn.transpose(video, perm=[0, 3, 1, 2])


def as_output(pixels: Any, task: Task) -> Any:
    """Returns DALI's batch in the form of the workload: torch's views of its memory, and the tokens of patches."""
    stacked = task.output in ("float224", "frames224", "frames")
    return shape_output(from_dlpack(pixels.as_tensor()) if stacked else [from_dlpack(one) for one in pixels], task)


def shape_output(images: Any, task: Task) -> Any:
    """Returns a batch with the axes of the workload.

    Args:
        images: A list of tensors, or a stack of them: frames of all clips in a row.
        task: Says the output.
    """
    if task.output == "frame-patches":
        return make_patches([frames.unflatten(0, (CLIPS, FRAMES_PER_CLIP)) for frames in images])
    if task.output == "patches":
        return make_patches(images)
    return images.unflatten(1, (CLIPS, FRAMES_PER_CLIP)) if task.output in ("frames", "frames224") else images
