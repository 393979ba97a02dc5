"""Conditions on measures: comparisons joined by `and`, of which nothing else is run."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from energon_dali.errors import ConfigError
from energon_dali.metadataset.condition import Condition
from energon_dali.metadataset.reference import Subset
from energon_dali.plan.slices import Slices, filter_slices

VALUES = {"a": np.array([-1, 0, 1, 2, 3, 4]), "b": np.array([5, 5, 5, 5, 5, -1])}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a >= 0", [1, 2, 3, 4, 5]),
        ("a != 2", [1, 2, 4, 5]),
        ("1 <= a < 3", [2, 3]),
        ("a > 0 and b == 5", [2, 3, 4]),
        ("(a > 0 and (a < 4)) and 2 < b", [2, 3, 4]),
        ("a < b", [1, 2, 3, 4]),
        ("a > 100", []),
    ],
)
def test_conditions_hold_for_measured_samples(text: str, kept: list[int]) -> None:
    condition = Condition.parse(text)
    found = condition.holds({name: VALUES[name] for name in condition.names})
    assert np.flatnonzero(found).tolist() == kept
    assert Condition.parse(str(condition)) == condition


@pytest.mark.parametrize(
    "text",
    [
        "",
        5,
        None,
        "a",
        "1 < 2",
        "a <",
        "a < 1 or a > 2",
        "not a < 1",
        "a in (1, 2)",
        "a is 1",
        "a < 1.5",
        "a < -1",
        "a < True",
        "a + 1 < 2",
        "len(a) < 2",
        "__import__('os').system('true') < 1",
        "a.b < 1",
        "a[0] < 1",
        "(lambda: 1)() < a",
        "a < 1; b < 2",
        "a < " + "9" * 400,
        "(" * 900 + "a < 1",
        "a < 1 and " * 200,
        "a\0 < 1",
    ],
)
def test_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="where="):
        Condition.parse(text)


def test_subsets_of_several_levels_have_all_conditions() -> None:
    outer, inner = Subset.of({"where": "a < 3"}), Subset.of({"range": ["0%", "50%"], "where": "b > 1"})
    both = inner.within(outer)
    assert str(both.where) == "b > 1 and a < 3"
    assert both.share == (0.0, 0.5)
    assert Subset.of(["0%", "50%"]).within(outer).where == outer.where
    for wrong in ({}, {"were": "a < 1"}, {"range": [0, 1], "more": 1}):
        with pytest.raises(ConfigError, match="`where`"):
            Subset.of(wrong)


def test_kept_samples_become_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = Slices([0, 0, 2, 1], [0, 6, 3, 0], [5, 9, 10, 4])  # type: ignore[arg-type]
    starts = np.array([0, 20, 40])
    draw = np.random.default_rng(0)
    for block in (1 << 20, 3):
        monkeypatch.setattr("energon_dali.plan.slices._FILTERED_TOGETHER", block)
        for share in (0.0, 0.3, 0.8, 1.0):
            wanted = draw.random(60) < share
            found = filter_slices(ranges, starts, lambda numbers: wanted[numbers])  # noqa: B023 - called at once
            assert expanded(found) == [one for one in expanded(ranges) if wanted[starts[one[0]] + one[1]]]
            if share == 1.0:
                assert found == ranges
    assert len(filter_slices(ranges.take(np.zeros(0, np.int64)), starts, lambda numbers: numbers > 0)) == 0


def expanded(slices: Slices) -> list[tuple[int, int]]:
    rows = zip(slices.shard.tolist(), slices.start.tolist(), slices.stop.tolist(), strict=True)
    return [(shard, index) for shard, start, stop in rows for index in range(start, stop)]


def test_a_million_samples_are_filtered_in_a_fraction_of_a_second() -> None:
    ranges = Slices.whole_shards([10_000] * 100)
    starts = np.arange(100) * 10_000
    begin = time.process_time()
    found = filter_slices(ranges, starts, lambda numbers: numbers % 2 == 0)
    assert found.num_samples == len(found) == 500_000
    assert time.process_time() - begin < 2
