from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.data.photographs import PHOTOGRAPHS, cut, encode_to_size
from benchmarks.data.recipe import FACTS, Recipe, make_dataset

MIXED = Recipe(name="mixed", samples=24, shards=3, seed=3)


def members(folder: Path) -> dict[str, bytes]:
    found = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    return found


def test_every_photograph_is_inside_its_package() -> None:
    from importlib.resources import files

    for photograph in PHOTOGRAPHS:
        assert files(photograph.package).joinpath(photograph.path).is_file()


def test_a_recipe_gives_the_same_files_again(tmp_path: Path) -> None:
    first = make_dataset(MIXED, tmp_path / "a", progress=False, processes=1)
    second = make_dataset(MIXED, tmp_path / "b", progress=False, processes=1)
    assert members(first) == members(second)
    assert len(list(first.glob("*.tar"))) == 3


def test_facts_are_those_of_the_files_and_sizes_are_as_promised(tmp_path: Path) -> None:
    folder = make_dataset(MIXED, tmp_path, progress=False, processes=1)
    facts = json.loads((folder / FACTS).read_text())
    assert len(facts) == MIXED.samples
    for name, data in members(folder).items():
        key, _, suffix = name.partition(".")
        if suffix in ("jpg", "png", "webp"):
            assert 20_000 <= len(data) <= 300_000
            pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            assert [*pixels.shape[:2], int(pixels.sum(dtype=np.int64))] == facts[key]


def test_a_finished_dataset_is_not_made_again(tmp_path: Path) -> None:
    folder = make_dataset(MIXED, tmp_path, progress=False, processes=1)
    (folder / "mark").touch()
    assert make_dataset(MIXED, tmp_path, progress=False, processes=1) == folder
    assert (folder / "mark").exists()
    other = Recipe(name="mixed", samples=4, shards=1)
    make_dataset(other, tmp_path, progress=False, processes=1)
    assert not (folder / "mark").exists()
    assert len(json.loads((folder / FACTS).read_text())) == 4


@pytest.mark.parametrize("target_bytes", [30_000, 60_000])
def test_quality_brings_a_picture_near_to_its_size(target_bytes: int) -> None:
    crop = cut(np.random.default_rng(5), width=500, height=400)
    assert len(encode_to_size(crop.image, target_bytes)) == pytest.approx(target_bytes, rel=0.2)
