"""What is wrong with an entry of a state is said with the stream that it belongs to, whatever process found it."""

from __future__ import annotations

import pickle

import pytest

from energon_dali.errors import StateError
from energon_dali.shards.documents.state_entries import DamagedStateError, count_of, restore_stream


class _Counter:
    """An iterator whose state is a count."""

    def load_state_dict(self, state: dict[str, object]) -> None:
        if state.get("of") == "another":
            raise StateError("Somebody wrote: The state is damaged: so it seems.")
        count_of(state, "count")


def test_a_damaged_entry_is_named_with_its_stream() -> None:
    with pytest.raises(StateError, match=r"^The state is damaged: its entry 'count' is -1, and should"):
        count_of({"count": -1}, "count")
    with pytest.raises(StateError, match=r"^The state of stream 3 is damaged, or of another release: its entry"):
        restore_stream(_Counter(), {"count": -1}, 3)


def test_other_errors_are_kept_whatever_they_say() -> None:
    with pytest.raises(StateError, match=r"^Somebody wrote: The state is damaged: so it seems\.$"):
        restore_stream(_Counter(), {"of": "another"}, 3)


def test_it_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(DamagedStateError("its entry is missing.")))
    assert (str(error), error.reason) == ("The state is damaged: its entry is missing.", "its entry is missing.")
