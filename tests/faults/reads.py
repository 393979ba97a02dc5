"""Disks that fail for a moment, and short reads: every sample arrives nevertheless."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from energon_dali import (
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.shards.storage import retry
from tests.faults.campaign import Campaign, Case, Lost, Outcome
from tests.loader.dataset_folder import captioning_dataset
from tests.quiet import quiet

TRANSIENT = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)
BATCHES = 20

Pread = Callable[[int, int, int], bytes]


CALM_READS = 12
"""Number of reads that succeed after a fault, so that no request of several reads uses up its five attempts."""


class UnluckyDisk:
    """Replaces `os.pread`: sometimes it raises once or twice, or reads short, or a descriptor stays stale."""

    def __init__(self, random: Random, pread: Pread) -> None:
        self.random = random
        self.pread = pread
        self.stale: set[int] = set()
        self.calm = 0
        self.again = False
        self.faults = 0

    def __call__(self, fd: int, size: int, offset: int) -> bytes:
        if fd in self.stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if self.calm and not self.again:
            self.calm -= 1
            return self.pread(fd, size, offset)
        chance = self.random.random()
        if self.again or chance < 0.25:
            self.again = not self.again and chance < 0.1
            self.calm = CALM_READS
            self.faults += 1
            number = self.random.choice(TRANSIENT)
            if number == errno.ESTALE and self.random.random() < 0.3:
                self.stale.add(fd)
            raise OSError(number, os.strerror(number))
        if chance < 0.5 and size > 1:
            self.faults += 1
            return self.pread(fd, self.random.randrange(1, size), offset)
        return self.pread(fd, size, offset)

    def opened(self, fd: int) -> int:
        """Records that a descriptor belongs to a new file."""
        self.stale.discard(fd)
        return fd


class Pil(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Images by PIL."""

    decoder = SampleDecoder(image_decode="torchrgb8")


class Dali(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Images by DALI."""

    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")


def batches(folder: Path, encoder: type[Any], seed: int) -> list[Any]:
    """Returns the keys and the sums of the pixels of some batches."""
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=0, num_streams=2, seed_offset=seed, global_error_handler=quiet
    )
    dataset = get_train_dataset(
        folder,
        batch_size=4,
        worker_config=config,
        task_encoder=encoder(),
        shuffle_buffer_size=10,
        max_samples_per_sequence=5,
    )
    with get_savable_loader(dataset) as loader:
        return [(batch.__key__, [int(image.sum()) for image in batch.image]) for batch in islice(loader, BATCHES)]


def prepare(folder: Path) -> Case:
    """Creates a dataset with each kind of index; the case reads it from an unlucky disk."""
    logging.disable(logging.ERROR)
    retry.FIRST_PAUSE_SECONDS = 0.0
    captioning_dataset(folder / "extents")
    captioning_dataset(folder / "sqlite")
    (folder / "sqlite" / ".nv-meta" / "extents.bin").unlink()
    captioning_dataset(folder / "tar")
    for name in ("extents.bin", "index.sqlite"):
        (folder / "tar" / ".nv-meta" / name).unlink()

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        source = folder / ("extents", "sqlite", "tar")[number % 3]
        encoder = (Pil, Dali)[number % 2]
        expected = batches(source, encoder, number)
        disk = UnluckyDisk(random, os.pread)
        opens = os.open
        with (
            mock.patch.object(os, "pread", disk),
            mock.patch.object(os, "open", lambda *args, **kwargs: disk.opened(opens(*args, **kwargs))),
        ):
            found = batches(source, encoder, number)
        if found != expected:
            same = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), 0)
            raise Lost(f"{source.name}, {encoder.__name__}: batch {same} is {found[same : same + 1]}")
        return Outcome(tried=disk.faults, survived=disk.faults)

    return case


READS = Campaign("failing and short reads", 120, prepare, cases_per_child=30, warm_cases=6)
