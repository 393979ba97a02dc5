"""Measures the effect of each DALI setting on decoding speed, and where DALI is faster than PIL and PyAV.

`python -m benchmarks.tuning --device gpu --json FILE` measures and prints tables. `--table FILE` prints the entries for
energon_dali/decode/dali/thresholds.py, and `--docs` updates the tables of docs/dali-crossover.md from
benchmarks/results/tuning-cpu.json and tuning-gpu.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.machine import commit, describe_machine, describe_versions
from benchmarks.tuning_crossover import Kind, as_markdown, as_python, sweep_clips, sweep_images
from benchmarks.tuning_media import jpegs
from energon_dali.decode import DaliDecoder, Decoded, MediaHandle
from energon_dali.decode.dali import DaliTuning, close_engines

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "dali-crossover.md"
BEGIN, END = "<!-- tables by python -m benchmarks.tuning --docs -->", "<!-- end of tables -->"
PARTS = ("settings", "images", "clips")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the sweep."""

    block: int = 64
    """Images per block and per run."""
    num_threads: int | None = None
    """CPU threads; None is the default of DaliDecoder."""
    tuning: DaliTuning = field(default_factory=DaliTuning)
    """Other options."""


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Encoded images to decode."""

    name: str
    """Label in tables."""
    files: list[bytes]
    """Encoded size in bytes."""
    size: tuple[int, int]
    """Largest width and height."""


def settings(kind: Kind, size: tuple[int, int], *, quick: bool) -> dict[str, dict[str, Setting]]:
    """Returns the points by factor; each differs from the defaults in that factor only."""
    cores = len(os.sched_getaffinity(0))
    default, tuning = Setting(), DaliTuning()
    threads = [number for number in (1, 2, 4, 8, 16, 32) if number <= cores]
    found = {
        "num_threads": {str(number): replace(default, num_threads=number) for number in threads},
        "block": {str(number): replace(default, block=number) for number in (16, 32, 64, 128)},
        "runs_in_flight": {
            str(number): replace(default, tuning=replace(tuning, runs_in_flight=number)) for number in (1, 2, 3, 4)
        },
    }
    if kind == "gpu":
        changes: dict[str, list[tuple[str, dict[str, Any]]]] = {
            "hw_decoder_load": [
                (str(load), {"hw_decoder_load": load}) for load in (0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0)
            ],
            "preallocate hints": [
                ("none", {}),
                (f"{size[0]} x {size[1]}", {"preallocate_width_hint": size[0], "preallocate_height_hint": size[1]}),
            ],
            "device_memory_padding": [(f"{n} MiB", {"device_memory_padding": n * MIB}) for n in (0, 16, 64)],
            "host_memory_padding": [(f"{n} MiB", {"host_memory_padding": n * MIB}) for n in (0, 8, 32)],
            "hybrid_huffman_threshold": [
                (str(n), {"hybrid_huffman_threshold": n}) for n in (100_000, 1_000_000, 1_000_000_000)
            ],
            "jpeg_fancy_upsampling": [(str(on), {"jpeg_fancy_upsampling": on}) for on in (True, False)],
        }
        for factor, points in changes.items():
            found[factor] = {label: replace(default, tuning=replace(tuning, **change)) for label, change in points}
    if quick:
        found = {factor: dict(list(points.items())[:2]) for factor, points in list(found.items())[:2]}
    return found


def measure(kind: Kind, setting: Setting, images: ImageSet, seconds: float) -> dict[str, float]:
    """Returns images/s and processor time per image of a decoder that always has two blocks in flight."""
    decoder = DaliDecoder(
        image_decode="torchrgb8",
        image_decode_device=kind,
        num_threads=setting.num_threads,
        max_batch_size=setting.block,
        tuning=setting.tuning,
    )
    handles = [decoder.stage("jpg", data) for data in images.files]
    block: list[MediaHandle] = [handles[i % len(handles)] for i in range(setting.block)]
    waiting = deque(decoder.submit_block(block) for _ in range(2))
    for _ in range(2):
        assert all(isinstance(outcome, Decoded) for outcome in waiting.popleft().result())
        waiting.append(decoder.submit_block(block))
    start, cpu_start, done = time.perf_counter(), time.process_time(), 0
    while done == 0 or time.perf_counter() - start < seconds:
        waiting.popleft().result()
        done += len(block)
        waiting.append(decoder.submit_block(block))
    if kind == "gpu":
        import torch

        torch.cuda.synchronize()
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    while waiting:
        waiting.popleft().result()
    close_engines()
    return {"images_per_s": done / elapsed, "processor_us": cpu / done * 1e6}


def sweep_settings(kind: Kind, *, quick: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields one row per set of images and point; the defaults are measured before and after each point."""
    cores = len(os.sched_getaffinity(0))
    if quick:
        sets = [ImageSet("small", jpegs(4, (160, 120), None, threads=cores), (160, 120))]
    else:
        sets = [
            ImageSet("500 x 375, 110 KB", jpegs(64, (500, 375), 110_000, threads=cores), (500, 375)),
            ImageSet("1920 x 1080", jpegs(16, (1920, 1080), None, threads=cores), (1920, 1080)),
        ]
    for images in sets:
        before = measure(kind, Setting(), images, seconds)
        for factor, points in settings(kind, images.size, quick=quick).items():
            for label, setting in points.items():
                found = measure(kind, setting, images, seconds)
                after = measure(kind, Setting(), images, seconds)
                defaults = statistics.mean((before["images_per_s"], after["images_per_s"]))
                yield {
                    "pictures": images.name,
                    "factor": factor,
                    "value": label,
                    "default": setting == Setting(),
                    **{name: round(value, 1) for name, value in found.items()},
                    "ratio": round(found["images_per_s"] / defaults, 3),
                }
                before = after


