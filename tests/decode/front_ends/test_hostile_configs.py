"""A senseless value in a configuration is refused with its key, or the front end makes finite numbers all the same."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
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


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("GraniteDocling", "crop_to_patches"),
        ("Ovis2", "use_covering_area_grid"),
        ("MiniCPMV4_6", "slice_mode"),
        ("MiniCPMV4_6", "use_image_id"),
        ("Lfm2Vl", "use_thumbnail"),
        ("ZoeDepth", "keep_aspect_ratio"),
    ],
)
def test_a_flag_that_is_null_is_off(name: str, flag: str) -> None:
    on, off, null = (
        FrontEnd.from_processor({"image_processor_type": f"{name}ImageProcessor", flag: value})
        for value in (True, False, None)
    )
    assert null == off != on


@pytest.mark.parametrize(
    ("name", "flag", "off"),
    [
        ("HunYuanVL", "cat_extra_token", True),
        ("Molmo2", "image_use_col_tokens", True),
        ("Molmo2", "use_single_crop_start_token", True),
        ("Molmo2", "use_single_crop_col_tokens", False),  # it follows image_use_col_tokens
    ],
)
def test_a_flag_of_the_processor_around_that_is_null(name: str, flag: str, off: bool) -> None:
    values = {
        "processor_class": f"{name}Processor",
        "image_processor": {"image_processor_type": f"{name}ImageProcessor"},
    }
    front_ends = [FrontEnd.from_processor({**values, flag: value}) for value in (None, False, True)]
    assert front_ends[0] == front_ends[1 if off else 2]
    assert front_ends[1] != front_ends[2]


def test_tokens_of_arias_squares_are_followed_or_refused() -> None:
    inner = {"image_processor_type": "AriaImageProcessor"}

    def aria(sizes: Any) -> FrontEnd:
        return FrontEnd.from_processor({"image_processor": inner, "size_conversion": sizes})

    assert aria({"490": 7, "980": 9}).layout(30, 20).num_tokens == 9
    assert aria({490: 7, 980: 9}).layout(30, 20).num_tokens == 9
    assert aria(None).layout(30, 20).num_tokens == 256
    image_processor = SimpleNamespace(to_dict=lambda: inner)
    around = type("AriaProcessor", (SimpleNamespace,), {})(image_processor=image_processor, size_conversion={980: 9})
    assert FrontEnd.from_processor(around).layout(30, 20).num_tokens == 9
    for sizes in ({"490": 7}, {"980": "9"}, {"980": True}, {"980": -1}, {"980": 0}, [980, 9], 9):
        with pytest.raises(ConfigError, match=r"size_conversion=.* is invalid: it must be"):
            aria(sizes)


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
