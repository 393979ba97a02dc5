"""A sample of each fault campaign; `make test-faults` runs all of them."""

from __future__ import annotations

import ast
import os
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.faults import leftovers
from tests.faults.campaigns import CAMPAIGNS
from tests.part import Part

ROOT = Path(__file__).parents[2]


QUICK = ("mutated tars", "mutated images", "failing", "killed while preparing", "killed while training", "full disks")
"""Words of the names of campaigns, one or more of each kind of fault, whose samples take few seconds."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("only", [QUICK, pytest.param(("",), marks=pytest.mark.sweep)], ids=["quick", "each"])
def test_a_sample_of_campaigns_loses_nothing(only: tuple[str, ...], warm_python: str) -> None:
    """In its own process, because it forks, which a process with threads should not do."""
    done = subprocess.run(
        [warm_python, "-m", "tests.faults", "--share", "0.004", "--jobs", "1", "--only", *only],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "Nothing was lost, nothing was left behind." in done.stdout
    for campaign in CAMPAIGNS:
        is_run = campaign.is_sampled and any(word in campaign.name for word in only)
        assert (f"\n{campaign.name} " in done.stdout) == is_run


def test_a_campaign_counts_what_is_lost_hangs_and_dies(tmp_path: Path, warm_python: str) -> None:
    program = f"""
import mmap, os, sys, threading, time
from pathlib import Path
from tests.faults.campaign import Campaign, Lost, Outcome, run

def prepare(folder):
    def case(number, scratch):
        if number == 1: raise Lost("a sample")
        if number == 2: os.kill(os.getpid(), 11)
        if number == 3: time.sleep(60)
        if number == 4: raise KeyError("raw")
        if number == 5: os.fork() or (time.sleep(600), os._exit(0))
        if number == 6: os.open("/dev/null", 0)
        if number == 7: (folder / "a.tmp").touch()
        if number == 8: threading.Thread(target=time.sleep, args=(600,), name="forgotten", daemon=True).start()
        if number == 9:
            file = os.memfd_create("forgotten")
            os.ftruncate(file, 4096)
            kept.append(mmap.mmap(file, 4096))
            os.close(file)
        return Outcome()
    kept = []
    return case

campaign = Campaign("all kinds", 10, prepare, timeout_seconds=1, patience_seconds=0.2)
tally = run(campaign, Path({str(tmp_path)!r}) / "work", jobs=1)
print(tally.tried, tally.survived, len(tally.lost), len(tally.left_behind), tally.is_clean)
print(*tally.lost, *tally.left_behind, sep="\\n")
"""
    done = subprocess.run([warm_python, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    first, _, rest = done.stdout.partition("\n")
    assert first == "10 6 4 6 False", done.stdout + done.stderr
    for text in (
        "case 1: a sample",
        "case 2 ended the process with -11",
        "case 3 hung",
        "KeyError: 'raw'",
        "processes",
        "1 x descriptor of a file",
        "1 x thread forgotten",
        "1 x shared memory /memfd:forgotten",
        "a.tmp was left behind",
    ):
        assert text in rest


def test_what_ends_late_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers.buckets, "_buckets", {})  # those of other tests of this process
    ending = threading.Event()
    thread = threading.Thread(target=ending.wait, name="late")
    before = leftovers.held()
    thread.start()
    look, looks = leftovers.held, 0

    def look_again() -> Counter[str]:
        nonlocal looks
        looks += 1
        if looks == 4:
            ending.set()
            thread.join()
        return look()

    monkeypatch.setattr(leftovers, "held", look_again)
    assert leftovers.left_since(before, patience_seconds=0.0) == {"thread late": 1}
    assert leftovers.left_since(before) == {}
    assert looks == 4


def test_only_the_connections_that_a_client_keeps_are_not_left_behind(tmp_path: Path, warm_python: str) -> None:
    program = f"""
import os, socket
from pathlib import Path
from threading import Barrier, Thread
from benchmarks.remote.s3_server import S3Server
from energon_dali.shards.storage.objects import ObjectReader
from tests.faults.leftovers import held, left_since

folder = Path({str(tmp_path)!r})
(folder / "data").mkdir()
(folder / "data" / "object").write_bytes(b"content")

def read(reader, start):
    start.wait()
    reader.read_at(0, 7)

with S3Server(folder, latency_seconds=0.2) as server:
    os.environ.update(server.environment())
    reader = ObjectReader("s3://data/object")
    before = held()
    start = Barrier(6)
    threads = [Thread(target=read, args=(reader, start)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(dict(held() - before))
    print(dict(left_since(before)))
    reader.read_at(0, 7)
    before = held()
    open_connections = [socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))]
    print(dict(left_since(before, patience_seconds=3.0)))
    open_connections += socket.socketpair()
    print(dict(left_since(before, patience_seconds=3.0)))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MSC_"))}
    done = subprocess.run(
        [warm_python, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    kept, *left = map(ast.literal_eval, done.stdout.splitlines())
    assert kept["connection to an object store"] >= 1
    assert left == [
        {},
        {"connection to an object store": 1},
        {"connection to an object store": 1, "descriptor of socket:[]": 2},
    ], "connections of others count, also where a client had as many before"


def test_parts_are_the_whole() -> None:
    cases = range(3, 30)
    parts = [Part.parse(f"{number}/4").of(cases) for number in range(1, 5)]
    assert sorted(case for part in parts for case in part) == list(cases)
    assert parts[1] == range(4, 30, 4)
    for wrong in ("0/4", "5/4", "1", "a/b", "-1/4"):
        with pytest.raises(ValueError, match=r"is not a part\. Give one such as 2/4"):
            Part.parse(wrong)
