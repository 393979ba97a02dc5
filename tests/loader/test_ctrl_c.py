"""Ctrl-C at every line on the way to a batch: the batch was delivered, or it is the next one; never neither or both."""

from __future__ import annotations

import itertools
import linecache
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from energon_dali import BatchDataset, MapDataset, get_savable_loader
from energon_dali.shards.storage.store import current_scope
from energon_dali.worker_config import WorkerConfig
from tests.loader.numbers_dataset import tree

COUNT = 12
STRIDE = 3
"""Outside the loader's own files, one interrupt per this many lines is enough."""


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Restores handlers: an interrupt at a line where no signal can arrive leaves the deferring ones installed."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Interrupt:
    """Raises KeyboardInterrupt at the given line event of the package, counted from 0.

    Args:
        at: At which; one that does not come only counts.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self.place = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if "/energon_dali/" not in name or "watchdog" in name:
            return None
        # Not at the end of a `with`, which is traced as its first line: no signal arrives between its body and its end.
        # Nor at a `try`, which does nothing.
        line = linecache.getline(name, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith(("with ", "try:")):
            if self.seen == self.at:
                self.place = f"{name}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
            self.seen += 1
        return self


def doubled(element: tuple[int, ...]) -> tuple[int, ...]:
    return (*element, *element)


def as_tuple(elements: list[Any]) -> tuple[Any, ...]:
    return tuple(elements)


def make() -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=2)
    numbers = tree(config, lengths=[COUNT, COUNT])
    return get_savable_loader(BatchDataset(MapDataset(numbers, doubled), 2, as_tuple))


def interrupted(at: int, after: int = 2) -> tuple[list[Any], Interrupt, Any]:
    """Returns (delivered batches, the interrupt, the loader) for an interrupt while one more is asked for."""
    loader, given = make(), []
    iterator = iter(loader)
    given += itertools.islice(iterator, after)
    interrupt = Interrupt(at)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        batch = next(iterator)
        sys.settrace(before)
        given.append(batch)
    except (KeyboardInterrupt, StopIteration):
        pass
    finally:
        sys.settrace(before)
    assert not loader._clock._waits, f"the loader still counts a wait after {interrupt.place}"
    return given, interrupt, loader


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_anywhere_on_the_way_loses_no_batch() -> None:
    expected = list(make())
    lines = interrupted(-1)[1].seen
    assert lines > 100
    scope = current_scope()
    for at in range(lines):
        given, interrupt, loader = interrupted(at)
        if at % STRIDE and "/loader/" not in interrupt.place:
            continue
        again = make()
        again.load_state_dict(loader.state_dict())
        assert given + list(again) == expected, f"from the state, after {interrupt.place}"
        assert given + list(loader) == expected, f"from the loader itself, after {interrupt.place}"
        loader.close()
        assert current_scope() is scope, f"reading still follows the closed loader, after {interrupt.place}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_anywhere_at_the_end_of_an_epoch_loses_no_epoch() -> None:
    loader = make()
    first, second = list(loader), list(loader)
    lines = interrupted(-1, len(first))[1].seen
    assert lines > 30
    for at in range(lines):
        given, interrupt, loader = interrupted(at, len(first))
        assert given == first
        assert list(loader) == second, f"after {interrupt.place}"
        loader.close()
