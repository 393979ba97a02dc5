from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from energon_dali.kernels.color_quantize import Palette
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.tasks.vision.igpt import learn_palette, quantize, stored_palette, to_images
from energon_dali.tasks.vision.igpt.cifar_shards import SplitRecipe, prepare_cifar
from energon_dali.tasks.vision.igpt.model import _to_sequence
from energon_dali.tasks.vision.igpt.palette import training_pixels


def clouds(seed: int, count: int = 600) -> np.ndarray:
    """Returns uint8[count, 3] around six colours."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(20, 236, (6, 3))
    return (centres[rng.integers(6, size=count)] + rng.normal(0, 6, (count, 3))).clip(0, 255).astype(np.uint8)


def error(pixels: np.ndarray, palette: Palette) -> float:
    """Returns the mean squared distance to the nearest colour."""
    colors = np.array(palette.units) / 8
    return float(((pixels[:, None].astype(float) - colors) ** 2).sum(2).min(1).mean())


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 40))
def test_as_many_colours_as_there_are_become_the_palette_itself(seed: int, colors: int) -> None:
    distinct = np.unique(np.random.default_rng(seed).integers(0, 256, (colors, 3)), axis=0).astype(np.uint8)
    if len(distinct) < 2:
        return
    pixels = np.repeat(distinct, 3, axis=0)
    found = learn_palette(pixels, len(distinct), seed)
    assert sorted(found.units) == sorted(tuple(8 * int(level) for level in color) for color in distinct)


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_each_colour_is_the_mean_of_its_pixels(seed: int) -> None:
    pixels = clouds(seed)
    palette = learn_palette(pixels, 6, seed)
    owners = quantize(torch.from_numpy(pixels).view(-1, 3, 1, 1), palette).flatten().numpy()
    for number, color in enumerate(palette.units):
        mean = pixels[owners == number].mean(axis=0)
        assert np.abs(mean * 8 - color).max() <= 0.5 + 1e-9  # rounded to eighths
    luma = np.array(palette.units) @ [299, 587, 114]
    assert (np.diff(luma) >= 0).all()
    assert error(pixels, palette) < 0.2 * error(pixels, learn_palette(pixels, 2, seed))


def test_the_palette_is_the_same_whatever_the_order_and_the_threads() -> None:
    pixels = clouds(3, 3000)
    torch.set_num_threads(2)
    first = learn_palette(pixels, 16, 7)
    torch.set_num_threads(1)
    assert learn_palette(pixels[np.random.default_rng(0).permutation(len(pixels))], 16, 7) == first
    assert learn_palette(pixels, 16, 8) != first
    # Held by value: another version of a library, or another machine, must not change it.
    known = (np.arange(3000) ** 2 * 31 % 251).astype(np.uint8).reshape(-1, 3)
    assert learn_palette(known, 3, 7).units == KNOWN


KNOWN = ((608, 447, 1068), (1605, 957, 929), (605, 1516, 815))


def test_it_is_stored_with_the_data_and_the_same_for_two_datasets(archive: Path, tmp_path: Path) -> None:
    datasets = [prepare_cifar(archive, tmp_path / name, SplitRecipe()).path for name in "ab"]
    palettes = [stored_palette(dataset, 16) for dataset in datasets]
    files = [dataset / "palette-16-seed0.json" for dataset in datasets]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert palettes[0] == palettes[1] == stored_palette(datasets[0], 16)
    assert not list(datasets[0].glob(".palette*"))
    pixels = training_pixels(datasets[0])
    assert pixels.shape == (36 * 16, 3)
    files[0].write_text(files[0].read_text().replace("colors", "colours"))
    with pytest.raises(DatasetFormatError, match=r"holds no palette .* Remove it"):
        stored_palette(datasets[0], 16)
    with pytest.raises(ConfigError, match=r"palette of 30000 colours .* Give num_colors from 2 to \d+"):
        stored_palette(datasets[0], 30_000)


def test_a_picture_is_the_nearest_colours_row_by_row() -> None:
    rng = np.random.default_rng(1)
    pixels = torch.from_numpy(rng.integers(0, 256, (2, 3, 5, 4), dtype=np.uint8))
    levels = torch.from_numpy(rng.integers(0, 256, (9, 3))).float()
    found = quantize(pixels, levels)
    distances = (pixels.permute(0, 2, 3, 1)[:, :, :, None].float() - levels).pow(2).sum(-1)
    assert torch.equal(found.long(), distances.argmin(-1))
    palette = Palette.from_levels(levels.numpy())
    assert torch.equal(quantize(pixels, palette), found)
    tokens = _to_sequence(found)
    assert tokens.dtype == torch.int64
    assert tokens[:, 1].tolist() == [int(found[1, row, column]) for row in range(5) for column in range(4)]
    drawn = to_images(tokens, palette, 5, 4)
    assert torch.equal(drawn.permute(0, 2, 3, 1), levels.byte()[found.long()])
    assert torch.equal(_to_sequence(quantize(drawn, palette)), tokens)
    assert torch.equal(quantize(pixels.float(), levels), distances.argmin(-1))
    assert torch.equal(quantize(pixels.float() / 127.5 - 1, levels / 127.5 - 1), distances.argmin(-1))
    with pytest.raises(ConfigError, match=r"uint8\[B, 3, H, W\], or centroids float"):
        quantize(pixels.float(), palette)
