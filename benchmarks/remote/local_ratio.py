"""How near reading decoded JPEGs from S3 comes to the local disk: `python -m benchmarks.remote.local_ratio`.

The same loader reads the same files from the S3 server on loopback and from the page cache, in turns. The server shares
the cores, so that three ratios are told apart:

    speed     samples per second as they are, server included
    client    processor time of the loader's processes, which is the ratio where the server runs elsewhere and the cores
              are busy; it hardly changes with what else the machine does
    waited    share of the time in which cores were idle while the loader read from S3: above zero, something waits
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.candidates.task import Task
from benchmarks.environments import ROOT, CandidateError, run_candidate
from benchmarks.remote.s3_server import S3Server
from benchmarks.remote.workloads import JPEG, LEAST_SAMPLES
from benchmarks.run import CACHE
from benchmarks.workload_run import prepared

SPEED, CLIENT = "samples_per_second", "client_cpu_microseconds_per_sample"
SHOWN = (SPEED, CLIENT, "server_cpu_microseconds_per_sample", "requests_per_sample", "bytes_fetched_over_wanted")


def main() -> None:
    """Measures all combinations in turns, and prints medians and ratios after each repetition."""
    options = _parse()
    folder = prepared(JPEG, options.cache)
    runs: dict[tuple[str, ...], list[dict[str, float]]] = defaultdict(list)
    with S3Server(options.cache.parent, latency_seconds=options.milliseconds / 1000) as server:
        for repetition in range(options.repetitions):
            for checkout in options.checkouts:
                for window in options.windows:
                    for decoder in options.decoders:
                        for local in (True, False):
                            chosen = {"library": "energon_dali", "window": window, "workers": options.workers}
                            task = Task(
                                program="remote_loader",
                                action="time",
                                dataset=str(folder),
                                output="decoded",
                                batch_size=64,
                                warmup_samples=256,
                                samples=200_000,
                                seconds=options.seconds,
                                url=f"s3://{options.cache.name}/{folder.name}",
                                options={
                                    **chosen,
                                    "decoder": decoder,
                                    "least_samples": LEAST_SAMPLES["decoded"],
                                    **({"local": True} if local else {}),
                                },
                            )
                            try:
                                found = run_candidate(
                                    task, Path(sys.executable), root=checkout, variables=server.environment()
                                )
                            except CandidateError as error:
                                print(error, file=sys.stderr)
                                continue
                            where = "local" if local else "s3"
                            runs[checkout.name, decoder, str(window), where].append(found.numbers)
            print(f"--- after {repetition + 1} repetitions", flush=True)
            _show(runs)


def _show(runs: dict[tuple[str, ...], list[dict[str, float]]]) -> None:
    for name, found in runs.items():
        numbers = "  ".join(f"{metric}={_median(found, metric)}" for metric in SHOWN if metric in found[0])
        print(f"{' '.join(name):40} {numbers}", flush=True)
        local = runs.get((*name[:-1], "local"), [])
        if name[-1] == "s3" and local:
            pairs = list(zip(found, local, strict=False))
            speed = [one[SPEED] / other[SPEED] for one, other in pairs]
            client = [other[CLIENT] / one[CLIENT] for one, other in pairs]
            print(f"{'':40} ratio of speed {_spread(speed)}, of client {_spread(client)}", flush=True)


def _median(found: list[dict[str, float]], metric: str) -> str:
    return f"{statistics.median(one[metric] for one in found):.4g}"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote.local_ratio", description=__doc__)
    parser.add_argument("--windows", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--decoders", nargs="+", default=["sample", "dali"], choices=["sample", "dali"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="latency of the server")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of the timed part of a run")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the dataset is written")
    parser.add_argument("--checkouts", type=Path, nargs="+", default=[ROOT], help="checkouts to compare")
    return parser.parse_args()


if __name__ == "__main__":
    main()
