"""Random programs that are interrupted, killed and restored: what they deliver is that of an uninterrupted run."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from benchmarks.remote.s3_server import S3Server
from tests.faults.campaign import Campaign, Case, Lost, Outcome
from tests.programs.folders import write_folders
from tests.programs.program import MOST_SEGMENTS
from tests.programs.run import Differs, Doomed, check, valid_program


def prepare(folder: Path) -> Case:
    """Writes the datasets and serves them; the case draws a program, and runs it with and without interruptions."""
    logging.disable(logging.CRITICAL)
    base = write_folders(folder / "buckets" / "data")
    server = S3Server(folder / "buckets")
    server.__enter__()  # it ends with this process
    os.environ.update(server.environment())

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


PROGRAMS = Campaign("random programs", 300, prepare, timeout_seconds=240, cases_per_child=1, is_sampled=False)
"""tests/programs has the sample."""
