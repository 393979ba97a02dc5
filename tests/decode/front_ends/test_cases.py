"""A sample of `make test-front-ends`: every family against its processor, with a fixed seed."""

from __future__ import annotations

import random

import pytest

from energon_dali import FrontEnd
from tests.decode.front_ends.cases import CASES, Case
from tests.decode.front_ends.comparison import compare
from tests.decode.front_ends.images import draw_images


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_processor(case: Case) -> None:
    draw = random.Random(15)
    first = case.make(draw) if case.slow else case.published()
    for processor, images in (
        (first, draw_images(9, 1, largest=240, largest_ratio=min(100, case.largest_ratio))),
        (case.make(draw), draw_images(5, 2, largest=240, extremes=False)),
        (case.make(draw), draw_images(5, 3, largest=240, extremes=False)),
    ):
        front_end = FrontEnd.from_processor(processor, **case.fields(processor))
        result = compare(processor, images, front_end=front_end, call=case.call, tokens=case.tokens, batch_size=3)
        assert result.differences == []
        assert set(result.routes) == {"pil", "dali-cpu"}
