"""The mixture of `benchmarks.balance`: lengths of texts, images, documents and videos, packed by best fit."""

from __future__ import annotations

import numpy as np

from energon_dali.plan.packs import best_fit
from energon_dali.plan.rng import Int64Array

PACK_LENGTH = 32_768
_TOKENS_PER_SAMPLE = 1900
_SHARES = (0.55, 0.30, 0.10, 0.05)
_PATCHES_PER_TOKEN = 4


def draw_measures(random: np.random.Generator, count: int) -> dict[str, Int64Array]:
    """Returns measures of samples: 55 % texts, 30 % images with a caption, 10 % documents, 5 % videos.

    Args:
        random: Draws them.
        count: Number of samples.

    Returns:
        int64[count] for each of tokens, vision_patches and vision_squares.
    """
    kinds = random.choice(len(_SHARES), size=count, p=_SHARES)
    median_text, spread = np.array([900, 90, 1800, 150])[kinds], np.array([1.1, 0.8, 0.9, 0.8])[kinds]
    text = np.clip(median_text * np.exp(spread * random.standard_normal(count)), 8, PACK_LENGTH).astype(np.int64)
    drawn = random.standard_normal(count)
    patches = np.select(
        [kinds == 1, kinds == 2],
        [
            np.clip(2000 * np.exp(0.7 * drawn), 256, 16_384),  # of an image
            np.clip(3640 * np.exp(0.35 * drawn), 1024, 6400),  # of a page
        ],
        random.choice([256, 576, 1024], count),  # of a frame
    ).astype(np.int64)
    patches -= patches % _PATCHES_PER_TOKEN
    pages = np.clip(random.geometric(0.25, count), 1, 12)
    frames = np.clip(36 * np.exp(0.7 * random.standard_normal(count)), 8, 128).astype(np.int64)
    frames = np.minimum(frames, (PACK_LENGTH - 2000) * _PATCHES_PER_TOKEN // patches)
    images = np.select([kinds == 0, kinds == 1, kinds == 2], [0, 1, pages], frames)
    tokens = np.minimum(text + images * patches // _PATCHES_PER_TOKEN, PACK_LENGTH)
    return {"tokens": tokens, "vision_patches": images * patches, "vision_squares": images * patches * patches}


def draw_packs(random: np.random.Generator, count: int) -> tuple[dict[str, Int64Array], Int64Array]:
    """Returns packs of `PACK_LENGTH` in a random order, as a planned step has them.

    Args:
        random: Draws the samples.
        count: Number of packs.

    Returns:
        (measures of samples, int64[samples]: the pack of each, or -1 if it is in none).
    """
    length = (count + 2) * PACK_LENGTH
    measures = draw_measures(random, length // _TOKENS_PER_SAMPLE + 100)
    while measures["tokens"].sum() < length:
        more = draw_measures(random, length // _TOKENS_PER_SAMPLE)
        measures = {name: np.concatenate([column, more[name]]) for name, column in measures.items()}
    enough = int(np.searchsorted(np.cumsum(measures["tokens"]), length)) + 1
    measures = {name: column[:enough] for name, column in measures.items()}
    packs, number = best_fit(measures["tokens"], PACK_LENGTH)
    renamed = np.full(number, -1)
    renamed[random.permutation(number)[:count]] = np.arange(count)
    return measures, renamed[packs]


def sum_over_packs(values: Int64Array, packs: Int64Array, count: int) -> Int64Array:
    """Returns the sum of each pack.

    Args:
        values: int64[samples, k].
        packs: int64[samples]: the pack of each, or -1.
        count: Number of packs.

    Returns:
        int64[count, k].
    """
    sums = np.zeros((count, values.shape[1]), np.int64)
    np.add.at(sums, packs[packs >= 0], values[packs >= 0])
    return sums
