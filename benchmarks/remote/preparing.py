"""How long preparing a dataset on S3 takes: `python -m benchmarks.remote.preparing [--energon PROGRAM] [--ray]`.

The same shards are prepared on a local disk and on the server of `s3_server`, which adds a latency to each request,
with different numbers of processes and of shards in flight, with a process that is killed in the middle, and on Ray.
Each case runs in a process of its own. The index files of all cases have to be equal, byte for byte. megatron-energon's
`energon prepare` runs on the same local shards.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.machine import commit, describe_machine, describe_versions
from benchmarks.remote.s3_server import S3Server
from energon_dali.cli.media_options import check_image
from energon_dali.shards import prepare_dataset
from energon_dali.shards.prepare import scanning
from tests.shards.tars import jpeg, write_tar

RESULT = ROOT / "benchmarks" / "results" / "remote-preparing.json"
BUCKET = "data"
RATIO = {"train": 8.0, "val": 1.0, "test": 1.0}
SAMPLES = 50
LARGE_SHARDS, LARGE_MEMBERS, LARGE_BYTES = 8, 6, 4 << 20


def make_shards(folder: Path, count: int) -> None:
    """Writes shards of small images with captions to `small`, and shards of large files to `large`."""
    draw = random.Random(1)
    image = jpeg(320, 240)
    for number in range(count):
        files = {}
        for sample in range(SAMPLES):
            key = f"{number:05d}_{sample:04d}"
            files[f"{key}.jpg"] = image + draw.randbytes(6000)
            files[f"{key}.txt"] = draw.randbytes(100).hex().encode()
        write_tar(folder / "small" / f"shard_{number:05d}.tar", files)
    for number in range(LARGE_SHARDS):
        content = draw.randbytes(LARGE_BYTES)
        large = {f"{number}_{member}.bin": content for member in range(LARGE_MEMBERS)}
        write_tar(folder / "large" / f"shard_{number}.tar", large)


def shard_bytes(folder: Path) -> int:
    """Returns the size of all shards."""
    return sum(path.stat().st_size for path in folder.rglob("*.tar"))


def digest_of(folder: Path) -> str:
    """Returns a digest of everything that `prepare` wrote."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".tar":
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def forget_index(folder: Path) -> None:
    """Removes everything that `prepare` wrote."""
    shutil.rmtree(folder / ".nv-meta", ignore_errors=True)
    for path in folder.rglob("*.idx"):
        path.unlink()


def prepare(path: str, workers: int, in_flight: int, how: str) -> dict[str, float]:
    """Prepares a dataset in this process, whose environment leads to the server."""
    scanning.BYTES_PER_WORKER = 1  # as many processes as were asked for, though the shards are small
    killed: list[int] = []

    def kill_one() -> None:
        while not killed:
            time.sleep(0.01)
            children = multiprocessing.active_children()
            if len(children) >= workers:
                time.sleep(1.0)  # until it is at work
                children[0].kill()
                killed.append(1)

    if how == "killed":
        threading.Thread(target=kill_one, daemon=True).start()
    began = time.perf_counter()
    prepare_dataset(
        path,
        split_ratio=RATIO,
        num_workers=workers,
        shards_in_flight=in_flight,
        check_part=check_image,
        ray_address="local" if how == "ray" else None,
    )
    seconds = time.perf_counter() - began
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(use.ru_utime + use.ru_stime for use in usage)
    return {"seconds": seconds, "cpu_seconds": cpu, "killed_processes": len(killed)}


def measure(folder: Path, case: dict[str, Any], server: S3Server) -> dict[str, Any]:
    """Returns the numbers of one case, which runs in a process of its own."""
    local = folder / BUCKET / case["data"]
    forget_index(local)
    path = f"s3://{BUCKET}/{case['data']}" if case["remote"] else str(local)
    with tempfile.TemporaryDirectory(prefix="energon-dali-preparing-") as cache:
        environment = {
            **os.environ,
            **server.environment(),
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": cache,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        server.reset()
        arguments = [path, str(case["workers"]), str(case["in_flight"]), case["how"]]
        command = [sys.executable, "-m", "benchmarks.remote.preparing", "--case", *arguments]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    found = {**case, **json.loads(done.stdout.splitlines()[-1]), "digest": digest_of(local)}
    if case["remote"]:
        counters = server.counters()
        found["requests"] = counters["requests"]
        found["fetched"] = counters["bytes_sent"] / shard_bytes(local)
        found["most_in_flight"] = counters["most_in_flight"]
        found["server_cpu_seconds"] = counters["cpu_seconds"]
    return found


def measure_energon(folder: Path, program: str, workers: int) -> dict[str, Any]:
    """Returns the seconds of `energon prepare` on the local shards."""
    local = folder / BUCKET / "small"
    forget_index(local)
    command = [program, "prepare", str(local), "--non-interactive", "--split-ratio", "8,1,1", "--skip-dataset-yaml"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run([*command, "--num-workers", str(workers)], capture_output=True, check=True)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"data": "small", "how": "energon prepare", "workers": workers, "seconds": seconds, "cpu_seconds": cpu}


def cases(with_ray: bool) -> list[dict[str, Any]]:
    """Returns what is measured."""

    def case(remote: bool, workers: int, in_flight: int, how: str = "", data: str = "small") -> dict[str, Any]:
        return {"data": data, "remote": remote, "workers": workers, "in_flight": in_flight, "how": how}

    chosen = [case(False, 1, 1), case(False, 2, 1), case(False, 2, 1, "killed")]
    chosen += [case(True, 1, in_flight) for in_flight in (1, 2, 8, 32)]
    chosen += [case(True, 2, 32), case(True, 2, 32, "killed")]
    chosen += [case(True, 1, in_flight, data="large") for in_flight in (1, 8)]
    return chosen + ([case(False, 2, 1, "ray"), case(True, 2, 1, "ray")] if with_ray else [])


def main() -> None:
    """Measures all cases and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds per request")
    parser.add_argument("--energon", help="the program `energon` of an environment with megatron-energon")
    parser.add_argument("--ray", action="store_true", help="also on a Ray cluster of this machine")
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        path, workers, in_flight, how = options.case
        print(json.dumps(prepare(path, int(workers), int(in_flight), how)))
        return
    results = []
    with tempfile.TemporaryDirectory(prefix="energon-dali-preparing-") as temporary:
        folder = Path(temporary)
        make_shards(folder / BUCKET, options.shards)
        with S3Server(folder, latency_seconds=options.latency) as server:
            for chosen in cases(options.ray):
                results.append(measure(folder, chosen, server))
                print(json.dumps(results[-1]), flush=True)
        for workers in (1, 2) if options.energon else ():
            results.append(measure_energon(folder, options.energon, workers))
            print(json.dumps(results[-1]), flush=True)
        sizes = {name: shard_bytes(folder / BUCKET / name) for name in ("small", "large")}
    for data in sizes:
        digests = {found["digest"] for found in results if found["data"] == data and "digest" in found}
        assert len(digests) == 1, f"the index files of {data} differ"
    document = {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commit": commit(ROOT),
        "latency_seconds": options.latency,
        "shards": options.shards,
        "bytes": sizes,
        "cases": results,
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
