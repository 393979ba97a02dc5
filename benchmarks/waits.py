"""Nine loaders that wait for something known: what `bench`, the panel and `num_workers="auto"` should find out."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import mmap
import os
import struct
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from energon_dali import DefaultTaskEncoder, Resize, SampleDecoder, WorkerConfig, get_train_dataset
from energon_dali.datasets.base import SavableDataset, walk
from energon_dali.datasets.source import SourceDataset
from energon_dali.shards import prepare_dataset

STREAMS = 8
"""For 1, 2, 4 or 8 workers."""
_SMALL, _LARGE = (64, 48), (1600, 1200)

Act = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A loader, and what limits it."""

    name: str
    """What is slow."""
    causes: tuple[str, ...]
    """The causes of a right diagnosis, by `energon_dali.loader.advice`."""
    hook: Callable[[float], Act] | None = None
    """Makes what `encode_sample` does, from a time in seconds; None for no encoder of one's own."""
    reading: Callable[[float], Callable[[int], None]] | None = None
    """Makes what reading some bytes does in addition."""
    large_images: bool = False
    """Whether decoding takes long."""
    step_seconds: float = 0.0
    """What a training step takes; 0 takes batches at once."""
    short_memory: bool = False
    """Whether the machine has hardly any memory left."""


def sleep(seconds: float) -> Act:
    """Returns a hook that waits, such as for a server."""
    return lambda: time.sleep(seconds)


def compute(seconds: float) -> Act:
    """Returns a hook that uses the processor."""

    def work() -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            sum(range(1000))

    return work


def hold_lock(seconds: float) -> Act:
    """Returns a hook that calls into C without releasing the interpreter lock, and waits there."""
    microseconds = int(seconds * 1e6)
    return lambda: ctypes.PyDLL(None).usleep(microseconds) and None


def sleep_in_one(seconds: float) -> Act:
    """Returns a hook that waits in the first process that calls it."""
    chosen = mmap.mmap(-1, 8)  # shared by forked workers

    def work() -> None:
        if chosen[:] == bytes(8):
            chosen[:] = struct.pack("q", os.getpid())
        if struct.unpack("q", chosen[:])[0] == os.getpid():
            time.sleep(seconds)

    return work


def latency(seconds: float) -> Callable[[int], None]:
    """Returns a delay of each sample, however large, which other processes do not notice."""
    return lambda _: time.sleep(seconds)


def bandwidth(seconds: float) -> Callable[[int], None]:
    """Returns a delay that processes take turns in: the storage has no more for all of them together."""
    lock, free = get_context("fork").Lock(), mmap.mmap(-1, 8)

    def read(size: int) -> None:
        with lock:
            start = max(time.monotonic(), struct.unpack("d", free[:])[0])
            free[:] = struct.pack("d", start + seconds)
        time.sleep(max(0.0, start + seconds - time.monotonic()))

    return read


SCENARIOS = (
    Scenario("slow storage, by latency", ("storage",), reading=latency),
    Scenario("slow storage, by bandwidth", ("storage",), reading=bandwidth),
    Scenario("slow decode", ("decoding",), large_images=True),
    Scenario("a hook that sleeps", ("sleeping hook",), hook=sleep),
    Scenario("a hook that computes", ("computing hook",), hook=compute),
    Scenario("a hook that holds the interpreter lock", ("sleeping hook",), hook=hold_lock),
    Scenario("one slow worker", ("slow worker",), hook=sleep_in_one),
    Scenario("a slow trainer", ("trainer",), step_seconds=0.1),
    Scenario("too little memory", ("memory",), short_memory=True),
)


def by_name(name: str) -> Scenario:
    """Returns the scenario of a name."""
    return next(one for one in SCENARIOS if one.name == name)


class Reader:
    """A reader that takes longer.

    Args:
        reader: What reads.
        wait: Called with the size of each sample.
    """

    is_remote = False

    def __init__(self, reader: Any, wait: Callable[[int], None]) -> None:
        self._reader, self._wait = reader, wait

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._reader, name)

    def read(self, shards: Sequence[int], samples: Sequence[int]) -> Any:
        """Reads samples, and waits for each."""
        found = self._reader.read(shards, samples)
        for raw in found:
            self._wait(sum(map(len, getattr(raw, "parts", {}).values())))
        return found

    def planned_reads(self, window: int, lanes: int) -> None:
        """Reads nothing ahead."""
        return

    def note_speed(self, seconds: float, num_samples: int, size: int) -> None:
        """Does not adapt."""


class HookedEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Does something for each sample.

    Args:
        act: What.
    """

    decoder = SampleDecoder(image_decode="torchrgb8", operations=[Resize((32, 32))])

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.act = act

    def encode_sample(self, sample: Any) -> Any:
        self.act()
        return sample


def write_images(folder: Path, *, large: bool, samples: int = 64) -> Path:
    """Writes and prepares a dataset of JPEGs; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(1)
    width, height = _LARGE if large else _SMALL
    blocks = generator.integers(0, 255, (height // 16, width // 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(blocks).resize((width, height)).save(file, "jpeg", quality=92)
    for shard in range(2):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
            for number in range(samples // 2):
                entry = tarfile.TarInfo(f"{shard}{number:04d}.jpg")
                entry.size = len(file.getvalue())
                tar.addfile(entry, io.BytesIO(file.getvalue()))
    prepare_dataset(str(folder), split_patterns=[("train", ".*")])
    sample = {"__module__": "megatron.energon", "__class__": "ImageSample"}
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        json.dumps({"sample_type": sample, "field_map": {"image": "jpg"}})
    )
    return folder


def open_scenario(
    scenario: Scenario, folder: Path, num_workers: Any, *, seconds: float = 0.01, batch_size: int = 4
) -> SavableDataset[Any]:
    """Opens the dataset of a scenario.

    Args:
        scenario: Which.
        folder: What `write_images` wrote.
        num_workers: As in WorkerConfig.
        seconds: How long the slow part takes for a sample.
        batch_size: Samples per batch.
    """
    encoder: Any = DefaultTaskEncoder()
    encoder.decoder = HookedEncoder.decoder
    if scenario.hook is not None:
        encoder = HookedEncoder(scenario.hook(seconds))
    dataset = get_train_dataset(
        str(folder),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=STREAMS),
        batch_size=batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=encoder,
    )
    if scenario.reading is not None:
        wait = scenario.reading(seconds)
        for one in walk(dataset):
            if isinstance(one, SourceDataset):
                slow = (replace(source, reader=Reader(source.reader, wait)) for source in one.sources)
                one.sources = tuple(slow)
    return dataset


@contextlib.contextmanager
def memory_of(scenario: Scenario, folder: Path) -> Iterator[None]:
    """Lets the machine seem to have hardly any memory left, if the scenario says so."""
    try:
        from energon_dali.loader import host_memory
    except ImportError:  # an earlier commit, which does not look
        yield
        return
    before = host_memory._MEMINFO
    if scenario.short_memory:
        host_memory._MEMINFO = folder / "meminfo"
        host_memory._MEMINFO.write_text("MemTotal: 67108864 kB\nMemAvailable: 524288 kB\n")
    try:
        yield
    finally:
        host_memory._MEMINFO = before


def train(batches: Iterator[Any], step_seconds: float, seconds: float) -> None:
    """Takes batches for a time, with a training step after each that needs no core."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < end:
        next(batches)
        pause.wait(step_seconds)
