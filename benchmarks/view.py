"""How fast `energon-dali view` pages through 10 million samples: `python -m benchmarks.view`.

A synthetic dataset with a real index is served by the command. Headless Chromium opens pages from the first to the
last, several times in turn, and its own clock says when the first content is painted. The same pages are fetched
without a browser as well. Needs Chromium and its driver.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import commit, describe_machine, describe_versions
from benchmarks.scale.synthetic import write_synthetic
from energon_dali.view.scan_source import ScanSource
from energon_dali.view.scan_store import ScanStore
from tests.view.chromium import chromium

ROOT = Path(__file__).resolve().parent.parent
PAGE_SIZE = 10
_PAINT = "const p = performance.getEntriesByName('first-contentful-paint'); return p.length ? p[0].startTime : null"


@contextmanager
def serving(dataset: Path, cache: Path) -> Iterator[tuple[str, float, psutil.Process]]:
    """Runs the command; yields (its address, seconds until it was printed, its process)."""
    start = time.perf_counter()
    script = "from energon_dali.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "view", str(dataset)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)},
    )
    assert process.stdout is not None, "it is a pipe"
    try:
        address = process.stdout.readline().strip()
        yield address, time.perf_counter() - start, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def fetcher(address: str) -> Callable[[str], tuple[float, str]]:
    """Returns a function that fetches a path, and returns (seconds, page)."""
    match = re.fullmatch(r"http://([\d.]+):(\d+)/\?token=(\S+)", address)
    if match is None:
        raise RuntimeError(f"The command printed {address!r} in place of an address.")
    connection = http.client.HTTPConnection(match[1], int(match[2]), timeout=120)
    connection.request("GET", f"/?token={match[3]}")
    response = connection.getresponse()
    response.read()
    cookie = str(response.getheader("set-cookie")).partition(";")[0]

    def fetch(path: str) -> tuple[float, str]:
        connection.close()  # the server does not wait long for another request
        start = time.perf_counter()
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered with {answer.status}.")
        return time.perf_counter() - start, text

    return fetch


def keys_of(page: str) -> list[str]:
    """Returns the keys of the samples of a page."""
    return re.findall(r'class="key"[^>]*>([^<]*)<', page)


def measure(samples: int, shards: int, repetitions: int) -> dict[str, Any]:
    """Returns the times of each page, in milliseconds."""
    last = samples // PAGE_SIZE
    pages = (1, 2, last // 2, last)
    fetched: dict[int, list[float]] = {page: [] for page in pages}
    painted: dict[int, list[float]] = {page: [] for page in pages}
    with tempfile.TemporaryDirectory(prefix="energon-dali-view-") as name:
        folder = Path(name)
        dataset = folder / "data"
        dataset.mkdir()
        write_synthetic(dataset, samples, shards)
        write_scan(dataset, folder / "cache", samples)
        with serving(dataset, folder / "cache") as (address, start_seconds, process):
            fetch = fetcher(address)
            first_seconds = fetch(f"/data/0?size={PAGE_SIZE}")[0]
            with chromium(folder / "profile") as window:
                window.get(address)
                base = address.partition("/?")[0]
                for _ in range(repetitions):
                    for page in pages:
                        path = f"/data/0?size={PAGE_SIZE}&page={page}"
                        seconds, text = fetch(path)
                        if len(keys_of(text)) != PAGE_SIZE:
                            raise RuntimeError(f"Page {page} does not have {PAGE_SIZE} samples.")
                        fetched[page].append(1000 * seconds)
                        window.get(base + path)
                        while (paint := window.execute_script(_PAINT)) is None:
                            time.sleep(0.005)
                        painted[page].append(float(paint))
            search = measure_search(fetch, samples)
            orders = [measure_order(fetch, samples, sort, repetitions) for sort in ("-bytes", "duration")]
            memory = process.memory_full_info().uss
    rows = [
        {
            "page": page,
            "fetched_ms": [round(value, 2) for value in fetched[page]],
            "first_contentful_paint_ms": [round(value, 1) for value in painted[page]],
            "median_fetched_ms": round(statistics.median(fetched[page]), 2),
            "median_first_contentful_paint_ms": round(statistics.median(painted[page]), 1),
        }
        for page in pages
    ]
    medians = [float(str(row["median_first_contentful_paint_ms"])) for row in rows]
    return {
        "samples": samples,
        "shards": shards,
        "page_size": PAGE_SIZE,
        "seconds_until_the_address_is_printed": round(start_seconds, 2),
        "first_request_ms": round(1000 * first_seconds, 1),
        "pages": rows,
        "last_page_over_first_page": round(medians[-1] / medians[0], 2),
        "key_search": search,
        "orders": orders,
        "memory_of_the_server_mib": round(memory / 2**20),
    }


def write_scan(dataset: Path, cache: Path, samples: int) -> None:
    """Writes what a complete scan would have found, with a duration for each sample."""
    store = ScanStore(cache / "energon-dali" / "view", ScanSource(str(dataset)).identity())
    store.create()
    draw = random.Random(0)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for start in range(0, samples, 100_000):
            numbers = range(start, min(start + 100_000, samples))
            connection.executemany("INSERT INTO samples VALUES (?, '', 1, 0)", ((number,) for number in numbers))
            connection.executemany(
                "INSERT INTO parts VALUES (?, 'mp4', 1, 'video', NULL, 'h264', 64, 48, ?, '', NULL)",
                ((number, draw.random()) for number in numbers),
            )
        connection.execute("INSERT INTO blocks VALUES (0, ?)", (samples,))
        connection.execute("COMMIT")


def measure_order(
    fetch: Callable[[str], tuple[float, str]], samples: int, sort: str, repetitions: int
) -> dict[str, Any]:
    """Returns how long sorting by a fact takes, and how long sorted pages take next to unsorted ones."""
    path = f"/data/0?size={PAGE_SIZE}&sort={sort}"
    start = time.perf_counter()
    while len(keys_of(fetch(path)[1])) != PAGE_SIZE:
        time.sleep(0.01)
    seconds = time.perf_counter() - start
    times: dict[str, list[float]] = {"sorted": [], "unsorted": []}
    page = min(100_000, samples // PAGE_SIZE)
    for _ in range(repetitions):
        for name, address in (("sorted", f"{path}&page={page}"), ("unsorted", f"/data/0?size={PAGE_SIZE}&page={page}")):
            times[name].append(1000 * fetch(address)[0])
    medians = {f"median_{name}_ms": round(statistics.median(found), 2) for name, found in times.items()}
    return {"sort": sort, "first_page_after_seconds": round(seconds, 2), "page": page, **medians}


def measure_search(fetch: Callable[[str], tuple[float, str]], samples: int) -> dict[str, Any]:
    """Returns how long a search for a part of a key takes to its first page, and to the end of the index."""
    path = f"/data/0?size={PAGE_SIZE}&key=0042"
    start = time.perf_counter()
    first, _ = fetch(path)
    while "among the" in fetch(path)[1]:
        time.sleep(0.01)
    found = re.search(r"<strong>([\d,]+)</strong> samples", fetch(path)[1])
    assert found is not None, "every grid says how many samples it has"
    return {
        "first_page_ms": round(1000 * first, 1),
        "whole_index_seconds": round(time.perf_counter() - start, 2),
        "found": int(found[1].replace(",", "")),
        "searched": samples,
    }


def main() -> None:
    """Measures, prints and writes the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/view.json")
    options = parser.parse_args()
    result = measure(options.samples, options.shards, options.repetitions)
    document = {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commit": commit(ROOT),
        "command": "python -m benchmarks.view",
        **result,
    }
    print(json.dumps(result, indent=1))
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
