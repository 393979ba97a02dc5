"""`python -m benchmarks.remote.tables IN.json PAGE.md`: puts figures of the suites `remote` and `scale` into a page.

What is between `<!-- figures WORKLOAD METRIC [METRIC ...] -->` and `<!-- end of figures -->` is replaced by a table of
that workload, so that no figure of a page differs from the results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

MARK = re.compile(r"(<!-- figures (?P<names>[^>]*?) -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
HEADINGS = {
    "samples_per_second": "samples/s",
    "samples_per_second_without_server": "server's time deducted",
    "client_cpu_microseconds_per_sample": "client, us of CPU per sample",
    "server_cpu_microseconds_per_sample": "server, us of CPU per sample",
    "bytes_fetched_over_wanted": "bytes fetched / wanted",
    "requests_in_flight": "requests in flight",
    "requests_per_sample": "requests per sample",
    "first_batch_seconds": "first batch, s",
    "opening_seconds": "opening, s",
    "opening_requests": "requests until open",
    "cpu_microseconds_per_sample": "us of CPU per sample",
    "uss_mib": "private memory, MiB",
    "uss_without_mapped_index_mib": "without the mapped index, MiB",
    "first_sample_seconds": "first sample, s",
    "opening_cpu_seconds": "opening, s of CPU",
    "first_batch_cpu_seconds": "first batch, s of CPU",
    "cpu_milliseconds_per_further_stream": "each further stream's first batch, ms of CPU",
    "added_mib": "memory added, MiB",
    "files_opened_per_sample": "files opened per sample",
}


def main(arguments: list[str] | None = None) -> int:
    """Rewrites the tables of a page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote.tables", description=__doc__)
    parser.add_argument("json", type=Path, help="results of benchmarks.run remote or scale")
    parser.add_argument("page", type=Path, help="page in Markdown")
    options = parser.parse_args(arguments)
    options.page.write_text(fill(options.page.read_text(), json.loads(options.json.read_text())))
    return 0


def fill(page: str, report: dict[str, Any]) -> str:
    """Returns a page with the tables of a report; tables of workloads that it does not have stay as they are.

    Args:
        page: Markdown.
        report: What `benchmarks.run` wrote.
    """
    workloads = {workload["name"]: workload for workload in report["workloads"]}

    def table(match: re.Match[str]) -> str:
        name, *metrics = match["names"].split()
        if name not in workloads:
            return match[0]
        return match[1] + "\n" + table_of(workloads[name], metrics) + "\n"

    return MARK.sub(table, page)


def table_of(workload: dict[str, Any], metrics: list[str]) -> str:
    """Returns a table with a row per candidate that has results; the first metric with its spread."""
    lines = ["| | " + " | ".join(HEADINGS[metric] for metric in metrics) + " |", "|---|" + "---:|" * len(metrics)]
    for one in workload["candidates"]:
        if not one["summary"]:
            continue
        cells = []
        for number, metric in enumerate(metrics):
            found = one["summary"].get(metric)
            if found is None:
                cells.append("")
            elif number == 0 and found["low"] != found["high"]:
                cells.append(f"{_text(found['median'])} ({_text(found['low'])} to {_text(found['high'])})")
            else:
                cells.append(_text(found["median"]))
        lines.append(f"| {one['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