def as_text(row: dict[str, Any]) -> str:
    """Formats a row of a sweep as a line of text."""
    if "factor" in row:
        return (
            f"{row['pictures']:<18} {row['factor']:<25} {row['value']:<14} {row['images_per_s']:10,.0f} images/s "
            f"{row['ratio']:6.2f} of the defaults{'  (the default)' if row['default'] else ''}"
        )
    frames = f", {row['frames']} frames" if "frames" in row else ""
    return (
        f"{row['format']} {row['width']} x {row['height']}{frames}: DALI {row['dali_us']:,.0f} us "
        f"({row['dali_processor_us']:,.0f} of processor), PIL or PyAV {row['cpu_processor_us']:,.0f}; "
        f"ratio {row['ratio']:.2f}"
    )


def renew_page(page: Path = PAGE, results: Path = RESULTS) -> str:
    """Returns the page with its tables updated from the available results, without those of quick runs."""
    paths = {kind: results / f"tuning-{kind}.json" for kind in ("cpu", "gpu")}
    reports = {kind: json.loads(path.read_text()) for kind, path in paths.items() if path.exists()}
    reports = {kind: report for kind, report in reports.items() if not report["quick"]}
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{as_markdown(reports)}\n{END}{tail}"


def main(arguments: list[str] | None = None) -> int:
    """Runs the measurements, or creates tables of results."""
    options = parse(arguments)
    if options.table is not None:
        told = json.loads(options.table.read_text())
        print(as_python(told["crossover"], told["device"]))
        return 0
    if options.docs:
        PAGE.write_text(renew_page(), encoding="utf-8")
        return 0
    given = sys.argv[1:] if arguments is None else arguments
    report: dict[str, Any] = {
        "device": options.device,
        "command": shlex.join(["python", "-m", "benchmarks.tuning", *given]),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(ROOT),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "quick": options.quick,
        "settings": [],
        "crossover": [],
    }
    for part in options.only or PARTS:
        if part == "settings":
            rows = sweep_settings(options.device, quick=options.quick, seconds=options.seconds)
        else:
            rows = (sweep_images if part == "images" else sweep_clips)(options.device, quick=options.quick)
        for row in rows:
            report["settings" if part == "settings" else "crossover"].append(row)
            print(as_text(row), flush=True)
            if options.json is not None:  # after each row, so that an interrupted run keeps its results
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(as_python(report["crossover"], options.device))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="where DALI decodes")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--quick", action="store_true", help="a smoke test; its numbers mean nothing")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=(), help="parts to run")
    parser.add_argument("--seconds", type=float, default=None, help="time per point of the settings (default: 1)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the crossover table of a result and exit")
    parser.add_argument("--docs", action="store_true", help="update the tables of the documentation and exit")
    options = parser.parse_args(arguments)
    if options.seconds is None:
        options.seconds = 0.05 if options.quick else 1.0
    return options


if __name__ == "__main__":
    sys.exit(main())
