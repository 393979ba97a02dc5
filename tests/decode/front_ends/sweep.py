"""Compares one kind of processor with its front end on many images, with published and drawn configurations."""

from __future__ import annotations

import random
import time

from energon_dali import FrontEnd
from tests.decode.front_ends.case import Case
from tests.decode.front_ends.cases import CASES
from tests.decode.front_ends.comparison import Comparison, compare
from tests.decode.front_ends.images import EXTREME_SIZES, draw_images
from tests.decode.front_ends.video_sweep import import_torchvision

_PER_CONFIGURATION = 12
"""Images per drawn configuration."""


def sweep(case: Case, count: int, seed: int) -> Comparison:
    """Returns the comparison of one case over `count` images."""
    draw = random.Random(seed)
    result = Comparison()
    first = max(len(EXTREME_SIZES), count // 3)
    result += _compare(case, case.published(), first, seed, 1)
    while result.compared < count:
        processor = case.make(draw)
        images = min(_PER_CONFIGURATION, count - result.compared)
        part = _compare(case, processor, images, draw.randrange(1 << 30), draw.randint(1, case.most_in_a_batch))
        part.differences = [f"{line} with {processor.to_dict()}" for line in part.differences]
        result += part
    return result


def _compare(case: Case, processor: object, count: int, seed: int, batch_size: int) -> Comparison:
    return compare(
        processor,
        draw_images(
            count,
            seed,
            largest=case.largest,
            extremes=count >= 2 * _PER_CONFIGURATION,
            largest_ratio=case.largest_ratio,
        ),
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
