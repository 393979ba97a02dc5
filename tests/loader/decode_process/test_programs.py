"""Whole programs whose loader has a decode process: how they start, are interrupted and killed, and what is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.loader.test_programs import ENDLESS, PROGRAM, TWO_EPOCHS, alive, marker, start
from tests.part import sampled
from tests.running_time import wait_until

__all__ = ["marker"]

WITH_PROCESS = PROGRAM.replace("start_method=method", "start_method=method, decode_process=True")


def script(marker: str, body: str, method: str = "fork") -> str:
    path = Path(marker, "program.py")
    path.write_text(WITH_PROCESS + body.replace("RANK_WORK", "True").replace("METHOD", method))
    return str(path)


def wait_until_nothing_is_left(marker: str, *but: int) -> None:
    assert wait_until(lambda: not set(alive(marker)) - set(but), 10)


def test_a_script_without_a_main_guard_and_without_standard_output(marker: str) -> None:
    process = start(marker, script(marker, "os.close(1)\nsys.stdout = sys.stderr\n" + TWO_EPOCHS))
    _, err = process.communicate(timeout=110)
    assert (err, process.returncode) == ("all well\n", 0)


def test_ctrl_c(marker: str) -> None:
    body = (
        "FILES = len(os.listdir('/proc/self/fd'))\n"
        + ENDLESS
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
    process = start(marker, script(marker, body))
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("interrupted True\n1 True\n", "", 0)


@pytest.mark.parametrize("method", sampled(["fork", "spawn"], 2))
def test_the_trainer_is_killed_while_workers_are_busy(marker: str, method: str) -> None:
    body = f"""
loader = build(lengths=(9, 9), rank_work=True, method="{method}", make=lambda s, e, p: (s, e, p),
               mishap=Mishap(1, 2, "hang"))
next(iter(loader))
holder = os.fork()
if holder == 0:  # a child of the trainer that holds copies of its descriptors for a while
    time.sleep(1000)
    os._exit(0)
say(holder)
for batch in loader:
    pass
"""
    process = start(marker, script(marker, body))
    assert process.stdout is not None
    holder = int(process.stdout.readline())
    assert wait_until(lambda: len(alive(marker)) == 5, 60)  # the trainer, its child, the decode process, two workers
    os.kill(process.pid, signal.SIGKILL)
    wait_until_nothing_is_left(marker, holder)
    os.kill(holder, signal.SIGKILL)
    process.communicate(timeout=60)


def test_the_decode_process_is_killed(marker: str) -> None:
    body = (
        ENDLESS
        + """
import signal
next(iter(loader))
os.kill(loader._prefetcher.process.pid, signal.SIGKILL)
try:
    for batch in loader:
        pass
except Exception as error:
    say(type(error).__name__, "killed by SIGKILL" in str(error))
"""
    )
    process = start(marker, script(marker, body))
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("WorkerDiedError True\n", "", 0)
    wait_until_nothing_is_left(marker)


def test_a_program_that_ends_in_the_middle(marker: str) -> None:
    body = ENDLESS + "for batch in loader:\n    break\nsay('half way')\n1 / 0"
    process = start(marker, script(marker, body))
    out, err = process.communicate(timeout=60)
    assert out == "half way\n"
    assert process.returncode == 1
    assert err.count("Traceback") == 1


AWKWARD = """
import gc, multiprocessing, warnings
from energon_dali.loader.decode_process import process
from energon_dali.loader.processes import launch

process._FINAL_STATS_SECONDS = launch._GRACE_SECONDS = 60.0  # a killed worker prints nothing: let none be too slow

def make(stream, epoch, place):
    helper = HELPERS.get("pool") or HELPERS.setdefault("pool", multiprocessing.get_context("fork").Pool(1))
    print("hook", place)
    return stream, epoch, helper.apply(abs, (-place,))

HELPERS = {}
sys.stdout = open(1, "w", closefd=False)  # buffered, whatever PYTHONUNBUFFERED says
warnings.simplefilter("ignore", DeprecationWarning)  # about os.fork with threads, since Python 3.12
print("trainer begins")
loader = build(lengths=(10**9, 10**9), method="fork", make=make, block_size=1)
next(iter(loader))
polled = loader._prefetcher.process._wake.fileno()
for how in ("take", "close", "collect"):
    child = os.fork()
    if child == 0:
        sys.stdout = open(os.devnull, "w")
        if how == "take":
            try:
                next(iter(loader))
            except Exception as error:
                os._exit("forked copy" not in str(error))
        loader.close()
        del loader
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, how
try:
    os.eventfd_read(polled)
except BlockingIOError:  # nobody woke the trainer's wait
    print("not woken")
assert next(iter(loader))[:2] == (1, 0)
loader.close()
"""


def test_hooks_print_and_have_processes_and_forked_copies_of_the_trainer_leave_it_alone(marker: str) -> None:
    process = start(marker, script(marker, AWKWARD))
    out, err = process.communicate(timeout=60)
    assert (err, process.returncode) == ("", 0)
    lines = out.splitlines()
    assert lines.count("trainer begins") == lines.count("not woken") == 1
    assert lines.count("hook 0") == 2  # one per worker
    wait_until_nothing_is_left(marker)  # not even the hook's pool
