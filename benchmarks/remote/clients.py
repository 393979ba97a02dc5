"""Compares clients of object stores on the same S3 server: requests, bytes, and processor time per request.

    python -m benchmarks.remote.clients [--seconds 0.5] [--json benchmarks/results/remote-clients.json]

Each client reads random ranges of one object from several threads, in a process of its own. The processor time of the
client per request is the firm figure: the server shares the cores, so requests per second depend on both.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.machine import commit, describe_machine, describe_versions
from benchmarks.remote.s3_server import S3Server

RESULT = ROOT / "benchmarks" / "results" / "remote-clients.json"
OBJECT_BYTES = 256 << 20
SIZES = (100_000, 8 << 20)
IN_FLIGHT = (1, 16, 64)
LATENCIES = (0.0, 0.02)
_PACKAGES = ("obstore", "multi-storage-client", "boto3", "urllib3")

Read = Callable[[int, int], object]
"""Reads `size` bytes at an offset."""


def _energon_dali(url: str) -> Read:
    from energon_dali.shards import StoragePath

    return StoragePath.of("s3://data/object").open(OBJECT_BYTES).read_at


def _obstore(url: str) -> Read:
    import obstore
    from obstore.store import S3Store

    store = S3Store("data", client_options={"allow_http": True})
    return lambda offset, size: obstore.get_range(store, "object", start=offset, length=size)


def _multi_storage_client(url: str, **options: Any) -> Read:
    from multistorageclient import StorageClient, StorageClientConfig
    from multistorageclient.types import Range

    provider = {"type": "s3", "options": {"base_path": "data", "endpoint_url": url, **options}}
    client = StorageClient(StorageClientConfig.from_dict({"profiles": {"p": {"storage_provider": provider}}}, "p"))
    return lambda offset, size: client.read("object", byte_range=Range(offset=offset, size=size))


def _multi_storage_client_rust(url: str) -> Read:
    return _multi_storage_client(url, rust_client={"allow_http": True}, region_name="us-east-1")


def _boto3(url: str) -> Read:
    import boto3
    from botocore.config import Config

    client = boto3.client("s3", config=Config(max_pool_connections=max(IN_FLIGHT)))

    def read(offset: int, size: int) -> object:
        answer = client.get_object(Bucket="data", Key="object", Range=f"bytes={offset}-{offset + size - 1}")
        return answer["Body"].read()

    return read


def _urllib3(url: str) -> Read:
    import urllib3

    pool = urllib3.PoolManager(maxsize=max(IN_FLIGHT))

    def read(offset: int, size: int) -> object:
        wanted = {"Range": f"bytes={offset}-{offset + size - 1}"}
        return pool.request("GET", f"{url}/data/object", headers=wanted).data

    return read


CLIENTS: dict[str, Callable[[str], Read]] = {
    "energon_dali": _energon_dali,
    "obstore": _obstore,
    "multi-storage-client": _multi_storage_client,
    "multi-storage-client, rust_client": _multi_storage_client_rust,
    "boto3": _boto3,
    "urllib3, unsigned": _urllib3,
}
"""Name: given the server's URL, returns what reads a range."""


def measure(read: Read, size: int, in_flight: int, seconds: float) -> dict[str, float]:
    """Reads random ranges from several threads for a while.

    Args:
        read: The client.
        size: Bytes per request.
        in_flight: Number of threads.
        seconds: How long to start requests.

    Returns:
        Requests, requests per second, bytes per second, and the client's processor time per request in seconds.
    """
    counts = [0] * in_flight
    wrong: list[object] = []
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        draw = random.Random(number)
        try:
            while time.perf_counter() < end:
                found = read(draw.randrange(OBJECT_BYTES - size), size)
                if len(found) != size:  # type: ignore[arg-type]
                    raise ValueError(f"{len(found)} bytes came, and {size} were wanted")  # type: ignore[arg-type]
                counts[number] += 1
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(in_flight)]
    cpu, began = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu, requests = time.perf_counter() - began, time.process_time() - cpu, sum(counts)
    if wrong:
        raise RuntimeError(f"A request failed: {wrong[0]}")
    return {
        "requests": requests,
        "requests_per_second": requests / wall,
        "bytes_per_second": requests * size / wall,
        "client_cpu_seconds_per_request": cpu / requests,
    }


def measure_client(name: str, server: S3Server, seconds: float) -> list[dict[str, Any]]:
    """Measures one client, in a process of its own, at every latency, size and number of requests in flight."""
    found = []
    for latency in LATENCIES:
        server.configure(latency_seconds=latency)
        command = [sys.executable, "-m", "benchmarks.remote.clients", "--client", name, "--url", server.url]
        done = subprocess.run(
            [*command, "--seconds", str(seconds)],
            cwd=ROOT,
            env={**os.environ, **server.environment(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            why = f"ended with exit code {done.returncode}"  # negative: a signal
            print(f"{name}, {latency * 1e3:.0f} ms: {why}", file=sys.stderr)
            found.append({"client": name, "latency_seconds": latency, "failed": why})
            continue
        found += [{"client": name, "latency_seconds": latency, **row} for row in json.loads(done.stdout)]
    return found


def as_text(rows: list[dict[str, Any]]) -> str:
    """Returns the results as a table."""
    lines = [f"{'client':<34} {'latency':>7} {'range':>7} {'threads':>7} {'requests/s':>10} {'MB/s':>6} {'CPU us':>7}"]
    measured = [row for row in rows if "failed" not in row]
    for row in sorted(measured, key=lambda row: (row["latency_seconds"], row["size"], row["in_flight"])):
        size = f"{row['size'] >> 20} MiB" if row["size"] > 1 << 20 else f"{row['size'] // 1000} KB"
        lines.append(
            f"{row['client']:<34} {row['latency_seconds'] * 1e3:>4.0f} ms {size:>7} {row['in_flight']:>7} "
            f"{row['requests_per_second']:>10,.0f} {row['bytes_per_second'] / 1e6:>6,.0f} "
            f"{row['client_cpu_seconds_per_request'] * 1e6:>7,.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures all clients, and prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="of every measurement")
    parser.add_argument("--json", type=Path, help=f"where the results go, such as {RESULT.relative_to(ROOT)}")
    parser.add_argument("--client", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        read = CLIENTS[options.client](options.url)
        cells = [(size, in_flight) for size in SIZES for in_flight in IN_FLIGHT]
        measure(read, SIZES[0], max(IN_FLIGHT), 0.1)  # opens the connections
        rows = [
            {"size": size, "in_flight": in_flight, **measure(read, size, in_flight, options.seconds)}
            for size, in_flight in cells
        ]
        print(json.dumps(rows))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        (Path(folder) / "data" / "object").write_bytes(random.Random(0).randbytes(1 << 20) * (OBJECT_BYTES >> 20))
        with S3Server(folder) as server:
            for name in CLIENTS:
                rows += measure_client(name, server, options.seconds)
    print(as_text(rows))
    if options.json is not None:
        document = {
            "command": "python -m benchmarks.remote.clients --json benchmarks/results/remote-clients.json",
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "commit": commit(ROOT),
            "machine": describe_machine(),
            "versions": {**describe_versions(), **_versions()},
            "seconds": options.seconds,
            "results": rows,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _versions() -> dict[str, str]:
    import importlib.metadata

    return {package: importlib.metadata.version(package) for package in _PACKAGES}


if __name__ == "__main__":
    main()
