"""Many epochs over a dataset with bad files: every good sample arrives, every bad one is named, nothing crashes."""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from tests.loader.dataset_folder import captioning_sample, picture, prepare, write_shards
from tests.part import sampled
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

COUNT = 500
EPOCHS = 20
BATCH = 64


def header_of(width: int, height: int) -> bytes:
    """Returns a JPEG whose frame header claims another size."""
    data = bytearray(picture(1))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


def flipped_header() -> bytes:
    data = bytearray(picture(2))
    for place in range(2, 24):
        data[place] ^= 0xFF
    return bytes(data)


BAD = (20, 21, 150, 151, 152)
"""1 % of the samples, several of them in one batch."""


def bad_files() -> list[bytes]:
    return [
        picture(5)[:700],  # cut within its pixels
        b"not an image, whatever its name says",  # at the front of a batch, where DALI would crash
        b"",
        flipped_header(),
        header_of(65_500, 65_500),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{n:04d}": captioning_sample(n) for n in range(COUNT)}
    for number, content in zip(BAD, bad_files(), strict=True):
        samples[f"k{number:04d}"] = {"jpg": content, "txt": b"bad", "json": b"{}"}
    return prepare(write_shards(tmp_path_factory.mktemp("bad"), samples))


class Pil(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="torchrgb8")


class Dali(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")


def resident_bytes() -> int:
    """Returns the memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("encoder", "num_workers"), sampled([(Dali, 0), (Dali, 2), (Pil, 0), (Pil, 2)], 3))
def test_many_epochs_with_bad_files(folder: Path, encoder: type[Any], num_workers: int) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=2, global_error_handler=quiet)
    dataset = get_train_dataset(
        folder,
        batch_size=BATCH,
        worker_config=config,
        task_encoder=encoder(),
        shuffle_buffer_size=200,
        max_samples_per_sequence=50,
    )
    loader = get_savable_loader(dataset)
    good = {f"k{n:04d}" for n in range(COUNT) if n not in BAD}
    seen: Counter[str] = Counter()
    memory = []
    for number, batch in enumerate(islice(iter(loader), EPOCHS * COUNT // BATCH)):
        seen.update(batch.__key__)
        if number % 10 == 0:
            memory.append(resident_bytes())
    stats = loader.stats()
    loader.close()
    assert set(seen) == good
    # Whole batches were taken, so the last epoch of a stream may lack at most what was not delivered.
    assert min(seen.values()) >= EPOCHS - 2
    assert max(seen.values()) <= EPOCHS + 1
    failures = stats["failures"]
    assert {failure["key"] for failure in failures} == {f"k{n:04d}" for n in BAD}
    assert all(failure["reason"] and failure["shard"].endswith(".tar") for failure in failures)
    per_bad = Counter(failure["key"] for failure in failures)
    assert min(per_bad.values()) >= EPOCHS - 2, "a bad file was not counted in some epoch"
    # Flat: the second half of the run uses no more than the first, except for the allocator's slack.
    half = len(memory) // 2
    assert max(memory[half:]) < max(memory[:half]) + 64 * 2**20


@pytest.mark.parametrize("encoder", [Pil, Dali])
def test_every_good_sample_comes_once_in_validation(folder: Path, encoder: type[Any]) -> None:
    from energon_dali import get_val_dataset

    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1, global_error_handler=quiet)
    loader = get_savable_loader(get_val_dataset(folder, batch_size=BATCH, worker_config=config, task_encoder=encoder()))
    keys = [key for batch in loader for key in batch.__key__]
    assert keys == [f"k{n:04d}" for n in range(COUNT) if n not in BAD]
