from __future__ import annotations

import threading

import pytest

from energon_dali.errors import ConfigError
from energon_dali.task_encoder.context import (
    call_in_context,
    current_batch_index,
    current_sample,
    current_sample_index,
    sample_context,
)
from energon_dali.task_encoder.encoder import TaskEncoder


def test_the_innermost_is_the_sample_and_the_outermost_the_batch() -> None:
    with sample_context(3, 0):
        assert (current_sample_index(), current_batch_index()) == (3, 3)
        with sample_context(7, 0):
            assert (current_sample_index(), current_batch_index()) == (7, 3)
            with sample_context(9, 1):
                assert current_sample() == (9, 1)
        assert current_sample_index() == 3
    assert current_sample() is None


def test_an_exception_leaves_the_context() -> None:
    with pytest.raises(KeyError), sample_context(1, 0):
        raise KeyError
    assert current_sample() is None


def test_a_call_has_the_context_of_a_with_block() -> None:
    with sample_context(3, 0):
        assert call_in_context(7, 1, lambda argument: (argument, current_sample(), current_batch_index()), "a") == (
            "a",
            (7, 1),
            3,
        )
        with pytest.raises(KeyError):
            call_in_context(8, 1, {}.__getitem__, "missing")
        assert current_sample() == (3, 0)


def test_threads_do_not_see_each_other() -> None:
    seen: list[object] = []
    with sample_context(1, 0):
        thread = threading.Thread(target=lambda: seen.append(current_sample()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_outside_of_a_hook_there_is_no_index() -> None:
    encoder: TaskEncoder[str, str, str, str] = TaskEncoder()
    for name in ("current_sample_index", "current_batch_index"):
        with pytest.raises(ConfigError, match=f"{name} was called outside of a hook"):
            getattr(encoder, name)
    with sample_context(4, 0):
        assert (encoder.current_sample_index, encoder.current_batch_index) == (4, 4)
