"""Compares clips from DALI and torchcodec on the CPU with clips from PyAV: CPU time, and pixels.

    python -m benchmarks.video_backends dali
    python -m benchmarks.video_backends torchcodec --json benchmarks/results/torchcodec.json

print the tables of docs/video-backends.md ("Clips on DALI") and docs/benchmarks-log.md ("torchcodec on the CPU"). The
second one needs torchcodec and FFmpeg's libraries, and runs in a forked process, where FFmpeg uses one thread, as it
does in the workers of a loader.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

from benchmarks.data.photographs import cut
from benchmarks.machine import describe_machine, describe_versions
from energon_dali.av import MediaFile
from energon_dali.decode import Decoded, SampleDecoder
from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.decoder import DaliDecoder
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.video.eligibility import is_eligible_video
from energon_dali.decode.pyav import decode_clips, stage_clips
from energon_dali.decode.video_backends.base import VideoDevice
from energon_dali.decode.video_backends.choice import BACKENDS
from energon_dali.decode.video_backends.frame_backend import FrameBackend

DALI = BACKENDS["dali"]
FILES, FRAMES, REPEATS = 4, 125, 3
SHAPES: dict[str, dict[str, Any]] = {
    "1 x 16 frames": {"frames_per_clip": 16},
    "2 x 16 frames": {"num_clips": 2, "frames_per_clip": 16},
    "16 frames, every 7th": {"frames_per_clip": 16, "stride": 7},
}
LONG_FRAMES = 1500
"""A minute."""
LONG = "2 x 16 frames of a minute"
TORCHCODEC_CODECS = {
    "H.264": ("libx264", "mp4"),
    "HEVC": ("libx265", "mp4"),
    "VP9": ("libvpx-vp9", "webm"),
    "AV1": ("libsvtav1", "mp4"),
}
OPTIONS = {
    "libx264": {"preset": "veryfast", "bf": "2"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:bframes=2"},
    "libsvtav1": {"preset": "12"},
}
CODECS = {"VP8": ("libvpx", "webm"), "VP9": ("libvpx-vp9", "webm"), "Motion JPEG": ("mjpeg", "mp4")}
MATRICES = {"bt601": 6, "bt709": 1, "bt2020": 9}
EXACT_FLAGS: Any = 0x2 | 0x2000 | 0x40000
"""swscale's BILINEAR, FULL_CHR_H_INT and ACCURATE_RND, of which PyAV 17 has a name only for the first."""


