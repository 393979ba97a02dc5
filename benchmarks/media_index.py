"""How long indexing media takes, and how large the index is: `python -m benchmarks.media_index`.

`energon-dali prepare-media` describes and indexes 10,000 videos of five seconds, half of them with audio: with one
process, with two, without the index, and again when nothing has changed. A few dozen are encoded, and stored under many
names. Each case runs in a process of its own, and all files of indices have to be equal, byte for byte. The index of an
hour of video, from the packets of one of them repeated, is read back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environments import ROOT
from benchmarks.machine import commit, describe_machine, describe_versions
from energon_dali.av import MediaFile
from energon_dali.av.frame_index import list_frames, order_by_time
from energon_dali.av.media_index import MediaIndex, StreamIndex
from energon_dali.av.media_indexing import MediaIndexer, index_media
from energon_dali.av.stored_index import pack_media_index, read_media_index
from energon_dali.decode.media_filter import MediaFilter
from energon_dali.shards import prepare_dataset
from energon_dali.shards.index.media_index_file import MEDIA_INDEX_NAME
from energon_dali.shards.prepare.media_tables import add_media_metadata
from tests.av.corpus import VideoRecipe, encode_video
from tests.shards.tars import write_tar

RESULT = ROOT / "benchmarks" / "results" / "media-index.json"
VIDEOS_PER_SHARD = 100
FRAMES, RATE = 150, 30
CODECS = (
    VideoRecipe("h264", "mp4", b_frames=2),
    VideoRecipe("h264", "mkv", b_frames=2),
    VideoRecipe("hevc", "mp4", b_frames=2),
    VideoRecipe("vp9", "webm"),
    VideoRecipe("av1", "mp4"),
    VideoRecipe("h264", "mp4", b_frames=2, muxer_options=(("movflags", "frag_keyframe+empty_moov"),)),
)
GOPS = (30, 60, 90, 150)


def encode_all() -> list[tuple[str, bytes]]:
    """Returns (suffix, content) of the different videos: each codec with several lengths of groups, with and without
    audio.
    """
    found = []
    for recipe in CODECS:
        for number, gop in enumerate(GOPS):
            audio = None if number % 2 else "libopus" if recipe.container == "webm" else "aac"
            size = (320 + 16 * number, 240)
            chosen = replace(recipe, frames=FRAMES, rate=Fraction(RATE), gop=gop, size=size, audio=audio)
            found.append((recipe.container, encode_video(chosen)))
    return found


def make_dataset(folder: Path, count: int) -> None:
    """Writes shards of videos with captions, and prepares them."""
    videos = encode_all()
    for shard in range(-(-count // VIDEOS_PER_SHARD)):
        files: dict[str, bytes] = {}
        for number in range(shard * VIDEOS_PER_SHARD, min(count, (shard + 1) * VIDEOS_PER_SHARD)):
            suffix, content = videos[number % len(videos)]
            files |= {f"{number:06d}.{suffix}": content, f"{number:06d}.txt": b"what is seen"}
        write_tar(folder / f"shard_{shard:04d}.tar", files)
    prepare_dataset(str(folder))


def index_dataset(path: str, workers: int, is_indexed: bool) -> dict[str, float]:
    """Runs prepare-media in this process and those that it starts."""
    began = time.perf_counter()
    indexer = MediaIndexer() if is_indexed else None
    counts = add_media_metadata(path, MediaFilter("EXTENSION"), index_media=indexer, num_workers=workers)
    seconds = time.perf_counter() - began
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(use.ru_utime + use.ru_stime for use in usage)
    return {
        "files": counts.described,
        "indexed": counts.indexed,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "files_per_second": counts.described / seconds,
    }


def measure(folder: Path, workers: int, what: str) -> dict[str, Any]:
    """Returns the numbers of one case, which runs in a process of its own."""
    index = folder / ".nv-meta" / MEDIA_INDEX_NAME
    if what != "again":
        index.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="energon-dali-media-") as cache:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache}
        command = [sys.executable, "-m", "benchmarks.media_index", "--case", str(folder), str(workers), what]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    found = {"processes": workers, "what": what, **json.loads(done.stdout.splitlines()[-1])}
    if index.exists():
        found["bytes"] = index.stat().st_size
        found["digest"] = hashlib.sha256(index.read_bytes()).hexdigest()
    return found


def bytes_per_frame() -> dict[str, dict[str, float]]:
    """Returns bytes of the index of each video, per frame of it: without and with audio."""
    found: dict[str, dict[str, float]] = {}
    for suffix, content in encode_all():
        stored = MediaIndexer()(content)
        index = read_media_index(stored)
        assert index.video is not None, "every one is a video"
        name = f"{index.video.facts.codec} in {suffix}, {'with' if index.audio else 'without'} audio"
        found.setdefault(name, {})[f"{len(found.get(name, {}))}"] = len(stored) / FRAMES
    return found


def repeat(index: MediaIndex, times: int) -> MediaIndex:
    """Returns the index of a file in which the packets of the video follow one another `times` times."""
    video = index.video
    assert video is not None, "it is a video"
    assert video.frames is not None, "it is a video"
    count, packets = len(video), video.packets
    part = np.repeat(np.arange(times), count)
    span = FRAMES * round(1 / (RATE * video.facts.time_base))

    def again(column: Any, step: int = 0) -> Any:
        return np.tile(column, times) + step * part if step else np.tile(column, times)

    table = replace(
        packets,
        pts=again(packets.pts, span),
        dts=again(packets.dts, span),
        durations=again(packets.durations),
        offsets=again(packets.offsets, index.size_bytes),
        is_key=again(packets.is_key),
        is_hidden=again(packets.is_hidden),
    )
    positions = order_by_time(table)
    frames = list_frames(
        table, positions, table.pts[positions], video.facts.time_base, is_intra_only=False, proven=False
    )
    long: StreamIndex = replace(
        video,
        packets=table,
        payload_offsets=again(video.payload_offsets, index.size_bytes),
        sizes=again(video.sizes),
        checks=again(video.checks),
        frames=frames,
    )
    return replace(index, size_bytes=index.size_bytes * times, video=long, audio=None)


def seconds_of(function: Callable[[], object], times: int) -> float:
    """Returns the least processor seconds of a call."""
    found = []
    for _ in range(times):
        began = time.process_time()
        function()
        found.append(time.process_time() - began)
    return min(found)


def hour() -> dict[str, float]:
    """Returns what reading the index of an hour of video takes."""
    content = encode_video(replace(CODECS[0], frames=FRAMES, rate=Fraction(RATE), gop=60))
    with MediaFile(content) as file:
        index = repeat(index_media(file), 3600 * RATE // FRAMES)
    stored = pack_media_index(index)
    return {
        "frames": 3600 * RATE,
        "bytes": len(stored),
        "read_seconds": seconds_of(lambda: read_media_index(stored), 20),
        "pack_seconds": seconds_of(lambda: pack_media_index(index), 3),
    }


def main() -> None:
    """Measures all cases and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        path, workers, what = options.case
        print(json.dumps(index_dataset(path, int(workers), what != "descriptions alone")))
        return
    results = []
    with tempfile.TemporaryDirectory(prefix="energon-dali-media-") as temporary:
        folder = Path(temporary)
        make_dataset(folder, options.videos)
        for workers, what in ((1, "descriptions alone"), (1, "index"), (2, "index"), (1, "again")):
            results.append(measure(folder, workers, what))
            print(json.dumps(results[-1]), flush=True)
        size = sum(path.stat().st_size for path in folder.glob("*.tar"))
    digests = {found["digest"] for found in results if "digest" in found}
    assert len(digests) == 1, "the files of indices differ"
    stored = next(found["bytes"] for found in results if found["what"] == "index")
    document = {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commit": commit(ROOT),
        "videos": options.videos,
        "bytes": size,
        "frames_per_video": FRAMES,
        "index_bytes_per_frame": stored / options.videos / FRAMES,
        "bytes_per_frame": bytes_per_frame(),
        "hour": hour(),
        "cases": results,
    }
    print(json.dumps({name: document[name] for name in ("index_bytes_per_frame", "hour")}))
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
