"""Runs many cases of one kind of fault in child processes, and counts what survived, was lost and was left behind.

A campaign prepares what its cases share once, in the parent. Its cases run in children that are forked from it, each in
a folder of its own. A case that hangs or ends its process costs that one case: the next child goes on after it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any

from energon_dali.errors import EnergonDaliError
from tests.faults.leftovers import PATIENCE_SECONDS, awaited, held, left_since

_SHOWN_OF_A_HANG = 8_000
"""Characters of what a child wrote at its end: a hang has the stack of each thread, the main thread last."""
SHOWN = 8
"""Number of losses that are printed per campaign."""


class Lost(Exception):
    """Something that should survive did not: a good sample, the order, a message."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one case."""

    tried: int = 1
    """Number of files, requests or kills in this case."""
    survived: int = 1
    """How many of them continued as if nothing had happened."""
    refused: int = 0
    """How many of them ended in an error of the package."""


@dataclass
class Tally:
    """Outcome of a campaign."""

    name: str
    seconds: float = 0.0
    tried: int = 0
    survived: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    """A line or a traceback for each loss."""
    left_behind: list[str] = field(default_factory=list)
    """Processes, threads, descriptors, shared memory and temporary files without an owner."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost or left behind, and there was something to lose."""
        return not self.lost and not self.left_behind and self.tried > 0


Case = Callable[[int, Path], Outcome]
"""Takes (number of the case, its empty scratch folder); returns its outcome; raises `Lost`, or anything unexpected."""


@dataclass(frozen=True)
class Campaign:
    """One kind of fault."""

    name: str
    cases: int
    """Number of cases of a full run."""
    prepare: Callable[[Path], Case]
    """Creates what all cases share, in the given folder; imports what the cases need, so that children start warm."""
    timeout_seconds: int = 60
    """A case that takes longer counts as hanging."""
    cases_per_child: int = 200
    warm_cases: int = 1
    """Number of first cases of a child, which open what it keeps open, such as the threads of an engine."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long to wait for what is about to end, before it counts as left behind."""
    is_sampled: bool = True
    """False runs it only in a full run, because one case takes longer than all other samples together."""


def refused_by_us(call: Callable[[], Any], what: str) -> EnergonDaliError | None:
    """Returns the error of this package that `call` raises, None if it succeeds.

    Raises:
        Lost: It ends in any other error.
    """
    try:
        call()
    except EnergonDaliError as error:
        return error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise Lost(
            f"{what}: {type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
        ) from error
    return None


def run(campaign: Campaign, folder: Path, cases: range | None = None, jobs: int = 2) -> Tally:
    """Runs a campaign.

    Args:
        campaign: What to run.
        folder: A folder for its files.
        cases: Numbers of the cases; None runs all.
        jobs: Child processes at a time.
    """
    numbers = range(campaign.cases) if cases is None else cases
    tally = Tally(campaign.name)
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    case = campaign.prepare(folder)
    step = campaign.cases_per_child
    pieces = [numbers[start : start + step] for start in range(0, len(numbers), step)]
    running: list[_Child] = []
    gc.collect()
    while pieces or running:
        while pieces and len(running) < jobs:
            running.append(_Child(campaign, case, pieces.pop(0), folder))
        select([child.pipe for child in running], [], [], 0.2)
        for child in list(running):
            ended = child.has_ended()  # checked first, so that everything it wrote until then is read below
            child.read(tally)
            if ended:
                running.remove(child)
                rest = child.finish(tally)
                if rest:
                    pieces.insert(0, rest)
    tally.left_behind += _strays(folder)
    tally.seconds = time.monotonic() - began
    return tally


class _Child:
    """A forked process that runs some of the cases and reports each."""

    def __init__(self, campaign: Campaign, case: Case, numbers: range, folder: Path) -> None:
        self.campaign = campaign
        self.numbers = numbers
        self.done = 0
        self.is_complete = False
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read after the child ended
        sys.stdout.flush()
        sys.stderr.flush()
        self._code: int | None = None
        self.pipe, write = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            os.set_blocking(self.pipe, False)
            return
        code = 1
        try:
            os.close(self.pipe)
            os.setsid()  # so that what it leaves behind can be found
            os.dup2(self._errors.fileno(), 2)
            faulthandler.enable(self._errors.fileno())
            _run_cases(campaign, case, numbers, folder, write, self._errors.fileno())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def has_ended(self) -> bool:
        """Returns whether the process has ended; its own children may still hold its pipe."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def read(self, tally: Tally) -> None:
        """Takes what the child has reported since the last call."""
        with suppress(BlockingIOError):
            while piece := os.read(self.pipe, 1 << 16):
                self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "left" in report:
                tally.left_behind += report["left"]
                self.is_complete = True
                continue
            self.done += 1
            tally.tried += report["tried"]
            tally.survived += report["survived"]
            tally.refused += report["refused"]
            tally.lost += [report["lost"]] if report["lost"] else []

    def finish(self, tally: Tally) -> range:
        """Counts what the ended child lost and left behind; returns the remaining cases."""
        os.close(self.pipe)
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        self._errors.close()
        strays = awaited(lambda: _session_of(self.pid), self.campaign.patience_seconds)
        if strays:
            tally.left_behind.append(f"{self.campaign.name}: processes {strays} outlived cases {self.numbers}")
            for pid in strays:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.is_complete and self._code == 0:
            return range(0)
        at = self.numbers[self.done]
        how = "hung" if "Timeout (" in text else f"ended the process with {self._code}"
        tally.tried += 1
        tally.lost.append(f"case {at} {how}\n{text[-_SHOWN_OF_A_HANG:]}")
        return self.numbers[self.done + 1 :]


def _run_cases(campaign: Campaign, case: Case, numbers: range, folder: Path, pipe: int, errors: int) -> None:
    """Body of a child process."""
    before: Counter[str] | None = None
    for count, number in enumerate(numbers, 1):
        scratch = Path(tempfile.mkdtemp(prefix=f"case-{number}-", dir=folder))
        lost = ""
        outcome = Outcome(survived=0)
        faulthandler.dump_traceback_later(campaign.timeout_seconds, exit=True, file=errors)
        try:
            outcome = case(number, scratch)
        except Lost as error:
            lost = f"case {number}: {error}"
        except Exception:
            lost = f"case {number}: {traceback.format_exc()[-1500:]}"
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(scratch, ignore_errors=True)
        report = {"tried": outcome.tried, "survived": outcome.survived, "refused": outcome.refused, "lost": lost}
        os.write(pipe, json.dumps(report).encode() + b"\n")
        if count == campaign.warm_cases:
            before = held()
    left = []
    if before is not None:
        found = left_since(before, campaign.patience_seconds)
        left = [f"{campaign.name}: {many} x {what}, after cases {numbers}" for what, many in found.items()]
    os.write(pipe, json.dumps({"left": left}).encode() + b"\n")


def _session_of(leader: int) -> list[int]:
    """Returns the processes of a session whose leader has ended."""
    return [pid for pid, session in _sessions() if session == leader]


def _sessions() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    yield int(name), int(fields[3])


def _strays(folder: Path) -> list[str]:
    """Returns the temporary files and building folders that cases left in the shared folder."""
    return [
        f"{path.relative_to(folder)} was left behind"
        for path in sorted(folder.rglob("*"))
        if (path.name.endswith(".tmp") or path.name.startswith(".energon-dali-"))
        and not any(parent.name.startswith("case-") for parent in path.parents)
    ]
