"""A signal may arrive at any line of `save_state_rank`: its handler may raise, or save a state itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any

import pytest

from energon_dali import WorkerConfig, get_savable_loader
from tests.loader.numbers_dataset import tree

STEP = 11
"""A signal arrives at one of this many lines."""


class Terminated(BaseException):
    """What a handler of SIGTERM raises."""


def at_line(call: Callable[[], Any], line: int, handler: Callable[[], None]) -> int:
    """Makes a call with a handler that runs before its given line of this package; returns how many lines it has."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "energon_dali" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count == line:
                sys.settrace(None)
                handler()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_while_a_state_is_saved_changes_no_state_and_no_batch(workers: int) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=4)
    with get_savable_loader(tree(config), start_method="fork") as loader:
        batches = iter(loader)
        first = list(islice(batches, 3))
        state = json.dumps(loader.save_state_rank())

        def fresh() -> None:
            loader._packed_config = None  # as for the first state
            states.append(json.dumps(loader.save_state_rank()))

        def terminate() -> None:
            raise Terminated

        states: list[str] = []
        num_lines = at_line(fresh, 0, terminate)
        assert num_lines > 5 * STEP
        for line in range(1, num_lines, STEP):
            with pytest.raises(Terminated):
                at_line(fresh, line, terminate)
            at_line(fresh, line, lambda: states.append(json.dumps(loader.save_state_rank())))
        assert set(states) == {state}
        rest = list(islice(batches, 5))
    with get_savable_loader(tree(config), start_method="fork") as whole:
        assert list(islice(whole, 8)) == first + rest
