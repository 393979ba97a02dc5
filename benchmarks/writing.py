"""Packs 10,000 images with captions: `energon-dali pack` compared with webdataset's ShardWriter and img2dataset.

    python -m benchmarks.writing --json benchmarks/results/writing.json [--images 10000] [--img2dataset PYTHON]

Every writer runs in a process of its own, several times, in turns. Written files are removed after each run. `pack`
also looks at the header of each image, syncs the shards to the disk, and indexes them; ShardWriter does none of this.
img2dataset needs an environment of its own: give its Python. It gets a part of the same images by file:// URLs, and
copies them without encoding them again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, describe_machine, describe_versions

ROOT = Path(__file__).resolve().parent.parent
IMAGES = 10_000
REPETITIONS = 5
PER_SHARD = 2_000
IMG2DATASET_SHARE = 10
"""img2dataset gets one in this many images, because it needs about ten times as long for each."""


def write_loose_files(folder: Path, images: int) -> Path:
    """Makes a folder of images with captions, and a table with their URLs; returns the folder."""
    import webdataset

    # Imported here: each process that writes shards imports this module.
    from benchmarks.data.recipe import Recipe, make_dataset

    root = folder / f"loose-{images}"
    if (root / "complete").exists():
        return root / "images"
    shutil.rmtree(root, ignore_errors=True)
    (root / "images").mkdir(parents=True)
    recipe = Recipe(
        name="writing",
        samples=IMAGES,
        shards=4,
        style="jpeg",
        width=500,
        height=375,
        target_bytes=110_000,
        distinct=400,
        seed=41,
    )
    made = make_dataset(recipe, folder, progress=False)
    rows: list[dict[str, str]] = []
    for sample in webdataset.WebDataset([str(path) for path in sorted(made.glob("*.tar"))], shardshuffle=False):
        if len(rows) == images:
            break
        file = root / "images" / f"{sample['__key__']}.jpg"
        file.write_bytes(sample["jpg"])
        file.with_suffix(".txt").write_bytes(sample["txt"])
        rows.append({"url": file.as_uri(), "caption": sample["txt"].decode()})
    (root / "table.json").write_text(json.dumps(rows))
    (root / "complete").touch()
    return root / "images"


def with_pack(source: Path, out: Path, workers: int) -> None:
    """Runs `energon-dali pack`, as a function."""
    from energon_dali.cli.media_options import check_image
    from energon_dali.pack import PackOptions, pack_dataset

    pack_dataset(source, out, PackOptions(max_samples=PER_SHARD), num_workers=workers, check_part=check_image)


def with_shard_writer(source: Path, out: Path) -> None:
    """Writes with webdataset's ShardWriter, as its documentation shows."""
    import webdataset

    out.mkdir()
    with webdataset.ShardWriter(str(out / "train-%06d.tar"), maxcount=PER_SHARD, verbose=0) as writer:
        for file in sorted(source.glob("*.jpg")):
            writer.write({"__key__": file.stem, "jpg": file.read_bytes(), "txt": file.with_suffix(".txt").read_bytes()})


def with_shard_writer_and_prepare(source: Path, out: Path, workers: int) -> None:
    """The same, and then what `energon-dali prepare` does: a dataset that loads, as `pack` makes it."""
    from energon_dali.cli.media_options import check_image
    from energon_dali.shards import prepare_dataset

    with_shard_writer(source, out)
    prepare_dataset(str(out), num_workers=workers, check_part=check_image)


