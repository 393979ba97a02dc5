"""The process that scans: `python -m energon_dali.view.scan_process`, started by `Scan`.

It reads one line of JSON, its job, and ends when its standard input is closed: with the process that started it, or
when that cancels the scan. It prints one line when it begins a block, and where it is asked to, before each sample, so
that its parent knows what a decoder was working on that ended the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from energon_dali.errors import EnergonDaliError
from energon_dali.view.sample_facts import SampleFacts, examine_samples
from energon_dali.view.scan_source import OpenedScanSource, ScanSource
from energon_dali.view.scan_store import BLOCK, ScanStore

_NICENESS = 10


@dataclass(frozen=True)
class ScanTask:
    """One dataset of a job."""

    source: dict[str, Any]
    """Fields of its ScanSource."""
    identity: str
    """Its identity."""
    careful: tuple[int, ...] = ()
    """Blocks in which a process ended: each of their samples is announced."""


@dataclass(frozen=True)
class ScanJob:
    """What one process scans."""

    folder: str
    """The folder of scans."""
    tasks: list[ScanTask]
    """The datasets."""
    share: int = 0
    """It takes the blocks whose number leaves this remainder when divided by `shares`."""
    shares: int = 1
    """Number of processes."""

    def to_json(self) -> str:
        """Returns the job as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> ScanJob:
        """Returns the job of a line."""
        values = json.loads(line)
        tasks = [ScanTask(task["source"], task["identity"], tuple(task["careful"])) for task in values.pop("tasks")]
        return cls(tasks=tasks, **values)


def run_job(job: ScanJob, tell: Callable[..., None]) -> None:
    """Scans what is missing of the datasets of a job.

    Args:
        job: The job.
        tell: Called with ("block", number of the task, number of the block) and ("sample", number of the task, index).

    Raises:
        DatasetError: A dataset cannot be opened.
        StorageError: A file cannot be read or written.
    """
    for number, task in enumerate(job.tasks):
        store = ScanStore(Path(job.folder), task.identity)
        opened = ScanSource(**task.source).open()
        try:
            done, crashes = store.done_blocks(), store.crashes()
            for block in range(job.share, -(-opened.num_samples // BLOCK), job.shares):
                if block not in done:
                    tell("block", number, block)
                    each = (
                        (lambda index, number=number: tell("sample", number, index)) if block in task.careful else None
                    )
                    store.write_block(block, examine_block(opened, block, crashes, each))
        finally:
            opened.close()


def examine_block(
    opened: OpenedScanSource, block: int, crashes: dict[int, str], before: Callable[[int], None] | None = None
) -> list[SampleFacts]:
    """Returns the facts of the samples of a block.

    Args:
        opened: The dataset.
        block: Number of the block.
        crashes: Reasons of the samples that must not be examined again.
        before: Called with the index of each sample before it is examined; None examines them together.
    """
    indices = range(block * BLOCK, min((block + 1) * BLOCK, opened.num_samples))
    if before is None and not any(index in crashes for index in indices):
        return list(examine_samples(opened, indices.start, indices.stop))
    found = []
    for index in indices:
        if index in crashes:
            shard, key = opened.reader.name(*opened.reader.locate(index))
            found.append(SampleFacts(index, key, shard, stage="decode", reason=crashes[index]))
            continue
        if before is not None:
            before(index)
        found += examine_samples(opened, index, index + 1)
    return found


def main() -> None:
    """Runs the job on standard input."""
    # Whatever a decoder or the dataset's code prints must not reach the parent as an announcement.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    line = sys.stdin.readline()
    if not line:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is left to the page, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(_NICENESS)

    def tell(*words: object) -> None:
        channel.write(json.dumps(words) + "\n")
        channel.flush()

    try:
        run_job(ScanJob.from_json(line), tell)
    except BrokenPipeError:  # the parent ended
        sys.exit(1)
    except (EnergonDaliError, OSError) as error:
        tell("error", str(error))
        sys.exit(1)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)  # the transaction that is open is rolled back


if __name__ == "__main__":
    main()
