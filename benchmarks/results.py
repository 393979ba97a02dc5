"""From runs to numbers: medians, spreads, and ratios of candidates that ran in the same session."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.workload import Bar, Limit, Workload

Runs = Sequence[dict[str, float]]
"""Numbers of one candidate, one entry per repetition."""


def summarise(runs: Runs) -> dict[str, dict[str, float]]:
    """Returns {metric: {"median", "low", "high"}} over the repetitions."""
    metrics = sorted({metric for run in runs for metric in run})
    summary = {}
    for metric in metrics:
        values = [run[metric] for run in runs if metric in run]
        summary[metric] = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return summary


def judge_bar(bar: Bar, workload: Workload, runs: Mapping[str, Runs]) -> dict[str, Any]:
    """Returns the ratio of two candidates per repetition, the median, and whether it is good enough.

    A repetition's two runs follow each other directly, so that a machine that slows down slows both.
    """
    metric = bar.metric or workload.metric
    pairs = zip(runs.get(bar.of, ()), runs.get(bar.to, ()), strict=False)
    both = [(of[metric], to[metric]) for of, to in pairs]
    # A quick run may be too short to have cost anything.
    ratios = [of - to if bar.difference else of / to for of, to in both if to or bar.difference]
    ratio = statistics.median(ratios) if ratios else None
    return {
        "of": bar.of,
        "to": bar.to,
        "metric": metric,
        "difference": bar.difference,
        "ratio": ratio,
        "ratios": ratios,
        "at_least": bar.at_least,
        "at_most": bar.at_most,
        "met": _met(ratio, bar.at_least, bar.at_most),
    }


def judge_limit(limit: Limit, runs: Mapping[str, Runs]) -> dict[str, Any]:
    """Returns the median of a candidate's number, and whether it is within its bounds."""
    values = [run[limit.metric] for run in runs.get(limit.of, ())]
    value = statistics.median(values) if values else None
    return {
        "of": limit.of,
        "metric": limit.metric,
        "value": value,
        "at_least": limit.at_least,
        "at_most": limit.at_most,
        "met": _met(value, limit.at_least, limit.at_most),
    }


def _met(value: float | None, at_least: float | None, at_most: float | None) -> bool | None:
    """Returns None if there is no number or no bound."""
    if value is None or (at_least is None and at_most is None):
        return None
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)


def as_text(result: dict[str, Any]) -> str:
    """Formats the result of a workload as a table."""
    lines = [f"\n{result['title']}"]
    width = max(len(candidate["name"]) for candidate in result["candidates"])
    for candidate in result["candidates"]:
        lines.append(f"  {candidate['name']:<{width}}  {_one(candidate, result)}")
    for bar in result["bars"]:
        if bar["ratio"] is not None:
            metric = "" if bar["metric"] == result["metric"] else f" ({bar['metric']})"
            sign = "-" if bar["difference"] else "/"
            lines.append(f"  {bar['ratio']:.2f} = {bar['of']} {sign} {bar['to']}{metric}{_verdict(bar)}")
    for limit in result["limits"]:
        if limit["value"] is not None:
            lines.append(f"  {limit['metric']} of {limit['of']} = {limit['value']:.4g}{_verdict(limit)}")
    return "\n".join(lines)


def _one(candidate: dict[str, Any], result: dict[str, Any]) -> str:
    if candidate["left_out"]:
        return f"left out: {candidate['left_out'].splitlines()[0]}"
    found = candidate["summary"].get(result["metric"])
    return (
        ""
        if found is None
        else (f"{found['median']:10.4g} {result['unit']}  ({found['low']:.4g} to {found['high']:.4g})")
    )


def _verdict(judged: dict[str, Any]) -> str:
    if judged["met"] is None:
        return ""
    bounds = [f">= {judged['at_least']:g}"] if judged["at_least"] is not None else []
    bounds += [f"<= {judged['at_most']:g}"] if judged["at_most"] is not None else []
    return f"   [{'ok' if judged['met'] else 'MISSED'}, wanted {' and '.join(bounds)}]"
