"""What the exceptions show."""

from __future__ import annotations

import pickle

import pytest

from energon_dali.errors import ConfigError, DatasetError, EnergonDaliError, FileMissingError, ShardError


@pytest.mark.parametrize("kind", [ConfigError, DatasetError, FileMissingError, ShardError])
def test_a_quoted_message_does_not_double_the_full_stop(kind: type[EnergonDaliError]) -> None:
    inner = kind("The disk is full.")
    outer = kind(f"x.json cannot be written: {inner}. Free some space.")
    assert str(outer) == "x.json cannot be written: The disk is full. Free some space."
    assert str(pickle.loads(pickle.dumps(outer))) == str(outer)
    assert str(kind(f"It failed: {inner}.")) == "It failed: The disk is full."


@pytest.mark.parametrize("text", ["Wait ... and see", "Put it into a/.. or ..", "and so on...", "a..b", ""])
def test_other_full_stops_stay(text: str) -> None:
    assert str(ConfigError(text)) == text


def test_an_error_without_a_message_or_with_several_values_shows_them() -> None:
    assert str(ConfigError()) == ""
    assert str(DatasetError("a", 1)) == "('a', 1)"
