from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from benchmarks.data.photographs import PHOTOGRAPHS, Photograph, cut, encode_to_size, find_photograph
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
    for photograph in PHOTOGRAPHS:
        assert find_photograph(photograph).is_file()


def test_a_photograph_of_no_package_says_what_to_install() -> None:
    with pytest.raises(FileNotFoundError, match="pip install --no-deps is enough"):
        find_photograph(Photograph("no_such_package", "x.png", "nothing"))


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


@pytest.mark.parametrize(
    ("style", "size", "suffixes"),
    [
        ("formats", (80, 60), {"jpg", "png", "webp", "bmp", "tif"}),
        ("photo", (160, 90), {"jpg"}),
        ("page", (450, 280), {"png"}),
    ],
)
def test_every_style_makes_what_it_says(tmp_path: Path, style: str, size: tuple[int, int], suffixes: set[str]) -> None:
    recipe = Recipe(name=style, samples=56, shards=1, style=style, width=size[0], height=size[1], distinct=48)
    folder = make_dataset(recipe, tmp_path, progress=False, processes=1)
    facts = json.loads((folder / FACTS).read_text())
    assert len(facts) == 56
    assert facts["000000"] == facts["000048"] != facts["000001"]  # 48 pictures, which come again
    found = {name.partition(".")[2] for name in members(folder)} - {"txt", "json"}
    assert found == suffixes
    limits = (0.84, 1.16) if style == "formats" else (1, 1)
    for height, width, _ in facts.values():
        assert int(limits[0] * size[1]) <= height <= limits[1] * size[1]
        assert int(limits[0] * size[0]) <= width <= limits[1] * size[0]


@pytest.mark.parametrize(("codec", "suffix"), [("h264", "mp4"), ("vp9", "webm")])
def test_a_long_video_is_a_short_one_several_times(tmp_path: Path, codec: str, suffix: str) -> None:
    recipe = Recipe(
        name=codec, samples=1, shards=1, style="video", seconds=3, rounds=3, width=96, height=64, codec=codec
    )
    folder = make_dataset(recipe, tmp_path, progress=False, processes=1)
    assert json.loads((folder / FACTS).read_text()) == {"000000": [64, 96, 90]}
    with av.open(io.BytesIO(members(folder)[f"000000.{suffix}"])) as video:
        frames = list(video.decode(video=0))
    assert len(frames) == 90
    times = [frame.time for frame in frames]
    assert times == pytest.approx([number / 30 for number in range(90)], abs=0.002)
    for number in range(30):
        pixels = [frames[number + shift].to_ndarray(format="rgb24") for shift in (0, 30, 60)]
        assert (pixels[0] == pixels[1]).all()
        assert (pixels[0] == pixels[2]).all()


def test_an_unknown_style_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of mixed, jpeg"):
        make_dataset(Recipe(name="x", samples=1, style="oil"), tmp_path, progress=False, processes=1)
