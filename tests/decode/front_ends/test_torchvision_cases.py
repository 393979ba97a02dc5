"""Families whose processors have the torchvision backend alone, against what those made of a few images."""

from __future__ import annotations

import json
from typing import Any

import pytest

from energon_dali import FrontEnd, batch_vision
from energon_dali.decode.front_ends.resampling import Pixels
from tests.decode.front_ends.cases import CASES
from tests.decode.front_ends.torchvision_records import PATH, images, summary

_RECORDS = json.loads(PATH.read_text())
_TOLERANCE = 2e-3
"""Of the weighted means of values, whose largest is about 2: a few levels in a few pixels."""


def test_there_are_records_of_every_case() -> None:
    assert {record["case"] for record in _RECORDS} == {case.name for case in CASES if case.torchvision}


@pytest.mark.parametrize("number", range(len(_RECORDS)), ids=lambda number: f"{_RECORDS[number]['case']} {number % 3}")
def test_equals_what_the_processor_made(number: int) -> None:
    record = _RECORDS[number]
    front_end = FrontEnd.from_processor(record["config"], **record.get("fields", {}))
    assert front_end.resampling == "torch"
    for place, image in enumerate(images()):
        layout = front_end.layout(*image.size)
        if "texts" in record:
            text = front_end.image_text(layout)
            assert [len(text), sum(map(ord, text))] == record["texts"][place]
        if not record["batches"]:
            continue
        made = summary(batch_vision([[front_end.render(Pixels(image=image), layout)]]))
        expected: dict[str, Any] = record["batches"][place]
        assert made.keys() == expected.keys()
        for key, values in expected.items():
            assert made[key][:2] == values[:2], key
            assert made[key][2:] == pytest.approx(values[2:], abs=_TOLERANCE, rel=1e-12), key
