"""The engines of a process: which of them rest, and its end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from energon_dali.decode.dali.runtime import engine as table
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.pipeline import PipelineOptions

PROGRAM = """
import atexit, itertools, threading, time
import nvidia.dali
atexit.register(time.sleep, 1)  # after ours and before DALI's, which are registered after and before it
from energon_dali import DaliDecoder, Resize
from tests.decode.sample_images import sample_images

data, ready = sample_images()["jpeg-420"], threading.Event()

def decode_ahead():
    for side in itertools.count(8):  # a pipeline of its own for each
        decoder = DaliDecoder(image_decode_device="cpu", operations=[Resize((side, side))], max_batch_size=1)
        decoder.decode_block([decoder.stage("jpg", data)])
        if side > 9:
            ready.set()

threading.Thread(target=decode_ahead, daemon=True).start()
assert ready.wait(100)
"""


def test_a_thread_that_decodes_ahead_makes_no_pipeline_at_exit() -> None:
    """DALI's exit handler asserts that there is no pipeline left, and C++ ends the process for one that runs."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "atexit" not in done.stderr
    assert "terminate" not in done.stderr


class RestingEngine:
    """Notes that it was asked to rest."""

    awake = is_closed = False
    rested: list[str]

    def __init__(self, graph: str, options: PipelineOptions, memory: Any) -> None:
        self.graph = graph

    def rest(self) -> None:
        self.rested.append(self.graph)


def test_the_engines_that_were_used_last_stay_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_MOST_AWAKE", 2)
    monkeypatch.setattr(table, "_engines", {})
    monkeypatch.setattr(table, "_memories", {})
    monkeypatch.setattr(RestingEngine, "rested", [], raising=False)
    make: Any = RestingEngine
    for graph in ("first", "second", "first", "third"):
        table.engine_for(make, graph, PipelineOptions(device=Device("cpu"), num_threads=1, max_batch_size=1))
    assert RestingEngine.rested == ["second"]
