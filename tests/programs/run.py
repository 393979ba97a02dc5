"""Runs a program without and with its interruptions, and compares what is delivered."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from energon_dali import EnergonDaliError, ShardCache, get_savable_loader
from energon_dali.loader.loader_state import merge_states
from tests.programs.encoders import shown
from tests.programs.program import Program, Segment, build, draw_program, job

END = "end of an epoch"
_ATTEMPTS = 20


class Differs(Exception):
    """What was delivered after a restore is not what would have come."""


def valid_program(seed: int, folder: Path, *, in_process: bool = False) -> tuple[Program, list[str]]:
    """Returns the program of a seed, and what its uninterrupted run delivers.

    Args:
        seed: Its number.
        folder: Of the datasets.
        in_process: Leave out what needs an object store or a process of its own.
    """
    refused: list[str] = []
    for attempt in range(_ATTEMPTS):
        program = draw_program(Random(f"{seed} {attempt}"), in_process=in_process)
        try:
            return program, uninterrupted(program, str(folder))
        except EnergonDaliError as error:  # such as a blend of sources that are all skipped
            refused.append(f"{type(error).__name__}: {error}")
    raise AssertionError(f"No program of seed {seed} can run: {refused}")


def uninterrupted(program: Program, base: str) -> list[str]:
    """Returns what one rank delivers in one process."""
    dataset = build(program.tree, base, job(program), program.segments[0].decoder)
    with get_savable_loader(dataset) as loader:
        return taken(loader, program.segments[-1].stop, with_ends=not program.tree.is_endless)


def taken(
    loader: Any,
    count: int,
    *,
    with_ends: bool,
    change: tuple[int, int] | None = None,
    view: Callable[[Any], Any] = shown,
) -> list[Any]:
    """Returns the next elements, over any number of epochs.

    Args:
        loader: The loader.
        count: Number of elements.
        with_ends: Whether the end of an epoch counts as an element.
        change: (number of elements, number of workers from then on).
        view: Returns what is compared of an element.
    """
    found: list[Any] = []
    empty_epochs = 0
    batches = iter(loader)
    while len(found) < count:
        if change is not None and len(found) >= change[0]:
            loader.change_workers(change[1])
            change = None
        goal = count if change is None else change[0]
        before = len(found)
        found += map(view, islice(batches, goal - before))
        if len(found) < goal:
            empty_epochs = empty_epochs + 1 if len(found) == before else 0
            batches = iter(loader)
            if with_ends:
                found.append(END)
            elif empty_epochs > 3:
                raise Differs("epochs are empty")
    return found


def check(
    program: Program,
    expected: list[str],
    base: str,
    remote: str = "",
    scratch: Path | None = None,
    doomed: list[Doomed] | None = None,
) -> None:
    """Runs a program with its interruptions.

    Args:
        program: The program.
        expected: What it delivers without them.
        base: Folder of the datasets.
        remote: Their URL.
        scratch: Folder for files.
        doomed: Processes for segments that are killed.

    Raises:
        Differs: It delivers something else.
    """
    if program.batch_size_later is not None:
        _check_resized(program, base)
        return
    begin, state, skipped = 0, None, frozenset[int]()
    for number, segment in enumerate(program.segments):
        if segment.skip is not None:
            first, stop, _ = segment.skip
            skipped |= set(range(max(begin, first * segment.world), stop * segment.world))
        places = [place for place in range(begin, segment.stop) if place not in skipped]
        run = doomed.pop().run if segment.ending == "kill" and doomed else _run_segment
        found, state = run(program, segment, begin, skipped, state, base, remote, scratch)
        wanted = {place: expected[place] for place in places}
        if found != wanted:
            wrong = [place for place in places if found.get(place) != wanted[place]]
            at = wrong[0]
            raise Differs(
                f"segment {number}: {len(wrong)} of {len(places)} elements differ, first {at}: {found.get(at)} for "
                f"{wanted[at]}\n{program}"
            )
        begin = segment.stop


def _run_segment(
    program: Program,
    segment: Segment,
    begin: int,
    skipped: frozenset[int],
    state: Any,
    base: str,
    remote: str,
    scratch: Path | None,
) -> tuple[dict[int, str], Any]:
    """Returns (elements by their place in the job's order, the global state after them)."""
    order: dict[int, str] = {}
    states, kept = [], []
    for rank in range(segment.world):
        config = job(program, segment.world, rank, segment.workers)
        dataset = build(program.tree, remote if segment.remote else base, config, segment.decoder)
        places = [
            place
            for place in range(begin, segment.stop)
            if place not in skipped and place % program.streams in config.streams
        ]
        options: dict[str, Any] = {"start_method": "fork", "decode_process": segment.decode_process}
        if segment.cached and scratch is not None:
            options |= {"shard_cache": ShardCache(scratch / "cache", max_bytes="64MiB"), "read_ahead_bytes": 1 << 20}
        loader = get_savable_loader(dataset, **options)
        loader.restore_state_global(state)
        if segment.skip is not None:
            first, stop, by = segment.skip
            loader.skip_steps(first, stop, by=by)  # type: ignore[arg-type]
        change = None if segment.workers_later is None else (len(places) // 2, segment.workers_later)
        found = taken(loader, len(places), with_ends=not program.tree.is_endless, change=change)
        order.update(zip(places, found, strict=True))
        states.append(loader.save_state_rank())
        kept.append(loader)
        if segment.ending == "close":
            loader.close()
        if segment.ending != "kill":
            kept.clear()
        del loader
        gc.collect()
    result = order, json.loads(json.dumps(merge_states(states)))
    if segment.ending == "kill" and scratch is not None:  # with the loaders of all ranks open
        (scratch / "segment.pickle").write_bytes(pickle.dumps(result))
        os.kill(os.getpid(), signal.SIGKILL)
    return result


class Doomed:
    """A process that runs a segment and is killed after its last element. It is forked before there are any threads."""

    def __init__(self) -> None:
        orders, self._orders = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(orders)
            return
        code = 1
        try:
            os.close(self._orders)
            with open(orders, "rb") as pipe:
                content = pipe.read()
            if content:
                _run_segment(*pickle.loads(content))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def run(self, *arguments: Any) -> tuple[dict[int, str], Any]:
        """Returns what the segment delivered, and the state after it.

        Raises:
            Differs: The process ended in another way.
        """
        with open(self._orders, "wb") as pipe:
            pickle.dump(arguments, pipe)
        _, status = os.waitpid(self._pid, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            raise Differs(f"the process of a segment ended with {os.waitstatus_to_exitcode(status)}")
        scratch: Path = arguments[-1]
        delivered: tuple[dict[int, str], Any] = pickle.loads((scratch / "segment.pickle").read_bytes())
        return delivered

    def dismiss(self) -> None:
        """Ends a process that has nothing to run."""
        os.close(self._orders)
        os.waitpid(self._pid, 0)


def _check_resized(program: Program, base: str) -> None:
    """Compares the samples of each stream before and after a change of the batch size."""
    first, last = program.segments
    whole = _samples(program, base, first, last.stop, None, None)[0]
    begun, state = _samples(program, base, first, first.stop, None, None)
    rest, _ = _samples(program, base, last, last.stop - first.stop, state, program.batch_size_later)
    for stream in range(program.streams):
        before, after, expected = (
            [sample for batch in batches[stream :: program.streams] for sample in batch]
            for batches in (begun, rest, whole)
        )
        length = min(len(before) + len(after), len(expected))
        if not after or (before + after)[:length] != expected[:length]:
            raise Differs(f"stream {stream} has other samples in batches of another size\n{program}")


def _samples(
    program: Program, base: str, segment: Segment, count: int, state: Any, batch_size: int | None
) -> tuple[list[list[str]], Any]:
    """Returns (the samples of each of the next batches, the state after them)."""
    dataset = build(program.tree, base, job(program, 1, 0, segment.workers), segment.decoder, batch_size)
    with get_savable_loader(dataset, start_method="fork", decode_process=segment.decode_process) as loader:
        loader.restore_state_rank(state)
        batches = taken(loader, count, with_ends=False, view=lambda batch: batch["samples"])
        return batches, json.loads(json.dumps(loader.save_state_rank()))