def with_img2dataset(source: Path, out: Path, workers: int, python: str) -> None:
    """Runs img2dataset in its own environment; it writes tars of the same images without encoding them again."""
    program = (
        "import sys; from img2dataset import download\n"
        "if __name__ == '__main__':\n"
        "    table, out, workers, shard = sys.argv[1:]\n"
        "    download(url_list=table, input_format='json', url_col='url', caption_col='caption', output_folder=out,\n"
        "        output_format='webdataset', processes_count=int(workers), thread_count=16, resize_mode='no',\n"
        "        disable_all_reencoding=True, number_sample_per_shard=int(shard), enable_wandb=False)\n"
    )
    script = out.parent / "with_img2dataset.py"
    script.write_text(program)
    table = out.parent / "table.json"
    rows = json.loads((source.parent / "table.json").read_text())
    table.write_text(json.dumps(rows[: len(rows) // IMG2DATASET_SHARE]))
    subprocess.run(
        [python, str(script), str(table), str(out), str(workers), str(PER_SHARD)], check=True, capture_output=True
    )


def measured(write: Callable[[], None]) -> dict[str, float]:
    """Runs a writer in a forked process; returns wall and CPU seconds, children included."""
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError("a writer failed; see above")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu}


def written(out: Path) -> tuple[int, int]:
    """Returns (samples, bytes) in the shards of a folder."""
    import tarfile

    samples = size = 0
    for path in out.rglob("*.tar"):
        with tarfile.open(path) as tar:
            samples += sum(name.endswith(".jpg") for name in tar.getnames())
        size += path.stat().st_size
    return samples, size


def main(arguments: list[str] | None = None) -> int:
    """Runs all writers in turns; prints and stores images/s, and the ratios to ShardWriter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--img2dataset", metavar="PYTHON", help="Python of an environment that has img2dataset")
    options = parser.parse_args(arguments)
    source = write_loose_files(ROOT / ".cache" / "benchmarks", options.images)
    workers = options.workers
    writers: dict[str, Callable[[Path], None]] = {
        "webdataset.ShardWriter": lambda out: with_shard_writer(source, out),
        "webdataset.ShardWriter, then prepare": lambda out: with_shard_writer_and_prepare(source, out, workers),
        "energon-dali pack, 1 process": lambda out: with_pack(source, out, 1),
        f"energon-dali pack, {workers} processes": lambda out: with_pack(source, out, workers),
    }
    if options.img2dataset:
        python = options.img2dataset
        writers[f"img2dataset, {workers} processes"] = lambda out: with_img2dataset(source, out, workers, python)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in writers}
    images = {name: options.images // (IMG2DATASET_SHARE if name.startswith("img2dataset") else 1) for name in writers}
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        for repetition in range(options.repetitions + 1):
            for name, write in writers.items():
                if not repetition and name.startswith("img2dataset"):
                    continue  # the first round fills the page cache, for which the others suffice
                out = Path(folder, "out")
                found = measured(lambda write=write, out=out: write(out))  # type: ignore[misc]
                samples, _ = written(out)
                if samples != images[name]:
                    raise RuntimeError(f"{name} wrote {samples} of {images[name]} images")
                shutil.rmtree(out)
                if repetition:
                    runs[name].append(found)
    report = summarise(runs, images)
    for row in report["writers"]:
        print(
            f"{row['name']:<40} {row['images_per_second']:8.0f} images/s  "
            f"{row['cpu_us_per_image']:6.0f} us of CPU per image  {row['ratio']:.2f} of ShardWriter"
        )
    if options.json:
        command = ["python", "-m", "benchmarks.writing", *(sys.argv[1:] if arguments is None else arguments)]
        facts: dict[str, Any] = {
            "command": shlex.join(command),
            "commit": commit(ROOT),
            "machine": describe_machine(),
            "versions": describe_versions(),
        }
        options.json.write_text(json.dumps({**facts, **report}, indent=1) + "\n")
    return 0


def summarise(runs: dict[str, list[dict[str, float]]], images: dict[str, int]) -> dict[str, Any]:
    """Returns the medians of each writer, and its ratio to the first one, round by round."""
    first = next(iter(runs))
    rows = []
    for name, found in runs.items():
        share = images[name] / images[first]
        pairs = zip(runs[first], found, strict=True)
        ratios = [share * base["seconds"] / run["seconds"] for base, run in pairs]
        rows.append(
            {
                "name": name,
                "images": images[name],
                "images_per_second": images[name] / statistics.median(run["seconds"] for run in found),
                "cpu_us_per_image": statistics.median(run["cpu_seconds"] for run in found) / images[name] * 1e6,
                "ratio": statistics.median(ratios),
                "runs": found,
            }
        )
    return {"writers": rows}


if __name__ == "__main__":
    sys.exit(main())
