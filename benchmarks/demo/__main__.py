"""`python -m benchmarks.demo [--data PATH]`: datasets of images and of videos through every decoder of this machine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.data.recipe import Recipe
from benchmarks.demo.contact_sheet import write_clips_sheet, write_contact_sheet
from benchmarks.demo.dataset import CAPTIONS, VIDEOS, DemoDataset, NoDatasetError, own_dataset, users_dataset
from benchmarks.demo.encoder import decoders_of_this_machine

ROOT = Path(__file__).resolve().parent.parent.parent


def main(arguments: list[str] | None = None, recipe: Recipe = CAPTIONS, videos: Recipe = VIDEOS) -> int:
    """Runs the demo; returns 0 if every decoder succeeded.

    Args:
        arguments: Command line; None takes the process's own.
        recipe: The demo's own dataset of images.
        videos: Its own dataset of videos.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--data", help="your own tar shards, or a prepared dataset; it is only read")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to (default: demo)")
    parser.add_argument("--batches", type=int, default=40, help="batches of 64 images per decoder (default: 40)")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="worker processes")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        dataset = users_dataset(options.data, options.out) if options.data else own_dataset(options.out, recipe)
    except NoDatasetError as error:
        print(error, file=sys.stderr)
        return 2
    worked = _show("images", dataset, options)
    if not options.data:
        worked &= _show("videos", own_dataset(options.out, videos), options)
    return int(not worked)


def _show(media: str, dataset: DemoDataset, options: argparse.Namespace) -> bool:
    """Runs every decoder on a dataset, prints results and writes an image; returns whether all succeeded."""
    print(f"\nDataset: {dataset.origin}")
    rows = []
    sheet = options.out / ("clips_sheet.png" if media == "videos" else "contact_sheet.png")
    for name in decoders_of_this_machine():
        row, batch = _run(media, name, dataset.path, options)
        rows.append(row)
        if batch is not None and not rows[:-1]:
            if media == "videos":
                write_clips_sheet(batch["clips"], batch["seconds"], batch["caption"], sheet)
            else:
                write_contact_sheet(batch["image"], batch["caption"], sheet)
    print("\n" + table(rows))
    print(f"\nA batch as it reaches the trainer: {sheet}")
    return not any("error" in row for row in rows)


def _run(
    media: str, name: str, dataset: str, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Runs one decoder in its own process, so that none warms up another."""
    pictures = options.out / "batch.pt"
    told = {"media": media, "decoder": name, "dataset": dataset, "batches": options.batches, "workers": options.workers}
    command = [sys.executable, "-m", "benchmarks.demo.one_decoder", json.dumps({**told, "sheet": str(pictures)})]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        return {"decoder": name, "error": f"ended with {done.returncode}, see above"}, None
    batch = torch.load(pictures, weights_only=True)
    pictures.unlink()
    return json.loads(done.stdout.splitlines()[-1]), batch


def table(rows: list[dict[str, Any]]) -> str:
    """Formats the results of the decoders as text."""
    head = ("decoder", "samples/s", "first batch", "trainer blocked", "decode routes")
    cells = [head]
    for row in rows:
        if "error" in row:
            cells.append((row["decoder"], row["error"], "", "", ""))
            continue
        routes = ", ".join(f"{route} {count}" for route, count in sorted(row["routes"].items()))
        failed = f", {row['failed']} failed" if row["failed"] else ""
        cells.append(
            (
                row["decoder"],
                f"{row['samples_per_second']:.0f}",
                f"{row['first_batch_seconds']:.2f} s",
                f"{row['blocked_share']:.1%}",
                routes + failed,
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
