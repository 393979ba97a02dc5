"""`python -m benchmarks.kernels --device gpu --json OUT`: the kernels against a copy, and against plain PyTorch.

Large inputs show the share of the device's copy bandwidth, small ones the cost of a call compared with the fastest
expression of plain PyTorch. Nothing is timed before it equals the reference bit for bit. With
--device cpu it is a dry run at small sizes, in which the reference itself is measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.kernel_cases import CASES
from benchmarks.kernel_cases.case import KernelCase, Run, Size
from benchmarks.kernel_timing import copy_bandwidth, seconds_of
from benchmarks.machine import commit, describe_machine, describe_versions

LARGE_SHARE = 0.8
"""Fraction of the copy bandwidth that a kernel should reach on large inputs."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases; returns 1 if a kernel's result was wrong, 0 otherwise."""
    options = parse(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    report: dict[str, Any] = {
        "suite": "kernels",
        "device": options.device,
        "dry_run": options.device == "cpu" or options.quick,
        "command": shlex.join(["python", "-m", "benchmarks.kernels", *words]),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(ROOT),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "cases": [],
    }
    device = "cuda" if options.device == "gpu" else "cpu"
    sizes: Sequence[Size] = ("small",) if report["dry_run"] else ("large", "small")
    repetitions = 3 if report["dry_run"] else 20
    wrong = False
    for operation in options.only or CASES:
        for case in CASES[operation](device, sizes):
            copied = copy_bandwidth(device, repetitions, size_bytes=1 << 22 if report["dry_run"] else 1 << 30)
            result = measure(case, device, repetitions, copied, dry_run=report["dry_run"])
            wrong |= bool(result["error"])
            report["cases"].append(result)
            print(as_text(result), flush=True)
            if options.json is not None:  # after each case, so that an interrupted run keeps its results
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    if report["dry_run"]:
        print("A dry run: these figures say nothing of a GPU's kernels.")
    return int(wrong)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), default=(), metavar="OPERATION")
    parser.add_argument("--quick", action="store_true", help="small inputs and few repetitions, to see that it runs")
    return parser.parse_args(arguments)


def measure(case: KernelCase, device: str, repetitions: int, copied: float, *, dry_run: bool) -> dict[str, Any]:
    """Returns the results of a case as plain values; a wrong result is an error without a time.

    Args:
        case: What is measured.
        device: As torch names it.
        repetitions: Of each way of doing it.
        copied: Bytes per second of a copy, read and written ones counted.
        dry_run: Whether nothing is to be judged.
    """
    result: dict[str, Any] = {
        "operation": case.operation,
        "size": case.size,
        "variant": case.variant,
        "shapes": case.shapes,
        "bytes_moved": case.bytes_moved,
        "copy_gigabytes_per_second": copied / 1e9,
        "error": "",
        "met": None,
        "bound_by_arithmetic": case.bound_by_arithmetic,
        "ways": {},
        "left_out": {},
    }
    wanted = case.reference()
    others = {f"PyTorch: {name}": run for name, run in case.pytorch.items()}
    runs: dict[str, Run] = {"energon_dali": case.ours, **others}
    for name in list(runs):
        lacking = what_is_wrong(runs[name], wanted)
        if not lacking:
            continue
        if name == "energon_dali":
            result["error"] = lacking
            return result
        result["left_out"][name] = lacking
        del runs[name]
    del wanted
    for name, run in runs.items():
        device_seconds, call_seconds = seconds_of(run, device, repetitions)
        result["ways"][name] = {
            "device_microseconds": 1e6 * device_seconds,
            "call_microseconds": 1e6 * call_seconds,
            "gigabytes_per_second": case.bytes_moved / device_seconds / 1e9,
        }
    judge(case, result, dry_run=dry_run)
    return result


def what_is_wrong(run: Run, wanted: Sequence[Any]) -> str:
    """Returns how an implementation fails or differs from the reference, "" if it does not.

    Args:
        run: Is called once.
        wanted: What the reference gives.
    """
    import torch

    try:
        pairs = list(zip(run(), wanted, strict=True))
    except Exception as error:  # such as a missing compiler: the others are still measured
        return f"{type(error).__name__}: {error}"[:300]
    different = [place for place, (one, two) in enumerate(pairs) if one.dtype != two.dtype or not torch.equal(one, two)]
    return f"Output {different[0]} differs from the reference." if different else ""


def judge(case: KernelCase, result: dict[str, Any], *, dry_run: bool) -> None:
    """Adds the fraction of the copy bandwidth, the speed-up over plain PyTorch, and whether they are good enough."""
    ways = result["ways"]
    ours = ways["energon_dali"]
    others = [way for name, way in ways.items() if name != "energon_dali"]
    result["share_of_copy"] = ours["gigabytes_per_second"] / result["copy_gigabytes_per_second"]
    for kind in ("device", "call"):
        fastest = min(way[f"{kind}_microseconds"] for way in others)
        result[f"{kind}_speedup"] = fastest / ours[f"{kind}_microseconds"]
    if dry_run:
        return
    if case.size == "small":
        result["met"] = result["call_speedup"] > 1
    elif not case.bound_by_arithmetic:
        result["met"] = result["share_of_copy"] >= LARGE_SHARE


def as_text(result: dict[str, Any]) -> str:
    """Formats the result of a case as a table."""
    lines = [f"\n{result['operation']}, {result['size']}: {result['variant']}; {result['shapes']}"]
    if result["error"]:
        return f"{lines[0]}\n  WRONG: {result['error']}"
    for name, way in result["ways"].items():
        lines.append(
            f"  {name:<40} {way['device_microseconds']:11.1f} us on the device, {way['call_microseconds']:11.1f} us a "
            f"call, {way['gigabytes_per_second']:8.1f} GB/s"
        )
    lines += [f"  {name} is left out: {reason}" for name, reason in result["left_out"].items()]
    verdict = {None: "", True: "   [ok]", False: "   [MISSED]"}[result["met"]]
    lines.append(
        f"  {result['share_of_copy']:.2f} of a copy's {result['copy_gigabytes_per_second']:.0f} GB/s; "
        f"{result['device_speedup']:.2f} times the fastest PyTorch on the device, {result['call_speedup']:.2f} times a "
        f"call{verdict}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
