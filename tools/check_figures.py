"""`python tools/check_figures.py`: compares the figures of README.md and docs/ with the results that they name.

Marked figures (`benchmarks/tables.py`) must be what the results say. On the pages of `STRICT_PAGES`, a number with a
unit of time, speed or proportion needs a mark. Every other page that names a file of benchmarks/results must have a
mark with a figure of it. The pages of `LOGS` need none: a dated record, and a
page that a script writes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.tables import FIGURE, TABLE, MissingFigureError, fill, pages  # noqa: E402

STRICT_PAGES = ("README.md", "docs/benchmarks.md")
LOGS = ("docs/benchmarks-log.md", "docs/capacity.md", "docs/gpu-notes.md")
_RESULTS = re.compile(r"benchmarks/results/([\w-]+\.json)")
_BLOCKS = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->|^#.*?$", re.DOTALL | re.MULTILINE)
MEASURED = re.compile(
    r"(?<![\w.])\d[\d,]*(?:\.\d+)?\s?(?:times\b|%|(?:images|samples|files|clips|packs)/s|ms\b|us\b|s\b)"
)


def main() -> int:
    """Prints each fault; returns 1 if there is one."""
    faults = [fault for page in pages() for fault in faults_of(str(page.relative_to(ROOT)), page.read_text())]
    for fault in faults:
        print(fault)
    return int(bool(faults))


def faults_of(name: str, text: str) -> list[str]:
    """Returns what is wrong with the figures of a page.

    Args:
        name: Its path in the checkout.
        text: Its Markdown.
    """
    try:
        filled = fill(text)
    except MissingFigureError as error:
        return [f"{name}: {error}"]
    faults = []
    for before, after in zip(text.splitlines(), filled.splitlines(), strict=False):
        if before != after:
            faults.append(f"{name}: {before!r} should be {after!r}. Run `python -m benchmarks.tables`.")
            break
    else:
        if text != filled:
            faults.append(f"{name}: a table has other rows than its results. Run `python -m benchmarks.tables`.")
    if name not in LOGS:
        marked = {match["names"].split()[0] for match in (*TABLE.finditer(text), *FIGURE.finditer(text))}
        faults += [
            f"{name}: it names {file}, and no mark has a figure of it."
            for file in sorted(set(_RESULTS.findall(_BLOCKS.sub("", text))) - marked)
        ]
    if name in STRICT_PAGES:
        faults += [f"{name}: {found!r} has no mark that names its results." for found in unmarked(text)]
    return faults


def unmarked(text: str) -> list[str]:
    """Returns the measurements of a page that no mark covers; code, links and headings are not searched."""
    rest = _CODE.sub(" ", FIGURE.sub(" ", TABLE.sub(" ", text)))
    return [match[0] for match in MEASURED.finditer(rest)]


if __name__ == "__main__":
    sys.exit(main())
