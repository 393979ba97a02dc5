"""`python -m benchmarks.capacity docs/capacity.md`: updates the tables of the page from measurements.

The page says what 8, 64 and 1,024 GPUs need from storage, network and host cores. Without an argument the tables are
printed. Nothing is guessed: what has no result in benchmarks/results is marked as not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contestants import BLOCK, ENERGON
from benchmarks.environments import ROOT

RESULTS = ROOT / "benchmarks" / "results"
FILES = ("images", "video")
BEGIN, END = "<!-- capacity: begin -->", "<!-- capacity: end -->"
GPUS = (8, 64, 1024)
GPUS_PER_HOST = 8
OPEN = "not measured yet"
SAMPLE = "energon_dali SampleDecoder, all cores"
DEMAND = {"samples/s": 1000, "videos/s": 10}
"""Assumed training speed of the example per GPU and second, by the unit of a workload, in round numbers."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one workload."""

    title: str
    """Input and output of the workload."""
    unit: str
    """Unit of its rates."""
    bytes_per_sample: float
    """Bytes on storage, including the overhead of the tar."""
    cpu_milliseconds: dict[str, float]
    """Processor time per sample, by candidate."""
    rates: dict[str, float]
    """Samples per second on that machine, by candidate."""


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables, or writes them between the marks of a page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", help="a page with the marks")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (default: %(default)s)")
    options = parser.parse_args(arguments)
    tables = make_tables(options.results)
    if options.page is None:
        print(tables)
    else:
        options.page.write_text(refresh(options.page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    return 0


def refresh(page: str, tables: str) -> str:
    """Returns a page with new tables between its marks.

    Args:
        page: The text.
        tables: What `make_tables` returned.

    Raises:
        ValueError: The page has no marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page has no place for the tables: put {BEGIN} and {END} into it.")
    return f"{head}{BEGIN}\n\n{tables}\n{END}{tail}"


def make_tables(results: Path) -> str:
    """Returns the tables in Markdown.

    Args:
        results: Folder with cpu-images.json, cpu-video.json, gpu-images.json and gpu-video.json, as far as they exist.
    """
    cpu, gpu = read_results(results, "cpu"), read_results(results, "gpu")
    # VP9 is the dry run of DALI on the CPU, not used for training.
    names = [name for name in dict.fromkeys([*cpu, *gpu]) if "vp9" not in name]
    parts = [_sources(results), _per_sample(names, cpu, gpu), _demand(names, cpu, gpu), _full_speed(names, cpu, gpu)]
    return "\n".join(parts)


def read_results(results: Path, device: str) -> dict[str, Measured]:
    """Returns the results of a device by workload; empty if there are none.

    Args:
        results: The folder.
        device: "cpu" or "gpu".
    """
    found: dict[str, Measured] = {}
    for report in _reports(results, device):
        for work in report["workloads"]:
            summaries = {one["name"]: one["summary"] for one in work["candidates"] if one["summary"]}
            if work["bytes_per_sample"] and summaries:
                found[work["name"]] = Measured(
                    title=_title(work),
                    unit=work["unit"],
                    bytes_per_sample=work["bytes_per_sample"],
                    cpu_milliseconds={
                        name: one["cpu_milliseconds_per_sample"]["median"] for name, one in summaries.items()
                    },
                    rates={name: one["samples_per_second"]["median"] for name, one in summaries.items()},
                )
    return found


def _title(work: dict[str, Any]) -> str:
    return str(work["title"]).partition(", on the ")[0].partition(", batches of")[0]


def _reports(results: Path, device: str) -> list[dict[str, Any]]:
    paths = [results / f"{device}-{name}.json" for name in FILES]
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    return [report for report in reports if not report.get("quick")]  # a quick run measures nothing


def _sources(results: Path) -> str:
    lines = []
    for device in ("cpu", "gpu"):
        reports = _reports(results, device)
        for report in reports:
            machine = report["machine"]
            gpus = ", ".join(str(gpu) for gpu in machine.get("gpus", []))
            where = f"{machine['processor']}, {machine['cores']} cores{', ' + gpus if gpus else ''}"
            load = machine["load_average"][0]
            lines.append(
                f"- {device.upper()}: `{report['command']}`, {report['started'][:10]}, commit {report['commit']}, "
                f"{where}, load {load:g} at the start"
            )
        if not reports:
            lines.append(f"- {device.upper()}: {OPEN}")
    return "Measured by:\n\n" + "\n".join(lines) + "\n"


def _per_sample(names: list[str], cpu: dict[str, Measured], gpu: dict[str, Measured]) -> str:
    header = (
        "What one sample costs: bytes on storage, and milliseconds of one core.\n\n"
        "| workload | KB | DaliDecoder on the CPU | SampleDecoder | Energon | DaliDecoder on a GPU |\n"
        "|---|---|---|---|---|---|\n"
    )
    rows = [
        f"| {_either(name, cpu, gpu).title} | {_either(name, cpu, gpu).bytes_per_sample / 1e3:,.0f} | "
        f"{_cost(cpu, name, BLOCK)} | {_cost(cpu, name, SAMPLE)} | {_cost(cpu, name, ENERGON)} | "
        f"{_cost(gpu, name, BLOCK)} |\n"
        for name in names
    ]
    return header + "".join(rows)


def _demand(names: list[str], cpu: dict[str, Measured], gpu: dict[str, Measured]) -> str:
    header = (
        f"What {DEMAND['samples/s']:,} images/s, or {DEMAND['videos/s']} videos/s, per GPU need. That rate is an "
        f"assumption; all that follows is proportional to it. A host has {GPUS_PER_HOST} GPUs.\n\n"
        f"| workload | storage GB/s for {_list_gpus()} GPUs | network Gbit/s per host | "
        "cores per host: DaliDecoder on the CPU | SampleDecoder | DaliDecoder on a GPU |\n|---|---|---|---|---|---|\n"
    )
    rows = []
    for name in names:
        one = _either(name, cpu, gpu)
        rate = DEMAND[one.unit]
        cores = [_cores(cpu, name, BLOCK, rate), _cores(cpu, name, SAMPLE, rate), _cores(gpu, name, BLOCK, rate)]
        network = 8 * GPUS_PER_HOST * rate * one.bytes_per_sample / 1e9
        rows.append(f"| {one.title} | {_storage(one, rate)} | {network:,.1f} | {' | '.join(cores)} |\n")
    return header + "".join(rows)


def _full_speed(names: list[str], cpu: dict[str, Measured], gpu: dict[str, Measured]) -> str:
    header = (
        "What GPUs can take if they do nothing but decode, by the rate of our loader on one GPU.\n\n"
        f"| workload | samples/s on one GPU | storage GB/s for {_list_gpus()} GPUs | cores per host |\n"
        "|---|---|---|---|\n"
    )
    rows = []
    for name in names:
        one = gpu.get(name)
        rate = one.rates.get(BLOCK) if one else None
        if one is None or rate is None:
            rows.append(f"| {_either(name, cpu, gpu).title} | {OPEN} | {OPEN} | {OPEN} |\n")
        else:
            rows.append(f"| {one.title} | {rate:,.0f} | {_storage(one, rate)} | {_cores(gpu, name, BLOCK, rate)} |\n")
    return header + "".join(rows)


def _list_gpus() -> str:
    return " / ".join(f"{gpus:,}" for gpus in GPUS)


def _storage(one: Measured, rate: float) -> str:
    return " / ".join(f"{gpus * rate * one.bytes_per_sample / 1e9:,.1f}" for gpus in GPUS)


def _either(name: str, cpu: dict[str, Measured], gpu: dict[str, Measured]) -> Measured:
    return gpu[name] if name in gpu else cpu[name]


def _cost(measured: dict[str, Measured], name: str, candidate: str) -> str:
    cost = measured[name].cpu_milliseconds.get(candidate) if name in measured else None
    return OPEN if cost is None else f"{cost:,.2f}"


def _cores(measured: dict[str, Measured], name: str, candidate: str, rate: float) -> str:
    cost = measured[name].cpu_milliseconds.get(candidate) if name in measured else None
    return OPEN if cost is None else f"{GPUS_PER_HOST * rate * cost / 1e3:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
