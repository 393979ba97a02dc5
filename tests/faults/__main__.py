"""Runs all fault campaigns and prints what survived, what was lost and what was left behind.

    python -m tests.faults [--only NAME ...] [--share 0.1 | --part 1/4] [--jobs 2]

Exits with 1 if anything was lost or left behind.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.campaign import SHOWN, Tally, run
from tests.faults.campaigns import CAMPAIGNS
from tests.part import WHOLE, Part

_ROOM_BYTES = 512 << 20


def table(tallies: list[Tally]) -> str:
    """Returns a table with one line per campaign."""
    names = ("campaign", "tried", "survived", "refused", "lost", "left behind", "seconds")
    rows = [
        (
            t.name,
            f"{t.tried:,}",
            f"{t.survived:,}",
            f"{t.refused:,}",
            str(len(t.lost)),
            str(len(t.left_behind)),
            f"{t.seconds:.0f}",
        )
        for t in tallies
    ]
    widths = [max(len(row[column]) for row in (names, *rows)) for column in range(len(names))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if not column else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (names, *rows)
    )


def in_memory() -> str | None:
    """Returns a folder in memory, so that no case waits for a disk; None if there is none with enough room."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and shutil.disk_usage(folder).free > _ROOM_BYTES else None


def main() -> int:
    """Runs the campaigns that the command line selects; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="words of the names of campaigns")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--share", type=float, default=1.0, help="share of the cases to run")
    some.add_argument(
        "--part", type=Part.parse, default=WHOLE, help="such as 1/4: every fourth case from the first one on"
    )
    parser.add_argument("--jobs", type=int, default=2, help="child processes at a time")
    options = parser.parse_args()
    began = time.monotonic()
    tallies = []
    for campaign in CAMPAIGNS:
        if options.only and not any(word in campaign.name for word in options.only):
            continue
        if options.share < 1 and not campaign.is_sampled:
            continue
        cases = options.part.of(range(max(1, int(campaign.cases * options.share))))
        if not cases:
            continue
        print(f"{campaign.name} ...", flush=True)
        with tempfile.TemporaryDirectory(prefix="energon-dali-faults-", dir=in_memory()) as folder:
            tally = run(campaign, Path(folder) / "work", cases, options.jobs)
        tallies.append(tally)
        for what, found in (("lost", tally.lost), ("left behind", tally.left_behind)):
            for text in found[:SHOWN]:
                print(f"  {what}: {text}", flush=True)
            if len(found) > SHOWN:
                print(f"  ... and {len(found) - SHOWN} more", flush=True)
    print()
    print(table(tallies))
    clean = bool(tallies) and all(tally.is_clean for tally in tallies)
    verdict = "Nothing was lost, nothing was left behind." if clean else "Faults were not survived."
    print(f"\n{verdict} {time.monotonic() - began:.0f} s in all.")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
