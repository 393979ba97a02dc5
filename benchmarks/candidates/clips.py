"""Clips of videos in memory, in processes that deliver nothing. Options: library, processes, threads, place.

`place` is "anywhere" (two clips of 16 frames per file, from seeded frames on) or "end" (the last second of each file).
"""

from __future__ import annotations

import importlib
import io
import json
import multiprocessing
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.candidates.stream import WrongOutputError
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_transforms

FRAMES_PER_CLIP = 16
CLIPS = 2
SIZE = 224
"""Side of the clips in pixels."""

Ranges = list[tuple[int, int]]
"""First and last frame of each clip, both inclusive."""
Decode = Callable[[bytes, Ranges], list[np.ndarray[Any, np.dtype[np.uint8]]]]
"""Returns uint8[frames, 224, 224, 3] per range."""


def measure(task: Task) -> dict[str, float]:
    """Returns files per second over all processes, and per second of CPU time, which a busy machine affects less;
    or how many files were compared with a full decode.
    """
    if task.action == "check":
        return {"samples_checked": _check(task)}
    processes = int(task.options.get("processes", 2))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_work, args=(task, number, processes, barrier, results)) for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
    files = sum(count for count, _, _ in found)
    return {
        "files_per_second": files / max(seconds for _, seconds, _ in found),
        "files_per_cpu_second": files / sum(cpu_seconds for _, _, cpu_seconds in found),
    }


def _work(task: Task, number: int, processes: int, barrier: Any, results: Any) -> None:
    decode = decoder_of(task)
    frames = frames_of(task)
    files = read_files(task.shards)[number::processes]
    for key, data in files[: max(1, task.warmup_samples // processes)]:
        decode(data, ranges_of(task, key, frames[key]))
    barrier.wait(120)
    start, cpu_start = time.perf_counter(), time.process_time()
    count = task.samples // processes
    for place in range(count):
        key, data = files[place % len(files)]
        decode(data, ranges_of(task, f"{key}/{place // len(files)}", frames[key]))
    results.put((count, time.perf_counter() - start, time.process_time() - cpu_start))


def frames_of(task: Task) -> dict[str, int]:
    """Returns the number of frames of each file, by key."""
    facts = json.loads((Path(task.dataset) / "facts.json").read_text())
    return {key: int(fact[2]) for key, fact in facts.items()}


def ranges_of(task: Task, name: str, frames: int) -> Ranges:
    """Returns the clips of a file, the same for every candidate.

    Args:
        task: Names their dataset.
        name: Of the file and the turn; seeds the choice.
        frames: Number of frames of the file.
    """
    if task.options.get("place", "anywhere") == "end":
        return [(frames - 30, frames - 1)]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    starts = np.sort(rng.integers(0, frames - FRAMES_PER_CLIP, CLIPS)).tolist()
    return [(start, start + FRAMES_PER_CLIP - 1) for start in starts]


def read_files(shards: list[str]) -> list[tuple[str, bytes]]:
    """Returns (key, content) of the videos of the shards."""
    found = []
    for shard in shards:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if member.name.endswith(".mp4") and (file := tar.extractfile(member)) is not None:
                    found.append((member.name.partition(".")[0], file.read()))
    return found


def decoder_of(task: Task) -> Decode:
    """Returns the decoder of the candidate."""
    threads = int(task.options.get("threads", 1))
    return {
        "energon_dali": lambda: _av_decoder("energon_dali.av", threads=threads),
        "megatron.energon": lambda: _av_decoder("megatron.energon.av"),
        "pyav": lambda: bare_pyav(threads),
        "pyav from the start": lambda: _pyav_from_the_start(threads),
        "torchcodec": lambda: _torchcodec(threads),
    }[str(task.options["library"])]()


def _av_decoder(module: str, **options: int) -> Decode:
    decoder = importlib.import_module(module).AVDecoder

    def decode(data: bytes, ranges: Ranges) -> list[Any]:
        clips, _ = decoder(io.BytesIO(data), **options).get_video_clips(
            ranges, video_unit="frames", video_out_frame_size=(SIZE, SIZE)
        )
        return [clip.permute(0, 2, 3, 1).numpy() for clip in clips]

    return decode


def bare_pyav(threads: int, size: int | None = SIZE) -> Decode:
    """Decodes as a careful user would: seek to the keyframe before, decode, and convert only the wanted frames.

    Args:
        threads: Of the decoder.
        size: Pixels of a side of the frames; None keeps the video's.
    """
    import av

    def decode(data: bytes, ranges: Ranges) -> list[Any]:
        clips = []
        with av.open(io.BytesIO(data)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE" if threads == 1 else "AUTO"
            rate, base = stream.average_rate, stream.time_base
            if rate is None or base is None:
                raise WrongOutputError("The video has no frame rate.")
            per_frame = 1 / (rate * base)
            for first, last in ranges:
                container.seek(int(first * per_frame), stream=stream)
                frames = []
                for frame in container.decode(stream):
                    number = round((frame.pts or 0) / per_frame)
                    if number >= first:
                        frames.append(frame.to_ndarray(format="rgb24", width=size, height=size))
                    if number >= last:
                        break
                clips.append(np.stack(frames))
        return clips

    return decode


def _pyav_from_the_start(threads: int) -> Decode:
    import av

    def decode(data: bytes, ranges: Ranges) -> list[Any]:
        clips: list[list[Any]] = [[] for _ in ranges]
        with av.open(io.BytesIO(data)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE" if threads == 1 else "AUTO"
            for number, frame in enumerate(container.decode(stream)):
                for (first, last), clip in zip(ranges, clips, strict=True):
                    if first <= number <= last:
                        clip.append(frame.to_ndarray(format="rgb24", width=SIZE, height=SIZE))
        return [np.stack(clip) for clip in clips]

    return decode


def _torchcodec(threads: int) -> Decode:
    import_torchvision_transforms()  # torchcodec imports it when transforms are given
    decoders, transforms = (importlib.import_module(f"torchcodec.{name}") for name in ("decoders", "transforms"))

    def decode(data: bytes, ranges: Ranges) -> list[Any]:
        decoder = decoders.VideoDecoder(
            data,
            dimension_order="NHWC",
            num_ffmpeg_threads=threads,
            seek_mode="approximate",
            transforms=[transforms.Resize((SIZE, SIZE))],
        )
        return [decoder.get_frames_in_range(first, last + 1).data.numpy() for first, last in ranges]

    return decode


def _check(task: Task) -> int:
    """Compares with a decode from the start: versions of swscale may round differently, but frames must be the same.

    Raises:
        WrongOutputError: A clip has another number of frames, or shows other ones.
    """
    decode, reference = decoder_of(task), _pyav_from_the_start(1)
    checked = 0
    frames = frames_of(task)
    for key, data in read_files(task.shards)[:4]:
        ranges = ranges_of(task, key, frames[key])
        found, expected = decode(data, ranges), reference(data, ranges)
        if [clip.shape for clip in found] != [clip.shape for clip in expected]:
            raise WrongOutputError(f"{task.options['library']}: {key} gives {[clip.shape for clip in found]}.")
        for one, other in zip(found, expected, strict=True):
            difference = float(np.abs(one.astype(np.int16) - other.astype(np.int16)).mean())
            if difference > 2.0:
                raise WrongOutputError(f"{task.options['library']}: {key} differs by {difference:.1f} on average.")
        checked += 1
    return checked
