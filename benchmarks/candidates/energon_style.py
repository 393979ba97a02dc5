"""A loader with Energon's interface: energon_dali, or megatron-energon in its own environment, with the same code.

Options: library ("energon_dali" or "megatron.energon"), decoder ("sample" or "dali"), workers, feed, decode_scale,
shuffle_window, leaves (datasets that the files are divided into, and blended), device (where DaliDecoder decodes, if
not where the batches must end), decode_process, start_method, copies (results in torch's own memory), video_backend,
sound (clips with the sound as it is in the file).
Images of size 224 come from operations declared on energon_dali's decoders, or from torchvision for megatron-energon;
clips from VideoClips, or from megatron-energon's AVDecoder.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.candidates.leaves import dataset_path
from benchmarks.candidates.outputs import (
    CLIPS,
    CROP_PIXELS,
    FRAMES_PER_CLIP,
    MEAN,
    STD,
    VIDEO_OUTPUTS,
    collate,
    crop_ranges,
)
from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import LeftOutError, Task
from benchmarks.candidates.torchvision_import import import_torchvision_transforms

_LEAST_SOUND_SECONDS = 0.48
"""Clips of megatron-energon begin and end with whole packets of sound, so they are cut to this length to stack."""


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches: lists of uint8 tensors, or stacked float tensors."""
    loader = open_loader(task)
    while True:
        for batch in loader:
            yield Delivered(batch["image"], batch["__key__"] if with_keys else None)


def open_loader(task: Task) -> Any:
    """Returns the savable loader over the training part."""
    # Some loaders always pin, and torch warns about that if there is no accelerator.
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    library = importlib.import_module(task.options["library"])
    workers = int(task.options.get("workers", 2))
    order = {"parallel_shard_iters": 1} if task.options.get("feed") == "native" else {}  # an order made of runs
    dataset = library.get_train_dataset(
        dataset_path(task),
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=task.batch_size,
        shuffle_buffer_size=task.options.get("shuffle_window"),
        max_samples_per_sequence=None,
        task_encoder=task_encoder(library, task),
        **order,
    )
    told = {name: task.options[name] for name in ("decode_process", "start_method") if task.options.get(name)}
    return library.get_savable_loader(dataset, **told)


def task_encoder(library: Any, task: Task) -> Any:
    """Returns a task encoder that batches decoded data with `outputs.collate`."""
    change = foreign_operation(task) if task.options["library"] != "energon_dali" else None
    video = task.output in VIDEO_OUTPUTS
    sound = bool(task.options.get("sound"))
    stack = library.batch_stack  # what both libraries batch with if a task encoder does not override it

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        decoder = make_decoder(library, task)

        def encode_sample(self, sample: Any) -> Any:
            if change is not None:
                return dataclasses.replace(sample, image=change(sample.image))
            if not video:
                return sample
            frames = sample.image.frames
            return dataclasses.replace(sample, image=(frames, sample.image.audio) if sound else frames)

        def batch(self, samples: list[Any]) -> dict[str, Any]:
            # Dicts can be pickled everywhere; a class defined in a function cannot.
            batch = {"__key__": [sample.__key__ for sample in samples]}
            if sound:
                frames, heard = zip(*(sample.image for sample in samples), strict=True)
                return {**batch, "image": collate(frames, task.output, stack), "sound": torch.stack(heard)}
            return {**batch, "image": collate([sample.image for sample in samples], task.output, stack)}

        def encode_batch(self, batch: Any) -> Any:
            return batch

    return Encoder()


def make_decoder(library: Any, task: Task) -> Any:
    """Returns the decoder of the options, with the operations for the output."""
    if task.options["library"] != "energon_dali":
        return library.SampleDecoder(image_decode="torchrgb8")
    options: dict[str, Any] = {"image_decode": "torchrgb8"}
    if task.output == "float224":
        area, ratio = crop_ranges(task)
        options = {
            "image_decode": "torchrgb",
            "operations": (
                library.RandomResizedCrop(CROP_PIXELS, scale=area, ratio=ratio),
                library.HorizontalFlip(),
                library.Normalize(MEAN, STD),
            ),
        }
    elif task.output in VIDEO_OUTPUTS:
        size = (CROP_PIXELS, CROP_PIXELS) if task.output == "frames224" else None
        audio = task.options.get("sound") and library.ClipAudio(duration_seconds=FRAMES_PER_CLIP / 30)
        options["av_decode"] = library.VideoClips(
            num_clips=CLIPS, frames_per_clip=FRAMES_PER_CLIP, size=size, audio=audio or False
        )
    elif task.layout == "HWC":
        options["image_layout"] = "HWC"
    if "decode_scale" in task.options:
        options["decode_scale"] = task.options["decode_scale"]
    if task.options.get("decoder") != "dali":
        return library.SampleDecoder(**options)
    device = task.decodes_on
    if device == "gpu" and task.output in VIDEO_OUTPUTS:
        device = "auto"  # the default: PyAV decodes the videos for which it is faster
    if "video_backend" in task.options:
        options["video_backend"] = task.options["video_backend"]
    try:
        return library.DaliDecoder(
            image_decode_device=task.decodes_on,
            video_decode_device=device,
            feed=task.options.get("feed", "block"),
            tuning=library.DaliTuning(copies_to_torch=bool(task.options.get("copies"))),
            **options,
        )
    except library.ConfigError as error:
        if "video_backend" in task.options:  # its library is not installed
            raise LeftOutError(str(error)) from error
        raise


def foreign_operation(task: Task) -> Any:
    """Returns the operations for `encode_sample` if the decoder has none of its own; None if there are none."""
    if task.output == "float224":
        return torchvision_transform(task)
    return take_clips(task.output, bool(task.options.get("sound"))) if task.output in VIDEO_OUTPUTS else None


def take_clips(output: str, sound: bool) -> Any:
    """Returns a function from megatron-energon's AVDecoder to uint8[2, 16, 3, H, W], or a pair of it and its sound."""
    from megatron.energon.av import get_clips_uniform

    size = (CROP_PIXELS, CROP_PIXELS) if output == "frames224" else None

    def decode(decoder: Any) -> Any:
        # Ranges include both ends; half a frame more or less must not change the number of frames.
        found = get_clips_uniform(
            decoder,
            (FRAMES_PER_CLIP - 0.5) / 30,
            CLIPS,
            request_video=True,
            request_audio=sound,
            video_out_frame_size=size,
        )
        frames = torch.stack([_of_length(clip) for clip in found.video_clips])
        if not sound:
            return frames
        shortest = round(_LEAST_SOUND_SECONDS * decoder.get_audio_samples_per_second())
        return frames, torch.stack([clip[:, :shortest] for clip in found.audio_clips])

    return decode


def _of_length(clip: torch.Tensor) -> torch.Tensor:
    missing = FRAMES_PER_CLIP - len(clip)
    return torch.cat([clip, clip[-1:].expand(missing, -1, -1, -1)]) if missing > 0 else clip[:FRAMES_PER_CLIP]


def torchvision_transform(task: Task) -> Any:
    """Returns torchvision's transforms, on uint8 tensors, where they are fastest."""
    transforms = import_torchvision_transforms()
    area, ratio = crop_ranges(task)
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP_PIXELS, scale=area, ratio=ratio, antialias=True),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(MEAN, STD),
        ]
    )
