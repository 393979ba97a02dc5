"""The sizes after resizing equal those of transformers for all sizes, ranges of pixels and patches.

Tests import transformers themselves: every process that runs tests imports this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from energon_dali import DecodeError
from energon_dali.decode.front_ends.qwen2_vl import smart_resize, smart_resize_frames

SIDES = st.one_of(st.integers(1, 60), st.integers(1, 9000))
BLOCKS = st.sampled_from([8, 14, 16, 28, 32, 42])
PIXELS = st.one_of(st.integers(1, 20_000), st.integers(1, 20_000_000))


def outcome(refusal: type[Exception], function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Returns what a function returns, or None if it refuses."""
    try:
        return function(*given, **named)
    except refusal:
        return None


@settings(max_examples=200)
@given(SIDES, SIDES, BLOCKS, PIXELS, PIXELS)
@example(1, 1, 28, 3136, 1_003_520)
@example(8000, 40, 28, 3136, 1_003_520)  # just the largest aspect ratio
@example(8001, 40, 28, 3136, 1_003_520)
@example(70, 42, 28, 1, 10_000_000)  # halves are rounded to even
def test_images_of_qwen(height: int, width: int, block: int, few: int, many: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as of_qwen

    few, many = sorted((few, many))
    found = outcome(DecodeError, smart_resize, height, width, block, few, many)
    assert found == outcome(ValueError, of_qwen, height, width, block, few, many)


@settings(max_examples=200)
@given(st.integers(1, 900), SIDES, SIDES, st.integers(1, 4), BLOCKS, PIXELS, PIXELS)
@example(2, 1, 1, 2, 28, 12_544, 11_760_000)
@example(1, 100, 100, 2, 28, 12_544, 11_760_000)  # fewer frames than a patch
@example(2, 1, 6000, 2, 28, 1, 10_000_000)
def test_frames_of_glm(frames: int, height: int, width: int, temporal: int, block: int, few: int, many: int) -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize as of_glm

    few, many = sorted((few, many))
    found = outcome(DecodeError, smart_resize_frames, frames, height, width, temporal, block, few, many)
    assert found == outcome(ValueError, of_glm, frames, height, width, temporal, block, few, many)
