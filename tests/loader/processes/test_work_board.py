"""The work board: reports are read whole while another process writes them."""

from __future__ import annotations

import os
import signal
import time

from energon_dali.datasets.metrics import WorkReport
from energon_dali.loader.processes.work_board import WorkBoard
from tests.forking import fork


def report(number: int) -> WorkReport:
    """Returns a report of a length of its own."""
    seconds = {f"stage {index}": float(number) for index in range(number % 40)}
    return WorkReport("worker 0", float(number), "s" * (number % 500), 1.0, "x" * (number % 200), seconds, {}, 0.0, [])


def test_a_report_is_never_read_half_written_and_a_killed_writer_does_no_harm() -> None:
    board = WorkBoard(2)
    found = set()
    for _ in range(3):
        pid = fork()
        if pid == 0:
            number = 0
            while True:  # the numbers of the region pass several multiples of 256, whose bytes all change
                board.write(0, report(number := number + 1))
        try:
            end = time.monotonic() + 0.1
            while time.monotonic() < end or not found:  # a busy machine may not run the writer at once
                read = board.read(0)
                if read is not None:
                    assert read == report(int(read.written))
                    found.add(read.written)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        board.write(0, report(7))
        assert board.read_all() == [report(7)]
    assert found


def test_what_does_not_fit_is_left_out() -> None:
    board = WorkBoard(1)
    board.write(0, report(3))
    board.write(0, report(4)._replace(stage="s" * 20_000))
    board.write(1, report(5))
    assert board.read_all() == [report(3)]


def test_regions_are_those_of_the_process_that_made_the_memory() -> None:
    board = WorkBoard(3)
    other = WorkBoard.of_descriptor(os.dup(board.fileno()))
    other.write(2, report(1))
    other.close_file()
    board.close_file()
    assert board.read_all() == other.read_all() == [report(1)]


def test_a_report_whose_length_is_not_written_yet_is_not_read() -> None:
    """Once `stats` raised JSONDecodeError, when the number had been written and the length had not."""
    board = WorkBoard(1)
    board.write(0, report(3))
    board._words[1] = 0
    assert board.read_all() == []
    board.write(0, report(4))
    assert board.read_all() == [report(4)]
