"""What a trainer that waits for a batch is waiting for, in words."""

from __future__ import annotations

import time

from energon_dali.datasets.metrics import Metrics, WorkReport

_SILENT_SECONDS = 1.5
"""How long a working process may report nothing: it reports four times per second."""

_DOES = {
    "": "begins to work",
    "start": "is starting",
    "read": "waits for storage",
    "load": "loads",
    "decode": "decodes",
    "rank": "puts batches together",
    "worker": "puts blocks together",
    "wait for decode": "waits for the decoder",
    "wait for trainer": "begins to work",
    "wait for reader": "waits for the rank that reads its batches",
}
"""What a process does in the stages that are not hooks, and between two stages."""
_WITHOUT_OBJECT = ("", "start", "rank", "worker", "wait for decode", "wait for trainer", "wait for reader")


def describe_wait(metrics: Metrics) -> str:
    """Returns what the rank is waiting for, such as "worker 1 is in encode_sample of captions/000123".

    Args:
        metrics: Those of the trainer's process, which receive the reports of the others.
    """
    own = metrics.work_report()
    others = {report.process: report for report in metrics.other_reports()}
    decoding = others.get("decode process")
    if decoding is not None:
        return _describe(decoding, "the decode process", others)
    if not own.stage and not own.seconds.get("rank"):
        return "the loader is starting"
    return _describe(own, "the rank", others)


def _describe(report: WorkReport, name: str, others: dict[str, WorkReport]) -> str:
    silent = time.perf_counter() - report.written
    if report.stage == "wait for workers":
        worker = f"worker {report.subject}"
        if worker in others:
            return _describe(others[worker], worker, {})
        return f"{worker} is starting"
    if report.stage == "start" or silent < _SILENT_SECONDS:
        return f"{name} {_doing(report)}"
    return (
        f"{name} has not reported for {silent:.0f} s: a call holds the interpreter lock; its last report was that it "
        f"{_doing(report)}"
    )


def _doing(report: WorkReport) -> str:
    does = _DOES.get(report.stage)
    if does is None:
        return f"is in {report.stage}" + (f" of {report.subject}" if report.subject else "")
    if not report.subject or report.stage in _WITHOUT_OBJECT:
        return f"is in {report.stage}" if report.stage in ("load", "decode") else does
    return f"{does} ({report.subject})" if report.stage == "read" else f"{does} {report.subject}"
