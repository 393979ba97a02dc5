"""What ranks that share their batches read, decode, use and wait for, next to ranks that each read for themselves.

    python -m benchmarks.shared_ranks [--ranks 4] [--batches 60] [--repetitions 3]
    python -m benchmarks.shared_ranks --published [--repetitions 100]

The first compares the processor time, memory and images per second of one node whose ranks all need the same batches of
decoded JPEGs. The second measures `next` of a follower for a batch of 50 MB that is published, which it does not touch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import energon_dali as ed
from benchmarks.data.recipe import Recipe
from benchmarks.environments import ROOT
from benchmarks.workload_run import prepared

JPEGS = Recipe(name="jpegs", samples=1000, style="jpeg", seed=1)
BATCH = 16
PUBLISHED_BYTES = 50 << 20


class Large(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Makes batches of 50 MB without decoding."""

    decoder = None

    @ed.stateless
    def encode_sample(self, sample: Any) -> Any:
        return torch.zeros(PUBLISHED_BYTES // 4)

    def batch(self, samples: list[Any]) -> Any:
        return {"tensor": samples[0]}


class Pictures(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Decodes images."""

    decoder = ed.SampleDecoder()

    def batch(self, samples: list[Any]) -> Any:
        return {"images": [sample.image for sample in samples]}


def be_rank(rank: int, options: argparse.Namespace, data: Path, folder: Path, *, shared: bool) -> None:
    """Takes batches in one rank, and writes down what that took."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks)
    mesh = init_device_mesh("cpu", (1, options.ranks), mesh_dim_names=("dp", "tp"))
    if shared:
        config = ed.WorkerConfig.from_mesh(mesh, data="dp", shared="tp", num_workers=0 if options.published else 1)
    else:
        config = ed.WorkerConfig(rank=0, world_size=1, num_workers=1)
    encoder = Large() if options.published else Pictures()
    dataset = ed.get_train_dataset(
        data, worker_config=config, batch_size=1 if options.published else BATCH, task_encoder=encoder
    )
    with ed.get_savable_loader(dataset) as loader:
        batches = iter(loader)
        next(batches)
        dist.barrier()
        waits, began = [], time.perf_counter()
        for _ in range(options.batches):
            if options.published:
                time.sleep(0.1)  # until it is published
            started = time.perf_counter()
            batch = next(batches)
            waits.append(time.perf_counter() - started)
        seconds = time.perf_counter() - began
        memory = _memory()
        dist.barrier()
        del batch
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    report = {
        "kind": type(loader).__name__,
        "seconds": seconds,
        "processor": sum(one.ru_utime + one.ru_stime for one in usage),
        "memory": memory,
        "wait": statistics.median(waits),
    }
    (folder / f"{rank}.json").write_text(json.dumps(report))
    os._exit(0)


def _memory() -> int:
    """Returns the bytes of this process and its workers; what several share is divided among them."""
    pids = [os.getpid(), *map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())]
    lines = itertools.chain.from_iterable(Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids)
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def run(options: argparse.Namespace, data: Path, *, shared: bool) -> list[dict[str, Any]]:
    """Returns the reports of all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(options.ranks):
            pid = os.fork()
            if not pid:
                try:
                    be_rank(rank, options, data, Path(folder), shared=shared)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            children.append(pid)
        for pid in children:
            if os.waitpid(pid, 0)[1]:
                sys.exit("A rank failed; its output is above.")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(options.ranks)]


def main() -> None:
    """Prints medians, and ratios of shared to separate reading."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--published", action="store_true", help="measure next for a published batch of 50 MB")
    options = parser.parse_args()
    data = prepared(JPEGS, ROOT / ".cache" / "benchmarks")
    if options.published:
        options.ranks = 2
        for _ in range(options.repetitions):
            waits = {report["kind"]: 1e6 * report["wait"] for report in run(options, data, shared=True)}
            print(", ".join(f"{kind}: {wait:.0f} us" for kind, wait in sorted(waits.items())), flush=True)
        return
    ratios: dict[str, list[float]] = {"seconds": [], "processor": [], "memory": []}
    for _ in range(options.repetitions):
        found = {shared: run(options, data, shared=shared) for shared in (False, True)}
        for shared, reports in found.items():
            images = options.batches * BATCH / max(report["seconds"] for report in reports)
            processor, memory = (sum(report[name] for report in reports) for name in ("processor", "memory"))
            print(
                f"{'shared  ' if shared else 'separate'} {images:7.0f} images/s per rank, {processor:6.2f} s of "
                f"processor time, {memory / 1e6:6.0f} MB on the node",
                flush=True,
            )
        ratios["seconds"].append(_largest(found[True], "seconds") / _largest(found[False], "seconds"))
        for name in ("processor", "memory"):
            ratios[name].append(sum(one[name] for one in found[True]) / sum(one[name] for one in found[False]))
    for name, values in ratios.items():
        print(f"{name}: {statistics.median(values):.2f} of separate ({min(values):.2f} to {max(values):.2f})")


def _largest(reports: list[dict[str, Any]], name: str) -> float:
    return max(float(report[name]) for report in reports)


if __name__ == "__main__":
    main()
