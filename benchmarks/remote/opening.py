"""How long opening a metadataset of many datasets on S3 takes: `python -m benchmarks.remote.opening [--datasets 1000]`.

The server of `s3_server` adds a latency to each request. Each case runs in a process of its own, which prints seconds,
processor time and the requests that were counted. One case gives each dataset of the same metadataset to
`get_train_dataset` by itself, one after the other: what opening would take without fetching files together. In the last
cases the processes of a node open the metadataset several times each, as ranks of one job and each for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import describe_machine, describe_versions
from benchmarks.remote.s3_server import ROOT, S3Server
from energon_dali.shards import prepare_dataset
from tests.shards.tars import write_tar

BUCKET = "data"
DATASET = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "txt"},
}
FORM = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}


TOGETHER = {"ranks of a job": "benchmark", "ranks apart": ""}
"""Cases of several processes, and the name of their job."""
PROCESSES, OPENINGS = 8, 8
"""How many processes there are, and how often each of them opens the metadataset."""


def make_datasets(folder: Path, count: int) -> None:
    """Writes `count` prepared datasets of two shards, and metadatasets that name them."""
    for number in range(count):
        root = folder / BUCKET / f"dataset_{number:04d}"
        for shard in range(2):
            write_tar(root / f"shard_{shard}.tar", {f"{number}_{shard}_{i}.txt": b"text" for i in range(5)})
        prepare_dataset(str(root), split_ratio={"train": 1, "val": 1})
        (root / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(DATASET))
    for size in sorted({1, 10, count // 10, count}):
        names = [f"dataset_{number:04d}" for number in range(size)]
        splits = {part: {"blend": [{"path": name, "weight": 1} for name in names]} for part in ("train", "val")}
        (folder / BUCKET / f"blend_{size}.yaml").write_text(yaml.safe_dump({**FORM, "splits": splits}))
        nested = {"train": {"blend": [{"path": f"inner_{name}.yaml", "weight": 1} for name in names]}}
        (folder / BUCKET / f"nested_{size}.yaml").write_text(yaml.safe_dump({**FORM, "splits": nested}))
    for number in range(count):
        inner = {"train": {"path": f"dataset_{number:04d}"}}
        path = folder / BUCKET / f"inner_dataset_{number:04d}.yaml"
        path.write_text(yaml.safe_dump({**FORM, "splits": inner}))


def open_path(kind: str, size: int) -> dict[str, float]:
    """Opens a metadataset in this process, whose environment leads to the server."""
    from energon_dali import WorkerConfig, get_train_dataset, get_val_datasets

    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    base = f"s3://{BUCKET}"
    get_train_dataset(f"{base}/dataset_0000", worker_config=config, batch_size=4)  # imports, and the first connection
    wall, cpu = time.perf_counter(), time.process_time()
    opened: Any
    if kind == "validation":
        opened = get_val_datasets(f"{base}/blend_{size}.yaml", worker_config=config, batch_size=4)
    elif kind == "one by one":
        opened = [
            get_train_dataset(f"{base}/dataset_{number:04d}", worker_config=config, batch_size=4)
            for number in range(size)
        ]
    elif kind in TOGETHER:
        for _ in range(OPENINGS):
            opened = get_train_dataset(f"{base}/blend_{size}.yaml", worker_config=config, batch_size=4)
    else:
        opened = get_train_dataset(f"{base}/{kind}_{size}.yaml", worker_config=config, batch_size=4)
    seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    if kind == "blend":
        wall = time.perf_counter()
        opened.config()
        seconds["seconds_for_identities"] = time.perf_counter() - wall
        wall = time.perf_counter()
        pickle.loads(pickle.dumps(opened))
        seconds["seconds_to_unpickle"] = time.perf_counter() - wall
    return seconds


def measure(server: S3Server, kind: str, size: int) -> dict[str, Any]:
    """Returns the numbers of one case, which runs in a process of its own."""
    before = server.counters()
    environment = {**os.environ, **server.environment(), "PYTHONPATH": str(ROOT), "ENERGON_DALI_JOB": ""}
    command = [sys.executable, "-m", "benchmarks.remote.opening", "--case", kind, str(size)]
    if kind in TOGETHER:
        environment["ENERGON_DALI_JOB"] = TOGETHER[kind]
    running = [
        subprocess.Popen(command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES if kind in TOGETHER else 1)
    ]
    printed = [process.stdout.readline() for process in running if process.stdout is not None]
    for process in running:
        process.communicate()  # all stay until all have opened, as ranks do
    if any(process.returncode for process in running):
        raise RuntimeError(f"{' '.join(command)} failed; its output is above.")
    found = [json.loads(text) for text in printed]
    counters = server.counters()
    return {
        "kind": kind,
        "datasets": size,
        "processes": len(running),
        **{name: max(one[name] for one in found) for name in found[0]},
        "requests": {
            method: number - before["requests"].get(method, 0) for method, number in counters["requests"].items()
        },
        "most_in_flight": counters["most_in_flight"],
        "server_cpu_seconds": counters["cpu_seconds"] - before["cpu_seconds"],
    }


def main() -> None:
    """Measures all cases and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=1000)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds per request")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/remote-opening.json")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(open_path(options.case[0], int(options.case[1]))), flush=True)
        sys.stdin.read()
        return
    count = options.datasets
    cases = [("one by one", max(1, count // 10)), ("blend", 1), ("blend", max(1, count // 10))]
    cases += [("blend", count), ("nested", count), ("validation", count), *((kind, count) for kind in TOGETHER)]
    results = []
    with tempfile.TemporaryDirectory(prefix="energon-dali-opening-") as folder:
        make_datasets(Path(folder), count)
        with S3Server(folder, latency_seconds=options.latency) as server:
            for kind, size in cases:
                results.append(measure(server, kind, size))
                print(json.dumps(results[-1]), flush=True)
    document = {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "latency_seconds": options.latency,
        "cases": results,
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
