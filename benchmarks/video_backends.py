"""Compares clips from DALI on the CPU with clips from PyAV: CPU time, and the accuracy of corrected colours.

`python -m benchmarks.video_backends` prints the tables of docs/decoders.md, section "Clips on DALI".
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import av
import numpy as np
import torch

from benchmarks.data.photographs import cut
from energon_dali.av import MediaFile
from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.decoder import DaliDecoder
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.video.eligibility import is_eligible_video
from energon_dali.decode.pyav import decode_clips, stage_clips
from energon_dali.decode.video_backends.choice import BACKENDS

DALI = BACKENDS["dali"]
FILES, FRAMES, REPEATS = 4, 125, 3
SHAPES: dict[str, dict[str, Any]] = {
    "1 x 16 frames": {"frames_per_clip": 16},
    "2 x 16 frames": {"num_clips": 2, "frames_per_clip": 16},
    "16 frames, every 7th": {"frames_per_clip": 16, "stride": 7},
}
CODECS = {"VP8": ("libvpx", "webm"), "VP9": ("libvpx-vp9", "webm"), "Motion JPEG": ("mjpeg", "mp4")}
MATRICES = {"bt601": 6, "bt709": 1, "bt2020": 9}
EXACT_FLAGS: Any = 0x2 | 0x2000 | 0x40000
"""swscale's BILINEAR, FULL_CHR_H_INT and ACCURATE_RND, of which PyAV 17 has a name only for the first."""


def encode(encoder: str, container: str, size: tuple[int, int], matrix: str, *, full: bool, bars: bool) -> bytes:
    """Returns a video that pans over a photograph, or moving squares of pure colours."""
    stream, rng = io.BytesIO(), np.random.default_rng(1)
    width, height = size
    wide = np.asarray(cut(rng, width=width + FRAMES, height=height).image)
    blocks = np.kron(rng.integers(0, 2, (8, 8, 3)) * 255, np.ones((-(-height // 8), -(-width // 8), 1)))
    with av.open(stream, "w", format=container) as output:
        options = {"deadline": "realtime", "cpu-used": "8", "b": "1500k"} if "vpx" in encoder else {}
        video: Any = output.add_stream(encoder, rate=25, options=options)
        full = full or encoder == "mjpeg"
        video.width, video.height, video.codec_context.gop_size = width, height, 25
        video.pix_fmt = "yuvj420p" if encoder == "mjpeg" else "yuv420p"
        video.codec_context.colorspace, video.codec_context.color_range = MATRICES[matrix], 2 if full else 1
        for number in range(FRAMES):
            picture = np.roll(blocks, number // 4, 0)[:height, :width] if bars else wide[:, number : number + width]
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


def main() -> None:
    """Prints both tables."""
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


if __name__ == "__main__":
    main()
