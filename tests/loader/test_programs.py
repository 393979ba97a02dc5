"""Whole programs that use a loader: how they start, are interrupted, are killed, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.part import sampled
from tests.running_time import wait_until

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, sys, time
from dataclasses import dataclass
from typing import NamedTuple
from energon_dali import Batch, WorkerConfig, edataclass
from energon_dali.loader.get_loader import get_savable_loader
from tests.loader.numbers_dataset import Mishap, tree

@dataclass
class Mine:
    stream: int
    place: int

    def total(self):
        return self.stream + self.place

@dataclass(slots=True)
class Slotted:
    stream: int
    place: int

    def total(self):
        return self.stream + self.place

@dataclass(slots=True)
class Derived(Slotted):
    pass

@edataclass
class OfBatch(Batch):
    stream: int
    place: int

    def total(self):
        return self.stream + self.place

class Named(NamedTuple):
    stream: int
    place: int

    def total(self):
        return self.stream + self.place

BASE = 1000
KINDS = Mine, Slotted, Derived, OfBatch, Named

def one(stream, epoch, place):
    kind = KINDS[place % len(KINDS)]
    fields = dict(__key__=["a"], __restore_key__=()) if issubclass(kind, Batch) else {}
    return kind(stream=stream, place=place + BASE, **fields)

def build(lengths=(6, 6), rank_work=False, method="spawn", make=one, workers=2, **options):
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=len(lengths))
    return get_savable_loader(
        tree(config, lengths=list(lengths), rank_work=rank_work, make=make, **options), start_method=method
    )

def say(*words):
    print(*words, flush=True)
"""

ENDLESS = """
loader = build(lengths=(10**9, 10**9), make=lambda s, e, p: (s, e, p), rank_work=RANK_WORK, method="METHOD")
"""


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[str]:
    """A name that only the processes of one test have in their environment; none of them may survive it."""
    name = f"{tmp_path}"
    yield name
    assert wait_until(lambda: not alive(name), 10), "processes are left"
    assert {entry.name for entry in tmp_path.iterdir()} <= {"program.py"}


