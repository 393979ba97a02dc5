"""A senseless value in a configuration is refused with its key, or the front end makes finite numbers all the same."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from energon_dali import ConfigError, FrontEnd
from energon_dali.decode.front_ends.pixel_values import PixelValues
from tests.decode.front_ends.hostile_configs import hostile_configs, outcome


def _check(configs: list[tuple[str, str, Any, dict[str, Any]]]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for name, key, value, config in configs:
        try:
            outcomes[outcome(key, config)] += 1
        except Exception as error:
            pytest.fail(f"{name}, {key} with a {type(value).__name__}: {error!r}")
    return outcomes


def test_a_sample_of_hostile_configurations() -> None:
    outcomes = _check(random.Random(4).sample(list(hostile_configs()), 2000))
    assert outcomes["refused"] > 1000
    assert outcomes["finite"] > 100


@pytest.mark.sweep
def test_all_hostile_configurations() -> None:
    outcomes = _check(list(hostile_configs()))
    assert outcomes.total() > 20_000
    assert outcomes["refused"] > outcomes["finite"] > 1000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"image_std": [0, 0, 0]},
            r"image_std=\[0, 0, 0\] is invalid: it must be one number between 1e-06 and 1e\+06, or",
        ),
        ({"rescale_factor": 0}, r"rescale_factor=0 is invalid: it must be a number between 1e-06 and 1e\+06"),
        ({"do_resize": "yes"}, "do_resize='yes' is invalid: it must be true or false"),
        ({"size": 10**5000}, r"size=\(a number too long to print\) is invalid: it must be a size"),
        (
            {"size": {"height": 0, "width": 9}},
            "it must be a size: whole numbers between 1 and 8,192 named height, width",
        ),
        ({"resample": 7}, "resample=7 is invalid: it must be the number of one of PIL's filters, 0 to 5"),
    ],
)
def test_messages_name_the_key_the_value_and_what_is_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FrontEnd.from_processor({"image_processor_type": "ViTImageProcessor", **values})


def test_values_that_a_dtype_cannot_hold() -> None:
    front_end = FrontEnd.from_processor({"image_processor_type": "ViTImageProcessor", "image_std": 1e-3})
    assert front_end.with_fields(dtype="float16").dtype == "float16"
    with pytest.raises(
        ConfigError, match=r"dtype='float16'\) makes values of up to 500000, which that dtype cannot hold"
    ):
        FrontEnd.from_processor({"image_processor_type": "ViTImageProcessor", "image_std": 1e-6}, dtype="float16")
    for std in ((0.0,) * 3, (float("nan"),) * 3):
        for dtype in ("float32", "uint8"):
            with pytest.raises(ConfigError, match="makes values of up to inf"):
                front_end.with_fields(values=PixelValues(mean=(0.5,) * 3, std=std), dtype=dtype)
