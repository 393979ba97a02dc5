"""Mutated images: all routes agree on which are readable and on their pixels, and the rest of the block arrives."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from random import Random

from tests.decode.agreement import OPTIONS, compare, load_by_pil
from tests.decode.damage import damage
from tests.decode.sample_images import sample_images
from tests.faults.campaign import Campaign, Case, Lost, Outcome

PER_CASE = 50
"""Number of images of a case, decoded as one block; every fifth is good."""


def prepare(folder: Path) -> Case:
    """Encodes the good images; a case damages some of them."""
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    good = list(sample_images().items())
    others = [name for name in OPTIONS if name != "plain"]

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        files = []
        for n in range(PER_CASE * 5 // 4):
            name, data = good[(number * PER_CASE + n) % len(good)]
            files.append((name, data if n % 5 == 4 else damage(data, random)))
        # The plain form and one other form in turn; `python -m tests.decode.agreement` tests all forms of each file.
        found = list(compare(files, options=("plain", others[number % len(others)])))
        if found:
            raise Lost("; ".join(f"{each.name}: {each.what}" for each in found[:5]))
        refused = sum(bool(load_by_pil(data)) for n, (_, data) in enumerate(files) if n % 5 != 4)
        return Outcome(tried=PER_CASE, survived=PER_CASE - refused, refused=refused)

    return case


IMAGES = Campaign("mutated images", 400, prepare, timeout_seconds=120, cases_per_child=40, warm_cases=6)
