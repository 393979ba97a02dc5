"""Compares front ends with extractors on many recordings: `python -m tests.decode.audio_front_ends.family_sweep`."""

from __future__ import annotations

import argparse
from collections import defaultdict

from tests.decode.audio_front_ends.family_cases import all_cases
from tests.decode.audio_front_ends.family_comparison import Tally, compare


def main() -> None:
    """Prints a line for each extractor; fails at the first difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of an extractor's name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batches", type=int, default=2, help="batches of 5 recordings for each configuration")
    arguments = parser.parse_args()
    tallies: dict[str, list[Tally]] = defaultdict(list)
    for number, case in enumerate(all_cases()):
        if arguments.only in case.extractor:
            tallies[case.extractor].append(compare(case, arguments.seed + number, batches=arguments.batches))
    for name, some in tallies.items():
        total = Tally()
        for tally in some:
            total.add(tally)
        print(
            f"{name}: {len(some)} configurations, {total.recordings} recordings, all lengths and masks equal; "
            f"{total.different} of {total.values} values differ, by {total.largest:.2g} at most"
        )


if __name__ == "__main__":
    main()
