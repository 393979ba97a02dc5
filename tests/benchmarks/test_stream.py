from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.candidates.files import read_media
from benchmarks.candidates.outputs import CROP_PIXELS, MEAN, STD, crop_ranges
from benchmarks.candidates.spinner import spin_next_to
from benchmarks.candidates.stream import Delivered, WrongOutputError, measure_stream
from benchmarks.candidates.task import Task
from benchmarks.candidates.torch_loader import random_box
from benchmarks.data.recipe import Recipe, make_dataset

HEIGHT, WIDTH = 5, 7


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    facts = {f"k{number}": [HEIGHT, WIDTH, HEIGHT * WIDTH * 3 * number] for number in range(4)}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    return tmp_path


def task(dataset: Path, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "program": "test",
        "action": "check",
        "dataset": str(dataset),
        "output": "uint8",
        "batch_size": 4,
        "warmup_samples": 4,
        "samples": 8,
    }
    return Task(**{**fields, **changes})


def stream(change: Any = lambda image, number: image) -> Any:
    def open_stream(_: Task, with_keys: bool) -> Iterator[Delivered]:
        while True:
            images = [change(torch.full((3, HEIGHT, WIDTH), n, dtype=torch.uint8), n) for n in range(4)]
            yield Delivered(images, [f"k{n}" for n in range(4)] if with_keys else None)

    return open_stream


def test_right_pictures_pass(dataset: Path) -> None:
    assert measure_stream(stream(), task(dataset))["samples_checked"] >= 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda image, n: image + (n == 3), "the pixels of k3 sum to"),
        (lambda image, n: image.float(), r"k0 is torch.float32 \(3, 5, 7\), not a tensor of torch.uint8"),
        (lambda image, n: image.permute(1, 2, 0), r"k0 is torch.uint8 \(5, 7, 3\)"),
        (lambda image, n: image.numpy(), "k0 is ndarray, not a tensor"),
    ],
    ids=["pixels", "dtype", "layout", "container"],
)
def test_wrong_pictures_are_refused(dataset: Path, change: Any, message: str) -> None:
    with pytest.raises(WrongOutputError, match=message):
        measure_stream(stream(change), task(dataset))


def test_an_unknown_key_is_refused(dataset: Path) -> None:
    def open_stream(_: Task, with_keys: bool) -> Iterator[Delivered]:
        yield Delivered([torch.zeros(3, HEIGHT, WIDTH, dtype=torch.uint8)], ["other"])

    with pytest.raises(WrongOutputError, match="no sample of the dataset has the key 'other'"):
        measure_stream(open_stream, task(dataset))


def test_pictures_that_are_not_normalised_are_refused(dataset: Path) -> None:
    def open_stream(_: Task, with_keys: bool) -> Iterator[Delivered]:
        yield Delivered(torch.full((1, 3, 224, 224), 200.0), ["k0"])

    with pytest.raises(WrongOutputError, match="k0 is not a normalised image"):
        measure_stream(open_stream, task(dataset, output="float224"))


def test_timing_counts_samples_after_the_first_batch(dataset: Path) -> None:
    numbers = measure_stream(stream(), task(dataset, action="time"))
    assert numbers["samples_per_second"] > 0
    assert numbers["first_batch_seconds"] >= 0
    assert "trainer_turns_per_second" not in numbers


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_busy_trainer_turns_and_leaves_nothing_behind(dataset: Path, kind: str) -> None:
    before = set(threading.enumerate())
    with spin_next_to(kind) as turns:
        first = turns()
        while turns() < first + 3:
            pass
    assert set(threading.enumerate()) <= before
    numbers = measure_stream(stream(), task(dataset, action="time", options={"trainer": kind}))
    assert numbers["trainer_turns_per_second"] >= 0


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    return make_dataset(
        Recipe(name="photos", samples=4, shards=1, style="photo", width=320, height=240),
        tmp_path,
        progress=False,
        processes=1,
    )


def decoded(photographs: Path) -> dict[str, np.ndarray[Any, Any]]:
    files = read_media(task(photographs))
    return {key: np.array(Image.open(io.BytesIO(data)).convert("RGB")) for key, data in files}


@pytest.mark.parametrize(("wrong", "right"), [(2, True), (5, False)], ids=["near", "far"])
def test_pixels_within_a_declared_tolerance_pass(photographs: Path, wrong: int, right: bool) -> None:
    def open_stream(_: Task, with_keys: bool) -> Iterator[Delivered]:
        while True:
            for key, pixels in decoded(photographs).items():
                # As many values are too high as are too low, so that their sum is right.
                sign = np.resize(np.array([1, -1], np.int16), pixels.shape)
                noisy = np.clip(pixels.astype(np.int16), wrong, 255 - wrong) + wrong * sign
                yield Delivered([torch.from_numpy(noisy.astype(np.uint8)).permute(2, 0, 1)], [key])

    told = task(photographs, options={"levels": 3.0})
    if right:
        assert measure_stream(open_stream, told)["samples_checked"] >= 128
    else:
        with pytest.raises(WrongOutputError, match="differ from PIL's by"):
            measure_stream(open_stream, told)


@pytest.mark.parametrize("channels", [[0, 1, 2], [2, 1, 0]], ids=["rgb", "bgr"])
def test_crops_are_compared_with_pil(photographs: Path, channels: list[int]) -> None:
    told = task(photographs, output="float224")
    area, ratio = crop_ranges(told)
    rng = np.random.default_rng(0)

    def open_stream(_: Task, with_keys: bool) -> Iterator[Delivered]:
        while True:
            for key, pixels in decoded(photographs).items():
                image = Image.fromarray(pixels)
                box = random_box(rng, *image.size, area, ratio)
                crop = image.resize((CROP_PIXELS, CROP_PIXELS), Image.Resampling.BILINEAR, box=box)
                values = torch.from_numpy(np.array(crop)).permute(2, 0, 1)[channels].float() / 255
                values = (values - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
                yield Delivered(values.flip(2)[None] if rng.random() < 0.5 else values[None], [key])

    if channels == [0, 1, 2]:
        assert measure_stream(open_stream, told)["samples_checked"] >= 128
    else:
        with pytest.raises(WrongOutputError, match="differ from PIL's by"):
            measure_stream(open_stream, told)
