"""Measures where DALI is faster than PIL and PyAV, by size, format and codec, and creates tables of the results.

On the CPU the ratio is DALI's processor time over that of PIL or PyAV. On a GPU it is DALI's time per sample in a
steady run of blocks, over the processor time of PIL or PyAV divided by the number of cores, which is the time that all
cores would need if they did nothing else. Below 1, DALI is faster.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch

from benchmarks.tuning_media import CODECS, FORMATS, encode_image, encode_video, photographs
from energon_dali.decode import DaliDecoder, Decoded, SampleDecoder
from energon_dali.decode.clips import VideoClips
from energon_dali.decode.dali import close_engines
from energon_dali.decode.dali.runtime.device import resolve_device
from energon_dali.decode.dali.video.eligibility import is_eligible_video
from energon_dali.decode.pyav import decode_clips, stage_clips
from energon_dali.decode.video_backends.choice import BACKENDS, device_of_rank

Kind = Literal["cpu", "gpu"]
IMAGE_SIZES = ((32, 32), (128, 128), (256, 256), (500, 375), (1280, 720), (1920, 1080), (3840, 2160))
CLIP_SIZES: dict[Kind, tuple[tuple[int, int], ...]] = {
    "cpu": ((320, 240), (640, 360), (1280, 720)),
    "gpu": ((320, 240), (640, 360), (1280, 720), (1920, 1080)),
}
CLIP_FRAMES = (1, 8, 32, 64)
CLIP_CODECS: dict[Kind, tuple[str, ...]] = {"cpu": ("vp9", "vp8", "mjpeg"), "gpu": ("h264", "hevc", "vp9", "mpeg4")}
LIMITS: dict[tuple[Kind, str], float] = {
    ("cpu", "image"): 1.25,
    ("cpu", "clips"): 1.0,
    ("gpu", "image"): 1.0,
    ("gpu", "clips"): 1.0,
}
"""Largest ratio for which DALI is used. For images on the CPU it may cost more than PIL, because it decodes whole
blocks, without the interpreter lock and ahead of the trainer."""


def sweep_images(kind: Kind, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Yields one row per format and size."""
    cores = len(os.sched_getaffinity(0))
    sizes = IMAGE_SIZES[:2] if quick else IMAGE_SIZES
    for size in sizes:
        count = max(4, min(64, 4_000_000 // (size[0] * size[1])))
        images = photographs(min(count, 8), size, threads=cores)
        repetitions = 1 if quick else 5 if size[0] * size[1] < 500_000 else 3
        for label in list(FORMATS)[: 2 if quick else None]:
            files = [encode_image(image, label) for image in images]
            files = [files[i % len(files)] for i in range(count)]
            decoder = DaliDecoder(
                image_decode="torchrgb8", image_decode_device=kind, num_threads=1 if kind == "cpu" else None
            )
            pil = SampleDecoder(image_decode="torchrgb8")

            def by_dali(files: Sequence[bytes] = files, decoder: DaliDecoder = decoder) -> int:
                outcomes = decoder.decode_block([decoder.stage("image.jpg", data) for data in files])
                return sum(isinstance(outcome, Decoded) for outcome in outcomes)

            def by_pil(files: Sequence[bytes], pil: SampleDecoder = pil) -> int:
                return len([pil.decode("image.jpg", data) for data in files])

            yield {
                "what": "image",
                "format": label,
                "width": size[0],
                "height": size[1],
                "pixels": size[0] * size[1],
                "bytes": round(statistics.mean(map(len, files))),
                **_compare(kind, by_dali, by_pil, files.copy, count, cores, repetitions=repetitions),
            }
    close_engines()


def sweep_clips(kind: Kind, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Yields one row per codec, size and number of frames to decode."""
    cores, device = len(os.sched_getaffinity(0)), resolve_device(kind, "video")
    for codec in CLIP_CODECS[kind][: 1 if quick else None]:
        for size in CLIP_SIZES[kind][: 1 if quick else None]:
            frames = CLIP_FRAMES[: 2 if quick else None]
            data = encode_video(codec, size, max(frames))
            for number in frames:
                spec = VideoClips(1, number, sampling="at", at=(0.0,))
                count = max(2, min(8, 32 // number)) if kind == "cpu" else 8
                handles = []
                for _ in range(count):
                    handle, file = stage_clips(CODECS[codec][1], data, spec)
                    file.close()
                    assert is_eligible_video(handle, kind, device_of_rank(device).nvdec), handle
                    handles.append(handle)
                decoder = DaliDecoder(av_decode=spec, num_threads=1 if kind == "cpu" else None)

                def by_dali(handles: Sequence[Any] = handles, decoder: DaliDecoder = decoder) -> int:
                    outcomes = BACKENDS["dali"].submit(decoder.engine_options, device, handles).result()
                    routes = [outcome.route for outcome in outcomes]
                    assert set(routes) == {f"dali-{kind}"}, routes
                    return len(routes)

                def opened(count: int = count, data: bytes = data, spec: VideoClips = spec) -> list[Any]:
                    # A worker opens the file to choose the frames, whoever decodes them.
                    return [stage_clips("video", data, spec) for _ in range(count)]

                def by_pyav(videos: list[Any]) -> int:
                    return len([decode_clips(handle, file) for handle, file in videos])

                yield {
                    "what": "clips",
                    "format": codec,
                    "width": size[0],
                    "height": size[1],
                    "frames": number,
                    "pixels": handles[0].frames_to_decode * size[0] * size[1],
                    "bytes": len(data),
                    **_compare(kind, by_dali, by_pyav, opened, count, cores, repetitions=1 if quick else 3),
                }
        close_engines()


def _compare(
    kind: Kind,
    by_dali: Callable[[], int],
    by_cpu: Callable[[Any], int],
    given: Callable[[], Any],
    count: int,
    cores: int,
    *,
    repetitions: int,
) -> dict[str, float]:
    """Returns the times per sample of both decoders, in microseconds, and their ratio.

    Args:
        kind: Where DALI decodes.
        by_dali: Decodes all samples with DALI.
        by_cpu: Decodes what `given` returned with PIL or PyAV.
        given: Creates the input again; its time is not counted.
        count: Number of samples.
        cores: Number of cores of the machine.
        repetitions: Number of runs; the shortest time counts.
    """
    torch.set_num_threads(1)  # as in workers; more threads would spin, which would count as CPU time
    assert by_dali() == by_cpu(given()) == count
    wall: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(repetitions):  # alternating, so that a machine that slows down affects both
        start, cpu_start = time.perf_counter(), time.process_time()
        by_dali()
        if kind == "gpu":
            _finish_gpu()
        ours.append((time.process_time() - cpu_start) / count * 1e6)
        wall.append((time.perf_counter() - start) / count * 1e6)
        samples = given()
        cpu_start = time.process_time()
        by_cpu(samples)
        theirs.append((time.process_time() - cpu_start) / count * 1e6)
    dali, cpu = min(ours), min(theirs)
    ratio = dali / cpu if kind == "cpu" else min(wall) / (cpu / cores)
    return {
        "dali_us": round(min(wall), 1),
        "dali_processor_us": round(dali, 1),
        "cpu_processor_us": round(cpu, 1),
        "ratio": round(ratio, 3),
    }


def _finish_gpu() -> None:
    torch.cuda.synchronize()


def best_range(rows: Sequence[dict[str, Any]], limit: float) -> tuple[int | None, int | None]:
    """Returns (least, most) pixels of the sizes for which DALI is used, or (None, None) if there are none.

    It is the run of neighbouring sizes that gains most. Its ends are between two measured sizes.

    Args:
        rows: Rows of one format, with "pixels" and "ratio".
        limit: Largest ratio for which DALI is used.
    """
    sizes: dict[int, list[float]] = {}
    for row in rows:
        sizes.setdefault(row["pixels"], []).append(math.log(limit / row["ratio"]))
    pixels = sorted(sizes)
    gains = [statistics.median(sizes[size]) for size in pixels]
    runs = [(sum(gains[i : j + 1]), i, j) for i in range(len(gains)) for j in range(i, len(gains))]
    gain, first, last = max(runs, key=lambda run: (run[0], run[2] - run[1]))
    if gain <= 0:
        return None, None
    least = 0 if first == 0 else _between(pixels[first - 1], pixels[first])
    most = None if last == len(pixels) - 1 else _between(pixels[last], pixels[last + 1])
    return least, most


def _between(a: int, b: int) -> int:
    """Returns the geometric mean of two sizes, rounded to two digits."""
    return int(float(f"{math.sqrt(a * b):.1e}"))


def crossover_table(rows: Sequence[dict[str, Any]], kind: Kind) -> dict[str, dict[str, tuple[int | None, int | None]]]:
    """Returns {"image" or "clips": {format: (least, most)}} as energon_dali.decode.dali.thresholds has it."""
    table: dict[str, dict[str, tuple[int | None, int | None]]] = {}
    for what in ("image", "clips"):
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["what"] == what:
                found.setdefault(row["format"].split()[0], []).append(row)
        table[what] = {name: best_range(group, LIMITS[kind, what]) for name, group in found.items()}
    return table


def as_python(rows: Sequence[dict[str, Any]], kind: Kind) -> str:
    """Returns the entries for energon_dali/decode/dali/thresholds.py."""
    lines = []
    for what, formats in crossover_table(rows, kind).items():
        lines.append(f'{"IMAGES" if what == "image" else "CLIPS"}["{kind}"]:')
        for name, (least, most) in formats.items():
            arguments = "" if (least, most) == (0, None) else f"{least}" + ("" if most is None else f", {most}")
            lines.append(f'    "{name}": Threshold({arguments}),')
    return "\n".join(lines)


def as_markdown(reports: dict[str, Any]) -> str:
    """Returns the tables of docs/dali-crossover.md.

    Args:
        reports: Reports by kind, "cpu" and "gpu"; a missing report is shown as "not measured yet".
    """
    parts = []
    for kind, title in (("cpu", "DALI on the CPU"), ("gpu", "DALI on a GPU")):
        report = reports.get(kind)
        if report is None:
            parts.append(f"**{title}**: not measured yet.")
            continue
        parts.append(f"**{title}**, {report['machine']['processor']}, {report['machine']['cores']} cores:")
        images = [row for row in report["crossover"] if row["what"] == "image"]
        clips = [row for row in report["crossover"] if row["what"] == "clips"]
        parts.append(_table("image", images, _format, _size, lambda row: row["pixels"]))
        parts.append(
            _table(
                "clips",
                clips,
                lambda row: f"{_format(row)} {_size(row)}",
                lambda row: f"{row['frames']} to decode",
                lambda row: row["frames"],
            )
        )
    return "\n\n".join(parts)


def _table(
    what: str,
    rows: Sequence[dict[str, Any]],
    name_of: Callable[[dict[str, Any]], str],
    column_of: Callable[[dict[str, Any]], str],
    order_of: Callable[[dict[str, Any]], int],
) -> str:
    """Returns a table of ratios, each next to the time of PIL or PyAV."""
    columns = [column_of(row) for row in sorted(rows, key=order_of)]
    columns = list(dict.fromkeys(columns))
    lines = [f"| {what} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    by_name: dict[str, dict[str, str]] = {}
    for row in rows:
        cell = f"{row['ratio']:.2f} of {_time(row['cpu_processor_us'])}"
        by_name.setdefault(name_of(row), {})[column_of(row)] = cell
    for name, cells in by_name.items():
        lines.append(f"| {name} | " + " | ".join(cells.get(column, "") for column in columns) + " |")
    return "\n".join(lines)


def _format(row: dict[str, Any]) -> str:
    return str(row["format"])


def _size(row: dict[str, Any]) -> str:
    return f"{row['width']} x {row['height']}"


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} us"
    return f"{microseconds / 1000:.1f} ms" if microseconds < 10_000 else f"{microseconds / 1000:.0f} ms"
