"""Compares one kind of processor with its front end on many images, with published and drawn configurations."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from energon_dali import FrontEnd
from tests.decode.front_ends.case import Case
from tests.decode.front_ends.cases import CASES
from tests.decode.front_ends.comparison import Comparison, compare
from tests.decode.front_ends.images import draw_images
from tests.decode.front_ends.published import published_processors
from tests.decode.front_ends.video_sweep import import_torchvision

CONFIGURATIONS = 30
"""Fewest configurations of a case."""
_OF_FIRST = 6
"""The first published configuration gets this part of all images, and the extreme sizes."""
_PER_CONFIGURATION = 8
"""Images of each further configuration."""


@lru_cache(maxsize=4)
def _images(count: int, seed: int, largest: int, largest_ratio: float) -> tuple[tuple[str, str, bytes], ...]:
    """Returns the images of all cases of a process: what is compared is what their configurations make of them."""
    return tuple(draw_images(count, seed, largest=largest, largest_ratio=largest_ratio))


def sweep(case: Case, count: int, seed: int) -> Comparison:
    """Returns the comparison of one case over at least `count` images and `CONFIGURATIONS` configurations.

    Each image goes through one configuration. The published ones come first, then drawn ones follow.
    """
    result = Comparison()
    images = _images(count, seed, case.largest, case.largest_ratio)
    for processor, batch_size in _configurations(case, random.Random(seed)):
        if result.compared >= count and result.configurations >= CONFIGURATIONS:
            return result
        wanted = max(count // _OF_FIRST, 11) if not result.configurations else min(_PER_CONFIGURATION, count)
        first = result.compared % count
        try:
            part = _compare(case, processor, images[first : first + wanted], batch_size)
        except Exception as error:
            part = Comparison(compared=wanted, differences=[f"it fails: {error!r}"])
        part.differences = [f"{line} with {_values(processor)}" for line in part.differences]
        result += part
        result.configurations += 1
    return result


def _configurations(case: Case, draw: random.Random) -> Iterator[tuple[Any, int]]:
    """Yields (processor, images of a batch) without end."""
    for processor in published_processors(case):
        yield processor, 1
    while True:
        yield case.make(draw), draw.randint(1, case.most_in_a_batch)


def _values(processor: Any) -> dict[str, Any]:
    values: dict[str, Any] = getattr(processor, "image_processor", processor).to_dict()
    return values


def _compare(case: Case, processor: object, images: tuple[tuple[str, str, bytes], ...], batch_size: int) -> Comparison:
    return compare(
        processor,
        images,
        front_end=FrontEnd.from_processor(processor, **case.fields(processor)),
        call=case.call,
        tokens=case.tokens,
        texts=case.texts,
        batch_size=batch_size,
    )


def run(number: int, count: int, seed: int) -> tuple[str, Comparison | None, float]:
    """Returns name, comparison and CPU seconds of the case with this number. For a process of its own.

    There is no comparison with a processor that needs torchvision where that is not installed.
    """
    import torch

    torch.set_num_threads(1)
    start = time.process_time()
    if CASES[number].torchvision and not import_torchvision():
        return CASES[number].name, None, 0.0
    return CASES[number].name, sweep(CASES[number], count, seed), time.process_time() - start
