"""Clips of long videos: bytes read, files per second and memory, local and from S3 at 20 ms.

    python -m benchmarks.long_videos [--seconds 10 120 600 3600] [--codecs h264 hevc vp9 av1] [--layouts mp4-first ...]
    python -m benchmarks.long_videos --hour           # 32 frames of an hour of 1080p: memory, first batch from S3

Files are made by repeating the packets of ten encoded seconds with shifted times. Each measurement runs in a process of
its own: two clips of two seconds of each of `--files` files, with the media index (`ranges`), without it (`whole`), and
with torchcodec reading a file-like object and megatron-energon reading whole files, if `--torchcodec PYTHON` and
`--energon PYTHON` name a Python that has them. The S3 server counts the bytes; of local files all that is read is
counted. Processor time is that of all files but the first, before which things are imported and opened. "wanted" are
the groups of pictures that the clips need, from key frame to key frame. `worker` reads as `ranges` does, in a worker
process, whose memory alone is given.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, describe_versions

ROOT = Path(__file__).resolve().parents[1]
BUCKET = "data"
ROUND_SECONDS = 10
RATE = 30
ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"preset": "veryfast", "bf": "2", "crf": "26"}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "log-level=none:bframes=2:crf=28:open-gop=0"}),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "crf": "36", "b": "0"}),
    "av1": ("libsvtav1", {"preset": "10", "crf": "40"}),
}
LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {
    "mp4-last": ("mp4", {}),
    "mp4-first": ("mp4", {"movflags": "faststart"}),
    "mp4-fragments": ("mp4", {"movflags": "frag_keyframe+empty_moov"}),
    "mkv": ("matroska", {}),
}
"""Container and options of the muxer; the MP4s have the table of packets at their end or start, or are fragmented."""


@cache
def encode_round(codec: str, size: tuple[int, int], gop: int = 60) -> bytes:
    """Returns an MP4 of ten seconds of a moving picture, with B-frames where the encoder has them."""
    import av

    name, options = ENCODERS[codec]
    rng = np.random.default_rng(1)
    small = rng.integers(0, 256, (size[1] // 8 + 60, size[0] // 8 + 60, 3), np.uint8)
    scene = np.kron(small, np.ones((8, 8, 1), np.uint8))
    file = io.BytesIO()
    with av.open(file, "w", "mp4") as container:
        stream: Any = container.add_stream(name, rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.gop_size = gop
        for number in range(ROUND_SECONDS * RATE):
            at = 8 * 30 + int(200 * np.sin(number / 25))
            picture = np.ascontiguousarray(scene[at : at + size[1], at : at + size[0]])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def write_long(path: Path, codec: str, layout: str, seconds: int, size: tuple[int, int]) -> None:
    """Writes a video of the given length."""
    import av

    name, options = LAYOUTS[layout]
    with (
        av.open(io.BytesIO(encode_round(codec, size))) as source,
        av.open(str(path), "w", name, options=options) as container,
    ):
        packets = [packet for packet in source.demux(source.streams.video[0]) if packet.size]
        contents = [(bytes(packet), packet.pts, packet.dts, packet.duration, packet.is_keyframe) for packet in packets]
        base = packets[0].time_base
        step = int(ROUND_SECONDS / base)
        stream = container.add_stream_from_template(source.streams.video[0], opaque=True)
        for number in range(seconds // ROUND_SECONDS):
            for content, pts, dts, duration, is_key in contents:
                packet = av.Packet(content)
                packet.stream = stream
                packet.time_base, packet.is_keyframe, packet.duration = base, is_key, duration
                packet.pts, packet.dts = pts + number * step, dts + number * step
                container.mux(packet)


def make_dataset(folder: Path, codec: str, layout: str, seconds: int, size: tuple[int, int], files: int) -> None:
    """Writes a prepared dataset of some copies of one video, with and without a media index."""
    from energon_dali.shards import prepare_dataset

    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        video = Path(temporary) / ("video.mkv" if layout == "mkv" else "video.mp4")
        write_long(video, codec, layout, seconds, size)
        folder.mkdir(parents=True)
        with tarfile.open(folder / "shard_0.tar", "w") as tar:
            for number in range(files):
                tar.add(video, f"{number:04d}{video.suffix}")
    prepare_dataset(str(folder), split_ratio={"train": 1})
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        "sample_type:\n  __module__: megatron.energon\n  __class__: ImageSample\nfield_map:\n  image: mp4,mkv\n"
    )
    subprocess.run(
        [sys.executable, "-m", "energon_dali", "prepare-media", str(folder), "--media-metadata-by-extension"],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )


def wanted_bytes(folder: Path, clips: Any, seeds: int) -> tuple[int, int]:
    """Returns (bytes of the groups of pictures that clips need, bytes of their index), on average over some seeds."""
    from energon_dali.av import VideoReader
    from energon_dali.av.media_indices import MediaIndices
    from energon_dali.av.sparse_media import SparseMedia
    from energon_dali.decode.pyav import stage_clips
    from energon_dali.shards import WebdatasetFolder

    opened = WebdatasetFolder(str(folder))
    _, place, _ = opened.index.shard(0).parts(0)[0]
    index = MediaIndices.of_folder(opened).find(0, place)
    assert index is not None
    assert index.video is not None
    keys = np.append(np.flatnonzero(index.video.packets.is_key), len(index.video))
    sizes = np.concatenate([[0], np.cumsum(index.video.sizes)])
    total = 0
    for seed in range(seeds):
        handle, file = stage_clips("mp4", SparseMedia(index), clips, seed=seed)
        with file:
            runs = VideoReader(file).packets_of(handle.frame_indices)
        groups = {
            group
            for first, last in runs
            for group in range(
                int(np.searchsorted(keys, first, side="right")) - 1, int(np.searchsorted(keys, last, side="right"))
            )
        }
        total += sum(int(sizes[keys[group + 1]] - sizes[keys[group]]) for group in groups)
    return total // seeds, (folder / ".nv-meta" / "media_index.bin").stat().st_size


def two_clips() -> Any:
    """Returns two random clips of two seconds."""
    from energon_dali.decode.clips import VideoClips

    return VideoClips(num_clips=2, frames_per_clip=16, clip_duration_seconds=2.0, sampling="random", size=(224, 224))


def spread_frames() -> Any:
    """Returns 32 frames spread over the whole video."""
    from energon_dali.decode.clips import VideoClips

    return VideoClips(
        num_clips=32, frames_per_clip=1, clip_duration_seconds=1 / RATE, sampling="uniform", size=(224, 224)
    )


def read_clips(path: str, how: str, clips_name: str, files: int) -> dict[str, Any]:
    """Reads `files` samples through a loader in this process, and returns what it took."""
    import energon_dali.assembly.opened_source as opened_source
    from energon_dali import SampleDecoder, TaskEncoder, WorkerConfig, get_loader, get_train_dataset

    clips = {"two": two_clips, "spread": spread_frames}[clips_name]()
    if how == "whole":
        setattr(opened_source, "media_chooser", lambda folder, decoder: None)  # noqa: B010 - not exported

    class Encoder(TaskEncoder[Any, Any, Any, Any]):
        decoder = SampleDecoder(av_decode=clips)

    base = _peak_bytes()
    start, cpu = time.perf_counter(), time.process_time()
    config = WorkerConfig(rank=0, world_size=1, num_workers=1 if how == "worker" else 0)
    children = _ChildMemory() if how == "worker" else None
    dataset = get_train_dataset(
        path,
        task_encoder=Encoder(),
        worker_config=config,
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
    )
    loader = iter(get_loader(dataset))
    next(loader)
    first, cpu = time.perf_counter() - start, time.process_time() if files > 1 else cpu
    for _ in range(files - 1):
        next(loader)
    seconds = time.perf_counter() - start
    if children is not None:
        return {"first_seconds": first, **children.stop()}
    return {
        "first_seconds": first,
        "files_per_second": (files - 1) / (seconds - first) if files > 1 else 1 / first,
        "cpu_seconds_per_file": (time.process_time() - cpu) / max(1, files - 1),
        "base_mb": base / 1e6,
        "peak_mb": _peak_bytes() / 1e6,
    }


class _ChildMemory:
    """Watches the memory of the only child of this process, in a thread."""

    def __init__(self) -> None:
        self._peaks = {"worker_pss_mb": 0.0, "worker_rss_mb": 0.0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        import psutil

        while not self._ended.wait(0.02):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    found = child.memory_full_info()
                    for name, value in (("worker_pss_mb", found.pss), ("worker_rss_mb", found.rss)):
                        self._peaks[name] = max(self._peaks[name], value / 1e6)

    def stop(self) -> dict[str, float]:
        """Returns the most that was seen: with its share of memory that both processes use, and with all of it."""
        self._ended.set()
        self._thread.join()
        return self._peaks


def _peak_bytes() -> int:
    """Returns the most memory of this process; not by getrusage, which counts that of the parent before the exec."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def run_case(arguments: Sequence[str], environment: dict[str, str], python: str = sys.executable) -> dict[str, Any]:
    """Returns what a process of its own prints."""
    command = [python, "-m", "benchmarks.long_videos", "--case", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(
    folder: Path, server: Any, clips: str, files: int, others: dict[str, str], ways: Sequence[str]
) -> dict[str, Any]:
    """Returns the numbers of one dataset: local and from S3, in each way ("ranges", "whole", "worker"); and of others.

    Args:
        folder: The dataset.
        server: The S3 server, if any.
        clips: "two" or "spread".
        files: How many are read.
        others: The Python of each other library.
        ways: Of this one.
    """
    result: dict[str, Any] = {}
    for how in ways:
        result[f"local {how}"] = run_case([str(folder), how, clips, str(files)], {})
        before = server.counters()["bytes_sent"] if server is not None else 0
        if server is not None:
            found = run_case([f"s3://{BUCKET}/{folder.name}", how, clips, str(files)], server.environment())
            found["bytes_per_file"] = (server.counters()["bytes_sent"] - before) / files
            result[f"s3 {how}"] = found
    for library, python in others.items():
        result[f"local {library}"] = run_case([str(folder), library, clips, str(files)], {}, python)
    return result


def read_by_torchcodec(path: str, clips_name: str, files: int) -> dict[str, Any]:
    """Reads clips of two seconds with torchcodec, from a file-like object over the part in its shard."""
    from benchmarks.candidates.torchvision_import import import_torchvision_transforms

    import_torchvision_transforms()  # torchcodec imports it when transforms are given
    from torchcodec.decoders import VideoDecoder  # type: ignore[import-not-found]
    from torchcodec.transforms import Resize  # type: ignore[import-not-found]

    class Part(io.RawIOBase):
        def __init__(self, file: io.BufferedReader, offset: int, size: int) -> None:
            self.file, self.offset, self.size, self.at = file, offset, size, 0
            self.bytes_read = 0

        def read(self, size: int = -1) -> bytes:
            wanted = self.size - self.at if size < 0 else min(size, self.size - self.at)
            self.file.seek(self.offset + self.at)
            self.at += wanted
            self.bytes_read += wanted
            return self.file.read(wanted)

        def seek(self, offset: int, whence: int = 0) -> int:
            self.at = max(0, (0, self.at, self.size)[whence] + offset)
            return self.at

    rng = np.random.default_rng(0)
    with tarfile.open(Path(path) / "shard_0.tar") as tar, open(Path(path) / "shard_0.tar", "rb") as file:
        members = tar.getmembers()
        base = _peak_bytes()
        start, cpu, first, bytes_read = time.perf_counter(), time.process_time(), 0.0, 0
        for member in members[:files]:
            part = Part(file, member.offset_data, member.size)
            decoder = VideoDecoder(
                part,
                num_ffmpeg_threads=1,
                seek_mode="approximate",
                transforms=[Resize((224, 224))],
            )
            end = decoder.metadata.duration_seconds
            if clips_name == "two":
                for begin in sorted(rng.uniform(0, end - 2, 2)):
                    decoder.get_frames_played_at([begin + step * 2 / 16 for step in range(16)])
            else:
                decoder.get_frames_played_at(np.linspace(0, end - 0.1, 32).tolist())
            bytes_read += part.bytes_read
            if not first:
                first, cpu = time.perf_counter() - start, time.process_time() if files > 1 else cpu
        seconds = time.perf_counter() - start
    return {
        "first_seconds": first,
        "files_per_second": (files - 1) / (seconds - first) if files > 1 else 1 / first,
        "cpu_seconds_per_file": (time.process_time() - cpu) / max(1, files - 1),
        "base_mb": base / 1e6,
        "peak_mb": _peak_bytes() / 1e6,
        "bytes_per_file": bytes_read / files,
    }


def read_by_energon(path: str, clips_name: str, files: int) -> dict[str, Any]:
    """Reads clips with megatron-energon's loader and AVDecoder in this process."""
    import warnings

    from megatron.energon import (
        SampleDecoder,
        TaskEncoder,
        WorkerConfig,
        get_loader,
        get_train_dataset,
    )

    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    sizes: list[int] = []

    class Encoder(TaskEncoder):  # type: ignore[misc]
        decoder = SampleDecoder()

        def encode_sample(self, sample: Any) -> Any:
            video = sample.image
            sizes.append(len(video.stream.getbuffer()))
            end = video.get_video_duration()[0]
            times = np.linspace(0, end - 0.1, 32)
            if clips_name == "two":
                times = np.add.outer(np.sort(rng.uniform(0, end - 2, 2)), np.arange(16) * 2 / 16).ravel()
            # One range per frame: all frames of two seconds take twice the time.
            ranges = [(time, time) for time in times.tolist()]
            sample.image, _ = video.get_video_clips(ranges, "seconds", (224, 224))
            return sample

        def batch(self, samples: list[Any]) -> Any:
            return samples

        def encode_batch(self, batch: Any) -> Any:
            return batch

    base = _peak_bytes()
    start, cpu = time.perf_counter(), time.process_time()
    dataset = get_train_dataset(
        path,
        task_encoder=Encoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
    )
    loader = iter(get_loader(dataset))
    next(loader)
    first, cpu = time.perf_counter() - start, time.process_time() if files > 1 else cpu
    for _ in range(files - 1):
        next(loader)
    seconds = time.perf_counter() - start
    return {
        "first_seconds": first,
        "files_per_second": (files - 1) / (seconds - first) if files > 1 else 1 / first,
        "cpu_seconds_per_file": (time.process_time() - cpu) / max(1, files - 1),
        "base_mb": base / 1e6,
        "peak_mb": _peak_bytes() / 1e6,
        "bytes_per_file": sum(sizes) / len(sizes),
    }


def report(name: str, result: dict[str, Any], wanted: int, index_bytes: float) -> dict[str, Any]:
    """Prints the numbers of one dataset, and returns them with their names."""
    print(f"{name}: wanted {wanted / 1e3:.0f} kB, index {index_bytes / 1e3:.0f} kB a file")
    for how, found in result.items():
        text = f"  {how:18} first {found['first_seconds']:.2f} s"
        if how.endswith("worker"):
            print(f"{text}  worker PSS {found['worker_pss_mb']:.0f} MB, RSS {found['worker_rss_mb']:.0f} MB")
            continue
        text += f"  {found['files_per_second']:7.2f} files/s  {found['cpu_seconds_per_file']:.3f} CPU s/file"
        text += f"  peak {found['peak_mb']:.0f} MB"
        text += f" (imports {found['base_mb']:.0f})" if "base_mb" in found else ""
        if "bytes_per_file" in found:
            index_read = index_bytes if how.startswith("s3") else 0  # others have none
            found["ratio"] = (found["bytes_per_file"] - index_read) / wanted
            found["ratio_with_index"] = found["bytes_per_file"] / wanted
            text += f"  bytes/wanted {found['ratio']:.2f}"
            text += f" ({found['ratio_with_index']:.2f} with the index)" if index_read else ""
        print(text, flush=True)
    return {"name": name, "wanted_bytes": wanted, "index_bytes": index_bytes, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, nargs="+", default=[10, 120, 600, 3600])
    parser.add_argument("--codecs", nargs="+", default=list(ENCODERS), choices=list(ENCODERS))
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--height", type=int, default=360)
    parser.add_argument("--hour", action="store_true")
    parser.add_argument("--torchcodec", metavar="PYTHON")
    parser.add_argument("--energon", metavar="PYTHON")
    parser.add_argument("--no-s3", action="store_true")
    parser.add_argument("--no-whole", action="store_true", help="leave out reading whole files")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", nargs=4, metavar=("PATH", "HOW", "CLIPS", "FILES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        path, how, clips, files = options.case
        foreign = {"torchcodec": read_by_torchcodec, "energon": read_by_energon}.get(how)
        read = read_clips(path, how, clips, int(files)) if foreign is None else foreign(path, clips, int(files))
        print(json.dumps(read))
        return
    from benchmarks.remote.s3_server import S3Server

    cases = [
        (codec, layout, seconds)
        for codec in options.codecs
        for layout in options.layouts
        for seconds in options.seconds
    ]
    size = (options.height * 16 // 9, options.height)
    clips_name, files, make_clips = "two", options.files, two_clips
    if options.hour:
        cases = [("h264", "mp4-last", seconds) for seconds in (10, 3600)]
        size, clips_name, files, make_clips = (1920, 1080), "spread", 1, spread_frames
    rows = []
    with tempfile.TemporaryDirectory() as temporary, S3Server(temporary, latency_seconds=0.02) as server:
        for codec, layout, seconds in cases:
            folder = Path(temporary) / BUCKET / f"{codec}-{layout}-{seconds}"
            folder.parent.mkdir(exist_ok=True)
            make_dataset(folder, codec, layout, seconds, size, files)
            wanted, index_bytes = wanted_bytes(folder, make_clips(), 64)
            ways = ("ranges", "worker") if options.no_whole else ("ranges", "worker", "whole")
            others = {name: python for name in ("torchcodec", "energon") if (python := getattr(options, name))}
            found = measure(folder, None if options.no_s3 else server, clips_name, files, others, ways)
            rows.append(report(folder.name, found, wanted, index_bytes / files))
            shutil.rmtree(folder)
    if options.json is not None:
        about = {"machine": describe_machine(), "versions": describe_versions(), "command": " ".join(sys.argv)}
        options.json.write_text(json.dumps({**about, "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