def alive(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"TEST_MARKER={marker}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def environment(marker: str) -> dict[str, str]:
    return {**os.environ, "TEST_MARKER": marker, "TMPDIR": marker, "PYTHONPATH": str(ROOT)}


def start(marker: str, *arguments: str, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=marker,
        env=environment(marker),
        text=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_hear_interrupts,
    )


def _hear_interrupts() -> None:
    """Undoes what a shell does to background jobs: they ignore Ctrl-C, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def script(marker: str, body: str, rank_work: bool = False, method: str = "fork") -> str:
    path = Path(marker, "program.py")
    path.write_text(PROGRAM + body.replace("RANK_WORK", str(rank_work)).replace("METHOD", method))
    return str(path)


TWO_EPOCHS = """
loader = build(workers=1)
for epoch in range(2):
    batches = list(loader)
    assert [type(b) for b in batches] == [KINDS[p % len(KINDS)] for p in range(6) for s in range(2)], batches
    assert [hasattr(b, "__dict__") for b in batches[:10:2]] == [True, False, False, True, False], batches
    assert [b.total() for b in batches] == [1000 + p + s for p in range(6) for s in range(2)], batches
say("all well")
"""


def test_a_script_without_a_main_guard(marker: str) -> None:
    body = "from pathlib import Path\nsys.path.append(Path('imports do not look here'))\n" + TWO_EPOCHS
    process = start(marker, "-W", "error::ResourceWarning", script(marker, body))
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("all well\n", "", 0)


def test_a_program_on_the_command_line(marker: str) -> None:
    process = start(marker, "-c", PROGRAM + TWO_EPOCHS)
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("all well\n", "", 0)


def test_forked_workers_of_a_trainer_whose_torch_has_threads(marker: str) -> None:
    """libgomp hangs in a fork of a process whose threads it uses, unless the fork uses one thread."""
    body = """
import torch
torch.set_num_threads(4)
values = torch.arange(1 << 20, dtype=torch.float64)
expected = float((values * 2).sum())  # starts the threads

def make(stream, epoch, place):
    return torch.get_num_threads(), float((torch.arange(1 << 20, dtype=torch.float64) * 2).sum())

with build(make=make, method="METHOD") as loader:
    say(list(loader) == [(1, expected)] * 12, torch.get_num_threads())
"""
    process = start(marker, script(marker, body))
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("True 4\n", "", 0)


def test_a_prompt(marker: str) -> None:
    process = start(marker, "-i", "-q", stdin=subprocess.PIPE)
    typed = "exec('''" + PROGRAM + TWO_EPOCHS + "''')\n"
    out, err = process.communicate(typed, timeout=60)
    assert "all well\n" in out
    assert "Error" not in err
    assert process.returncode == 0


@pytest.mark.parametrize("rank_work", sampled([False, True], 2))
def test_ctrl_c(marker: str, rank_work: bool) -> None:
    body = (
        ENDLESS
        + """
try:
    next(iter(loader))
    say("running")
    for batch in loader:
        pass
except KeyboardInterrupt:
    say("interrupted", loader.save_state_rank()["streams"]["0"]["count"] > 0)
    import threading
    loader.close()
    say(len(threading.enumerate()), len(os.listdir("/proc/self/fd")) == FILES)
"""
    )
    body = "FILES = len(os.listdir('/proc/self/fd'))\n" + body
    process = start(marker, script(marker, body, rank_work, "fork" if rank_work else "spawn"))
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("interrupted True\n1 True\n", "", 0)


def test_ctrl_c_that_nobody_catches(marker: str) -> None:
    process = start(marker, script(marker, ENDLESS + "next(iter(loader))\nsay('running')\nfor _ in loader: pass", True))
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert err.strip().splitlines()[-1] == "KeyboardInterrupt"
    assert err.count("Traceback") == 1
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("method", sampled(["fork", "spawn"], 2))
def test_sigterm_that_the_trainer_handles(marker: str, method: str) -> None:
    body = f"""
import multiprocessing, signal
signal.signal(signal.SIGTERM, lambda *_: say("heard"))

def make(stream, epoch, place):
    if place < 20:
        return place
    # Made after the signal; processes that hooks start end by it as usual.
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode

loader = build(lengths=(21, 21), make=make, method="{method}", workers=1)
got = [next(iter(loader))]
os.killpg(0, signal.SIGTERM)  # as torchrun and schedulers do: to the workers as well
got += loader
say(len(got), got[-2:])
"""
    out, err = start(marker, script(marker, body)).communicate(timeout=100)
    assert (out, err) == ("heard\n42 [-15, -15]\n", "")


@pytest.mark.parametrize("end", sampled([signal.SIGKILL, signal.SIGTERM], 2))
def test_the_trainer_is_killed(marker: str, end: signal.Signals) -> None:
    body = ENDLESS + "next(iter(loader))\nsay(*loader._prefetcher._processes.pids)\nfor _ in loader: pass"
    process = start(marker, script(marker, body, True, "spawn" if end == signal.SIGKILL else "fork"))
    assert process.stdout is not None
    assert len(process.stdout.readline().split()) == 2
    assert wait_until(lambda: len(alive(marker)) == 3, 60)
    os.kill(process.pid, end)
    process.communicate(timeout=60)
    assert wait_until(lambda: not alive(marker), 10)


@pytest.mark.parametrize("method", sampled(["fork", "spawn"], 2))
def test_the_trainer_is_killed_while_workers_are_busy(marker: str, method: str) -> None:
    body = f"""
loader = build(lengths=(9, 9), method="{method}", mishap=Mishap(1, 0, "hang"))
next(iter(loader))
pids = loader._prefetcher._processes.pids
if os.fork() == 0:  # a child of the trainer that holds copies of its descriptors for a while
    time.sleep(1000)
    os._exit(0)
say(*pids)
next(iter(loader))
"""
    process = start(marker, script(marker, body))
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: not set(alive(marker)) & set(workers), 10)
    (holder,) = alive(marker)
    os.kill(holder, signal.SIGKILL)
    process.communicate(timeout=60)


def test_a_worker_is_killed(marker: str) -> None:
    body = (
        ENDLESS
        + """
import signal
next(iter(loader))
from tests.running_time import RunningTime
os.kill(loader._prefetcher._processes.pids[1], signal.SIGKILL)
with RunningTime() as passed:
    try:
        for batch in loader:
            pass
    except Exception as error:
        say(type(error).__name__, "SIGKILL" in str(error), passed.seconds < 5)
"""
    )
    process = start(marker, script(marker, body, rank_work=True))
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("WorkerDiedError True True\n", "")


@pytest.mark.parametrize(
    "ending", sampled(["pass", "raise SystemExit(3)", "1 / 0", "del loader; import gc; gc.collect()"], 4)
)
def test_a_program_that_ends_in_the_middle(marker: str, ending: str) -> None:
    body = ENDLESS + f"for batch in loader:\n    break\nsay('half way')\n{ending}"
    process = start(marker, script(marker, body, rank_work=True))
    out, err = process.communicate(timeout=60)
    assert out == "half way\n"
    assert process.returncode == {"raise SystemExit(3)": 3, "1 / 0": 1}.get(ending, 0)
    assert "Traceback" not in err or ending == "1 / 0"


DISTRIBUTED = """
import torch.distributed as dist
rank = int(sys.argv[1])
meeting = "file://" + os.environ["TMPDIR"] + "/program.py.meet"
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
LENGTHS = [5, 3, 0, 7]

def loader_of(rank, world):
    config = WorkerConfig(rank=rank, world_size=world, num_workers=0, num_streams=4)
    return get_savable_loader(tree(config, lengths=LENGTHS))

loader = loader_of(rank, 2)
for _, batch in zip(range(3), loader):
    pass
whole = loader.save_state_global(global_dst_rank=1)
assert (whole is None) == (rank == 0)
again = loader_of(rank, 2)
again.restore_state_global(whole, src_rank=1)
rest = list(loader)
assert list(again) == rest
gathered = [None, None]
dist.all_gather_object(gathered, rest)
if rank == 1:
    one = loader_of(0, 1)
    one.restore_state_global(whole)
    assert sorted(one) == sorted(gathered[0] + gathered[1])
    say("agreed")
dist.barrier()
dist.destroy_process_group()
"""


def test_ranks_gather_and_scatter_one_state(marker: str) -> None:
    path = script(marker, DISTRIBUTED)
    ranks = [start(marker, path, str(rank)) for rank in range(2)]
    results = [process.communicate(timeout=100) for process in ranks]
    Path(marker, "program.py.meet").unlink(missing_ok=True)
    assert [process.returncode for process in ranks] == [0, 0], results
    assert results[1][0] == "agreed\n"