def encode(
    encoder: str,
    container: str,
    size: tuple[int, int],
    matrix: str,
    *,
    full: bool,
    bars: bool,
    frames: int = FRAMES,
) -> bytes:
    """Returns a video that pans over a photograph, to and fro, or moving squares of pure colours."""
    stream, rng = io.BytesIO(), np.random.default_rng(1)
    width, height = size
    wide = np.asarray(cut(rng, width=width + FRAMES, height=height).image)
    blocks = np.kron(rng.integers(0, 2, (8, 8, 3)) * 255, np.ones((-(-height // 8), -(-width // 8), 1)))
    with av.open(stream, "w", format=container) as output:
        options = {"deadline": "realtime", "cpu-used": "8", "b": "1500k"} if "vpx" in encoder else {}
        options |= OPTIONS.get(encoder, {})
        video: Any = output.add_stream(encoder, rate=25, options=options)
        full = full or encoder == "mjpeg"
        video.width, video.height, video.codec_context.gop_size = width, height, 25
        video.pix_fmt = "yuvj420p" if encoder == "mjpeg" else "yuv420p"
        video.codec_context.colorspace, video.codec_context.color_range = MATRICES[matrix], 2 if full else 1
        for number in range(frames):
            at = FRAMES - abs(number % (2 * FRAMES) - FRAMES)
            picture = np.roll(blocks, number // 4, 0)[:height, :width] if bars else wide[:, at : at + width]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture, np.uint8), format="rgb24").reformat(
                format=video.pix_fmt, dst_colorspace=MATRICES[matrix], dst_color_range=2 if full else 1
            )
            frame.colorspace, frame.color_range = MATRICES[matrix], 2 if full else 1
            frame.pts, frame.time_base = number, Fraction(1, 25)
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
    return stream.getvalue()


def stage(data: bytes, spec: VideoClips) -> ClipsHandle:
    """Returns the handle of a video that suits DALI."""
    handle, file = stage_clips("webm", data, spec)
    file.close()
    assert is_eligible_video(handle, "cpu"), handle
    return handle


def processor_seconds(work: Callable[[], Any]) -> float:
    """Returns the minimum CPU time of all threads over some repetitions, after a warm-up."""
    times = []
    for _ in range(REPEATS + 1):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return min(times[1:])


def compare_time(data: bytes, spec: VideoClips) -> float:
    """Returns the processor time of DALI over that of PyAV, both on two threads."""
    handles = [stage(data, spec) for _ in range(FILES)]
    decoder = DaliDecoder(av_decode=spec, video_decode_device="cpu", num_threads=2)
    with ThreadPoolExecutor(2) as pool:

        def by_pyav() -> None:
            list(pool.map(lambda handle: decode_clips(handle, MediaFile(handle.data, threads=1)), handles))

        by_dali = processor_seconds(lambda: DALI.submit(decoder.engine_options, Device("cpu"), handles).result())
        return by_dali / processor_seconds(by_pyav)


def compare_colours(data: bytes, matrix: str) -> str:
    """Returns the difference of DALI's frames from swscale's exact conversion with the matrix of the file."""
    spec = VideoClips(1, FRAMES, layout="FHWC")
    (outcome,) = DALI.submit(DaliDecoder(av_decode=spec).engine_options, Device("cpu"), [stage(data, spec)]).result()
    ours: torch.Tensor = outcome.value.frames[0]  # type: ignore[union-attr]
    with av.open(io.BytesIO(data)) as container:
        exact = np.stack(
            [
                frame.reformat(
                    format="rgb24",
                    interpolation=EXACT_FLAGS,
                    src_colorspace={6: 5}.get(MATRICES[matrix], MATRICES[matrix]),
                ).to_ndarray()
                for frame in container.decode(video=0)
            ]
        )
    error = np.abs(ours.numpy().astype(np.int16) - exact)
    ratio = float(np.mean(error.astype(np.float64) ** 2))
    decibels = "infinite" if ratio == 0 else f"{10 * np.log10(255**2 / ratio):.0f} dB"
    return f"{(error == 0).mean():.1%} | {(error <= 1).mean():.2%} | {error.max()} | {decibels}"


def compare_torchcodec(data: bytes, container: str, spec: VideoClips) -> dict[str, Any]:
    """Returns the CPU milliseconds of each way to get the clips of a file, taken in turns, and how pixels differ."""
    from torchcodec.decoders import VideoDecoder  # type: ignore[import-not-found]

    pyav = SampleDecoder(av_decode=spec)
    ours = DaliDecoder(av_decode=spec, video_decode_device="cpu", video_backend="torchcodec")
    handle, file = stage_clips(container, data, spec)
    file.close()
    wanted = np.unique(handle.frame_indices).tolist()
    backend = BACKENDS["torchcodec"]
    assert isinstance(backend, FrameBackend)
    ways: dict[str, Callable[[], Any]] = {
        "pyav": lambda: pyav.stage(container, data),
        "torchcodec": lambda: ours.stage(container, data),
        "frames of pyav": lambda: decode_clips(handle, MediaFile(data)),
        "frames of torchcodec": lambda: backend.decode(handle, Device("cpu")),
        "get_frames_at": lambda: VideoDecoder(data, dimension_order="NHWC").get_frames_at(wanted),
    }
    assert not backend.refusal(handle, VideoDevice("cpu")), handle
    outcome = backend.decode(handle, Device("cpu"))
    assert isinstance(outcome, Decoded), outcome
    assert outcome.route == "torchcodec-cpu", outcome
    frames: tuple[Any, Any] = outcome.value.frames, decode_clips(handle).frames
    difference = (frames[0].to(torch.float64) - frames[1].to(torch.float64)).abs()
    ratio = float((difference**2).mean())
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS + 1):
        for name, work in ways.items():
            before = time.process_time()
            work()
            times[name].append(time.process_time() - before)
    return {
        "cpu_ms": {name: round(1000 * min(taken[1:]), 2) for name, taken in times.items()},
        "largest_difference": int(difference.max()),
        "psnr_db": None if ratio == 0 else round(10 * float(np.log10(255**2 / ratio)), 1),
    }


def measure_torchcodec(path: Path | None) -> None:
    """Prints the table of torchcodec next to PyAV, and writes it as JSON."""
    torch.set_num_threads(1)
    rows = []
    for codec, (encoder, container) in TORCHCODEC_CODECS.items():
        files = {
            frames: encode(encoder, container, (640, 360), "bt709", full=False, bars=False, frames=frames)
            for frames in (FRAMES, LONG_FRAMES)
        }
        for label, shape in {**SHAPES, LONG: {"num_clips": 2, "frames_per_clip": 16}}.items():
            for size in (None, (224, 224)):
                for layout in ("FCHW", "FHWC") if size is None else ("FCHW",):
                    data = files[LONG_FRAMES if label == LONG else FRAMES]
                    spec = VideoClips(**shape, size=size, layout=layout)
                    found = compare_torchcodec(data, container, spec)
                    rows.append({"codec": codec, "clips": label, "size": size, "layout": layout, **found})
                    taken = found["cpu_ms"]
                    print(
                        f"{codec} | {label} | {size} | {layout} | {taken} | "
                        f"{taken['torchcodec'] / taken['pyav']:.2f} | "
                        f"{taken['frames of torchcodec'] / taken['frames of pyav']:.2f} | "
                        f"{found['largest_difference']} | {found['psnr_db']}",
                        flush=True,
                    )
    if path is not None:
        about = {
            "machine": describe_machine(),
            "versions": describe_versions(),
            "command": f"python -m benchmarks.video_backends {' '.join(sys.argv[1:])}",
        }
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def measure_dali() -> None:
    """Prints both tables about DALI."""
    videos = {name: encode(*kind, (640, 360), "bt601", full=False, bars=False) for name, kind in CODECS.items()}
    print("processor time of DALI over that of PyAV | " + " | ".join(CODECS))
    for label, shape in SHAPES.items():
        for size in (None, (224, 224)):
            ratios = [f"{compare_time(data, VideoClips(**shape, size=size)):.1f}" for data in videos.values()]
            print(f"{label}, {'size kept' if size is None else 'to 224 x 224'} | " + " | ".join(ratios), flush=True)
    print("VP9 against the exact conversion | equal | within 1 | largest | PSNR")
    for matrix in MATRICES:
        for full in (False, True):
            for bars in (False, True):
                data = encode("libvpx-vp9", "webm", (320, 240), matrix, full=full, bars=bars)
                what = f"{'pure colours' if bars else 'photograph'}, {matrix}, {'full' if full else 'limited'}"
                print(f"{what} | {compare_colours(data, matrix)}", flush=True)


def main() -> None:
    """Runs one of the two comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("dali", "torchcodec"))
    parser.add_argument("--json", type=Path, help="where the figures of torchcodec are written")
    options = parser.parse_args()
    if options.what == "dali":
        measure_dali()
        return
    child = multiprocessing.get_context("fork").Process(target=measure_torchcodec, args=(options.json,))
    child.start()
    child.join()
    sys.exit(child.exitcode)


if __name__ == "__main__":
    main()
