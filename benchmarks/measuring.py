"""How fast `energon-dali measure` is: texts and images, with one process and with several.

python -m benchmarks.measuring FOLDER                    # a million texts, 50,000 images; needs 1.2 GB in FOLDER
python -m benchmarks.measuring FOLDER --kills 20         # and killed 20 times
python -m benchmarks.measuring FOLDER --samples 20000 --images 2000 --processes 1 2
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.machine import describe_machine
from energon_dali import DefaultTaskEncoder, FrontEnd, SampleDecoder, measure_datasets, stateless
from energon_dali.shards import StoragePath, prepare_dataset
from energon_dali.shards.measures import MeasureFile
from energon_dali.shards.meta.dataset_config import write_dataset_config

ROOT = Path(__file__).resolve().parent.parent
TEXTS_PER_SHARD, IMAGES_PER_SHARD = 10_000, 1000
DISTINCT_IMAGES = 64
START_SECONDS = 4.0
"""Time that the command takes before it measures."""
WORDS = ("a", "the", "of", "green", "small", "boat", "house", "river", "under", "walks", "sees", "old", "light", "and")
QWEN = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Splits a text at spaces: what a fast tokenizer costs is not part of the measurement."""

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        sample.tokens = sample.text.split()
        return sample


class Images(DefaultTaskEncoder[Any, Any, Any, Any]):
    """A caption and an image with the front end of Qwen2-VL."""

    decoder = SampleDecoder(front_end=FrontEnd.from_processor(QWEN, image_token_id=7))

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        sample.tokens = list(range(10, 10 + len(sample.caption.split())))
        return sample


def write_shards(root: Path, count: int, per_shard: int, parts: Any) -> None:
    """Writes shards of `count` samples, whose parts a function of their number returns."""
    root.mkdir(parents=True)
    for first in range(0, count, per_shard):
        with tarfile.open(root / f"{first // per_shard:05}.tar", "w") as tar:
            for number in range(first, min(first + per_shard, count)):
                for name, content in parts(number).items():
                    member = tarfile.TarInfo(f"{number:08}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def texts(folder: Path, count: int) -> Path:
    """Returns a dataset of short texts, made if it is not there."""
    root = folder / f"texts-{count}"
    if not root.exists():
        draw = np.random.default_rng(1)

        def parts(number: int) -> dict[str, bytes]:
            return {"txt": " ".join(WORDS[word] for word in draw.integers(0, len(WORDS), 5 + number % 60)).encode()}

        write_shards(root, count, TEXTS_PER_SHARD, parts)
        finish(root, "TextSample", {"text": "txt"})
    return root


def images(folder: Path, count: int) -> Path:
    """Returns a dataset of images of many sizes and few bytes, made if it is not there."""
    root = folder / f"images-{count}"
    if not root.exists():
        encoded = []
        for number in range(DISTINCT_IMAGES):
            out = io.BytesIO()
            Image.new("RGB", (200 + 17 * number, 160 + 11 * (number * 7 % 64)), (90, number, 40)).save(out, "JPEG")
            encoded.append(out.getvalue()[:2000])  # measuring looks at headers alone

        def parts(number: int) -> dict[str, bytes]:
            return {"jpg": encoded[number % DISTINCT_IMAGES], "txt": b"a small boat"}

        write_shards(root, count, IMAGES_PER_SHARD, parts)
        finish(root, "CaptioningSample", {"image": "jpg", "caption": "txt"})
    return root


def finish(root: Path, sample_type: str, field_map: dict[str, str]) -> None:
    """Prepares a dataset."""
    prepare_dataset(str(root))
    module = "megatron.energon"
    config = {
        "__module__": module,
        "__class__": "StandardWebdatasetFactory",
        "sample_type": {"__module__": module, "__class__": sample_type},
        "field_map": field_map,
    }
    write_dataset_config(StoragePath.of(root), config)


def run(root: Path, encoder: Any, processes: int) -> dict[str, Any]:
    """Returns how long measuring takes, and a digest of the file."""
    cpu, begin = cpu_seconds(), time.perf_counter()
    (result,) = measure_datasets(root, encoder, num_workers=processes, again=True)
    seconds, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    assert result.num_measured == result.num_samples, result.unmeasured
    content = result.file.read_bytes()
    return {
        "data": root.name,
        "processes": processes,
        "samples": result.num_samples,
        "seconds": round(seconds, 1),
        "samples_per_second": round(result.num_samples / seconds),
        "samples_per_cpu_second": round(result.num_samples / cpu),
        "file_bytes": len(content),
        "file_digest": hashlib.sha256(content).hexdigest()[:16],
        "digest": values_digest(result.file.local),
    }


def interrupted(root: Path, encoder: str, kills: int, seconds: float) -> dict[str, Any]:
    """Returns how long the command takes if it is killed at random moments and started again, and a digest.

    Args:
        root: The dataset.
        encoder: Name of a task encoder of this module.
        kills: How often it is killed.
        seconds: How long it takes undisturbed.
    """
    command = [sys.executable, "-m", "energon_dali", "measure", str(root), "--again", "--no-progress"]
    command += ["--encoder", f"benchmarks.measuring:{encoder}"]
    draw, begin = random.Random(1), time.perf_counter()
    for _ in range(kills):
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(START_SECONDS + draw.uniform(0, 2 * seconds / (kills + 1)))
        process.kill()
        process.wait()
    subprocess.run(command, cwd=ROOT, check=True)
    (path,) = (path for path in (root / ".nv-meta").glob("measures-*.bin"))
    elapsed = round(time.perf_counter() - begin, 1)
    left = [str(one) for one in root.rglob("*energon-dali*")]
    return {"data": root.name, "kills": kills, "seconds": elapsed, "digest": values_digest(path), "left": left}


def values_digest(path: Path) -> str:
    """Returns a digest of all values of a measure file."""
    columns = MeasureFile(StoragePath.of(path)).description.columns
    return hashlib.sha256("".join(column.digest for column in columns).encode()).hexdigest()[:16]


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of those that it started and that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def measurements(
    folder: Path, samples: int, num_images: int, processes: Sequence[int], kills: int
) -> Iterator[dict[str, Any]]:
    """Yields one result per dataset and number of processes, and one with interruptions.

    Raises:
        RuntimeError: Files of one dataset differ.
    """
    for root, encoder in ((texts(folder, samples), Texts()), (images(folder, num_images), Images())):
        found = [run(root, encoder, count) for count in processes]
        if len({one["file_digest"] for one in found}) > 1:
            raise RuntimeError(f"{root.name}: the files differ: {found}")
        yield from found
        if kills:
            again = interrupted(root, type(encoder).__name__, kills, found[0]["seconds"])
            if again["digest"] != found[0]["digest"] or again["left"]:
                raise RuntimeError(f"{root.name}: interruptions left {again['left']}, or changed values: {again}")
            yield again


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results, and writes them with the machine beside them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measuring", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kills", type=int, default=0, help="Also kill the command this often.")
    parser.add_argument("--remove", action="store_true", help="Remove the data afterwards.")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/measuring.json")
    given = parser.parse_args(arguments)
    rows = []
    for row in measurements(given.folder, given.samples, given.images, given.processes, given.kills):
        print(json.dumps(row), flush=True)
        rows.append(row)
    given.json.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1) + "\n")
    if given.remove:
        shutil.rmtree(given.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
