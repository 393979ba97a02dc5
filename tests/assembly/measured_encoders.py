"""Task encoders for the tests of measures; a module of its own, which other processes import."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from energon_dali import Cooker, DefaultTaskEncoder, SampleDecoder, SkipSample, basic_sample_keys, stateless
from energon_dali.samples.kinds import CaptioningSample


class Letters(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Takes each letter of a caption for a token."""

    decoder = SampleDecoder()
    longest = 1000

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        sample.tokens = [ord(letter) for letter in sample.caption][: self.longest]
        return sample


class Measuring(Letters):
    """Returns a measure of its own."""

    def measure_sample(self, sample: Any) -> Mapping[str, int]:
        return {"vowels": sum(letter in "aeiou" for letter in sample.caption)}


class Slow(Letters):
    """Takes a millisecond per sample."""

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        time.sleep(0.001)
        return super().preencode_sample(sample)


class Picky(Letters):
    """Fails for some samples and drops others."""

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        if sample.__key__.endswith("_1"):
            raise ValueError("not this one")
        if sample.__key__.endswith("_2"):
            raise SkipSample
        return super().preencode_sample(sample)


def cook_caption(sample: Any) -> CaptioningSample:
    return CaptioningSample(**basic_sample_keys(sample), image=None, caption=sample["txt"].upper())


def cook_with_names(sample: Any, names: Any) -> CaptioningSample:
    return CaptioningSample(**basic_sample_keys(sample), image=None, caption=sample["txt"] + names["s0_0.txt"][0])


class Cooking(Letters):
    """Cooks crude samples."""

    cookers = (
        Cooker(cook_with_names, has_subflavors={"with": "names"}),
        Cooker(cook_caption),
    )
