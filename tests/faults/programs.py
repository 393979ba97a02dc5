"""Random programs that are interrupted, killed and restored, and random compositions whose plan is known.

What a program delivers is that of an uninterrupted run; what a composition delivers is its plan, less what fails.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from benchmarks.remote.s3_server import S3Server
from tests.faults.campaign import Campaign, Case, Lost, Outcome
from tests.programs.folders import write_folders
from tests.programs.oracle import check_composition, check_tree
from tests.programs.program import MOST_SEGMENTS
from tests.programs.run import Differs, Doomed, check, valid_program


def _serve(folder: Path) -> Path:
    """Writes the datasets and serves them, until this process ends; returns their folder."""
    logging.disable(logging.CRITICAL)
    base = write_folders(folder / "buckets" / "data")
    server = S3Server(folder / "buckets")
    server.__enter__()
    os.environ.update(server.environment())
    return base


def prepare(folder: Path) -> Case:
    """Writes the datasets; the case draws a program, and runs it with and without interruptions."""
    base = _serve(folder)

    def case(number: int, scratch: Path) -> Outcome:
        doomed = [Doomed() for _ in range(MOST_SEGMENTS)]
        try:
            program, expected = valid_program(number, base)
            check(program, expected, str(base), "s3://data", scratch, doomed)
        except Differs as error:
            raise Lost(str(error)) from error
        finally:
            for process in reversed(doomed):  # each holds copies of the pipes of those before it
                process.dismiss()
        return Outcome()

    return case


def prepare_compositions(folder: Path) -> Case:
    """Writes the datasets; the case draws a composition and a tree, and compares runs with their plans."""
    base = _serve(folder)

    def case(number: int, scratch: Path) -> Outcome:
        try:
            check_composition(number, str(base), "s3://data")
            check_tree(number, str(base))
        except Differs as error:
            raise Lost(str(error)) from error
        return Outcome()

    return case


PROGRAMS = Campaign("random programs", 300, prepare, timeout_seconds=240, cases_per_child=1, is_sampled=False)
COMPOSITIONS = Campaign("compositions and their plans", 200, prepare_compositions, warm_cases=4, is_sampled=False)
"""tests/programs has the samples."""
