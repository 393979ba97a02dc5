from __future__ import annotations

import re
from itertools import accumulate

import pytest
from braceexpand import braceexpand
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.shards.documents.braces import _count, expand_braces


@pytest.mark.parametrize(
    "pattern",
    [
        "{0..99999999}",
        "s_{0..99999999..2}.tar",
        "{a,b}" * 40,
        "{a..z}" * 10,
        "{{a,b},{c,d}}" * 30,
        "{99999999..0}",
        "{0..99999999\n}",
        "{" + "0" * 300 + "..99999999}",
        "{-99999999..99999999}",
        "{0..1e9,{0..99999999}}",
        "{x{0..99999999}}",
        "{" * 100 + "}" * 100,
        "{" * 100_000,
        "{a," * 100_000 + "}" * 100_000,
        "}{0..99999999}{",
        "a{" + "x," * 600_000 + "x}",
        "{0..9999}" + "x" * 100_000,
        "{1..2" + "9" * 5000 + "}",
    ],
    ids=lambda pattern: repr(pattern[:24]),
)
def test_bombs_are_refused_before_they_go_off(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"the pattern|the range") as caught:
        expand_braces([pattern])
    assert len(str(caught.value)) < 400


def test_many_patterns_have_a_limit_together() -> None:
    with pytest.raises(ValueError, match="1,000,000 are allowed"):
        expand_braces(["{0..399999}"] * 3)


def closes_what_it_did_not_open(pattern: str) -> bool:
    depths = accumulate({"{": 1, "}": -1}.get(letter, 0) for letter in re.sub(r"\\.", "", pattern, flags=re.DOTALL))
    return min(depths, default=0) < 0


PATTERNS = st.text(st.sampled_from("{}{},.019a-\\"), max_size=14) | st.lists(
    st.sampled_from(["{0..3}", "{a,b}", "{", "}", ",", "x", "{01..10..3}", "{c..a}", "{x}", "\\{", "{-2..2}"]),
    max_size=6,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(PATTERNS)
def test_names_are_those_of_braceexpand_and_the_count_is_not_less(pattern: str) -> None:
    try:
        expected = list(braceexpand(pattern))
    except ValueError:
        expected = None
    try:
        names = expand_braces([pattern])
    except ValueError:
        assert expected is None or closes_what_it_did_not_open(pattern)
        return
    assert names == expected
    assert _count(pattern) >= len(names)
