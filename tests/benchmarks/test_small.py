from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.candidates import small_energon_style
from benchmarks.candidates.small_rows import Checker, collated, decoded, measure_smalls, samples_of
from benchmarks.candidates.stream import WrongOutputError
from benchmarks.candidates.task import Task
from benchmarks.data.recipe import Recipe, make_dataset
from benchmarks.data.smalls import PARTS, SAMPLE_BYTES, key_of, record_of, text_of


def task(folder: Path, style: str, **options: object) -> Task:
    return Task(
        program="small_energon_style",
        action="both",
        dataset=str(folder),
        output=style,
        batch_size=4,
        warmup_samples=4,
        samples=8,
        options={"library": "energon_dali", "workers": 0, "window": 10, **options},
    )


def test_small_samples_have_their_size() -> None:
    for number in (0, 7, 123_456):
        assert len(json.dumps(record_of(number))) == SAMPLE_BYTES
        assert len(text_of(number)) == SAMPLE_BYTES
    assert record_of(1) != record_of(2)


@pytest.mark.parametrize("style", list(PARTS))
def test_our_loader_delivers_what_the_files_hold(tmp_path: Path, style: str) -> None:
    folder = make_dataset(Recipe(name="s", style=style, samples=40, shards=2), tmp_path, progress=False, processes=1)
    numbers = measure_smalls(small_energon_style.open_batches, task(folder, style))
    assert numbers["samples_checked"] == 32 * 4
    assert numbers["samples"] >= 8
    rows = [(key, decoded(PARTS[style], content)) for key, content in samples_of(task(folder, style))]
    assert [key for key, _ in rows] == [key_of(number) for number in range(40)]
    assert Checker(task(folder, style))(collated(rows)) == 40


def test_a_wrong_sample_is_noticed(tmp_path: Path) -> None:
    check = Checker(task(tmp_path, "small-text"))
    assert check(([key_of(3)], [text_of(3)])) == 1
    with pytest.raises(WrongOutputError, match="0000003 holds"):
        check(([key_of(3)], [text_of(4)]))
    with pytest.raises(WrongOutputError, match="1 keys were delivered for 0"):
        check(([key_of(3)], []))
    (tmp_path / "facts.json").write_text("[6]")
    images = Checker(task(tmp_path, "small-png"))
    with pytest.raises(WrongOutputError, match="holds"):
        images(([key_of(0)], torch.zeros(1, 3, 32, 32, dtype=torch.uint8)))
    with pytest.raises(WrongOutputError, match=r"is torch.float32\(3, 32, 32\)"):
        images(([key_of(0)], torch.zeros(1, 3, 32, 32)))
