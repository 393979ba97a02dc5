"""The connections of a reader to its followers, also to those that it has not taken over yet."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from energon_dali.errors import ConfigError, WorkerDiedError
from energon_dali.loader.processes.shared_memory import Channel
from energon_dali.loader.sharing import publisher as publishing
from energon_dali.loader.sharing.messages import Course, Goodbye, Hello, Sizes, Took, Waiting, Welcome, decode, encode
from energon_dali.loader.sharing.publisher import Publisher
from energon_dali.loader.sharing.reader import Progress, PublishingPrefetcher
from energon_dali.loader.watchdog import Watchdog

HELLO = Hello(0, 0, "text", (0, 1))
WELCOME = Welcome(Sizes(10, None, False), b"")


@pytest.mark.parametrize("how", ["close", "after_fork"])
def test_a_follower_that_was_welcomed_a_moment_ago_notices_that_the_reader_ends(how: str) -> None:
    publisher = Publisher((1,), HELLO, WELCOME, 2)
    ours, theirs = Channel.pair()
    publisher.welcome(Hello(0, 1, "text", (0, 1)), ours)
    assert theirs.receive() is not None
    getattr(publisher, how)()
    assert ours.fileno() == -1
    with pytest.raises(EOFError):
        theirs.receive(wait=False)
    theirs.close()


def test_a_closed_publisher_writes_to_no_file_of_others() -> None:
    publisher = Publisher((1,), HELLO, WELCOME, 2)
    number = publisher._wake
    publisher.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)
    if other != number:
        os.dup2(other, number)  # another file gets its number
    publisher.wake()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(other)
    for descriptor in {other, number}:
        os.close(descriptor)
    ours, theirs = Channel.pair()
    publisher.welcome(Hello(0, 1, "text", (0, 1)), ours)
    assert theirs.receive() is not None
    with pytest.raises(EOFError):
        theirs.receive(wait=False)
    theirs.close()


BEFORE = Course()
AFTER = BEFORE.after("skip_steps", 5, {"first": 7, "stop": 9})


def has_room(publisher: Publisher, course: Course, number: int, epoch_end: int = -1) -> bool:
    """Returns whether an element may be read that the reader's own trainer wants."""
    answers = iter([number, None])
    return publisher.wait_for_room(course, number, lambda: next(answers), epoch_end)


@contextmanager
def ahead(course: Course = AFTER) -> Iterator[tuple[Publisher, Channel]]:
    """Context manager for a publisher, and for the end of a follower that has called `skip_steps` already."""
    publisher = Publisher((1,), HELLO, WELCOME, 3)
    ours, theirs = Channel.pair()
    publisher.welcome(Hello(0, 1, "text", (0, 1)), ours)
    assert theirs.receive() is not None
    for number in range(5):
        theirs.send(encode(Took(BEFORE, number, ())))
        assert has_room(publisher, BEFORE, number)
        publisher.publish(BEFORE, number, torch.tensor(number), {}, WELCOME.sizes, ends_epoch=False)
        assert theirs.receive(wait=False) is not None
    theirs.send(encode(Took(course, 5, ())))
    try:
        yield publisher, theirs
    finally:
        publisher.close()
        theirs.close()


def test_a_reader_that_begins_again_does_not_wait_for_followers_that_are_ahead_by_a_call() -> None:
    with ahead() as (publisher, theirs):
        for number in range(2, 5):  # its trainer had taken two when Ctrl-C came
            assert has_room(publisher, BEFORE, number)
            publisher.publish(BEFORE, number, torch.tensor(number), {}, WELCOME.sizes, ends_epoch=False)
        assert theirs.receive(wait=False) is None
        assert not has_room(publisher, BEFORE, 5)
        assert has_room(publisher, AFTER, 5)
        publisher.publish(AFTER, 5, torch.tensor(5), {}, WELCOME.sizes, ends_epoch=False)
        assert theirs.receive(wait=False) is not None


def test_other_calls_are_an_error_also_if_the_follower_made_them_first() -> None:
    with ahead(BEFORE.after("skip_steps", 5, {"first": 7, "stop": 10})) as (publisher, _):
        assert has_room(publisher, BEFORE, 4)
        with pytest.raises(ConfigError, match="other arguments or in another order"):
            has_room(publisher, AFTER, 5)


def late(publisher: Publisher, course: Course, number: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """Returns the ranks for which the reader says it waits."""
    monkeypatch.setattr(publishing, "_NOTICE_SECONDS", -1.0)
    assert not has_room(publisher, course, number)
    return publisher.waits_for


def test_who_waits_for_the_call_of_another_rank_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with ahead() as (publisher, theirs):
        assert late(publisher, BEFORE, 5, monkeypatch) == (0,)
        received = theirs.receive(wait=False)
        assert received is not None
        assert decode(received[0]) == Waiting((0,))
        assert late(publisher, AFTER, 20, monkeypatch) == (1,)


def test_a_relay_says_for_which_ranks_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with ahead() as (publisher, theirs):
        theirs.send(encode(Waiting((3, 4))))
        assert late(publisher, AFTER, 20, monkeypatch) == (3, 4)
        theirs.send(encode(Took(AFTER, 6, ())))
        assert late(publisher, AFTER, 21, monkeypatch) == (1,)


def test_a_follower_that_died_stays_dead_for_a_reader_that_begins_again() -> None:
    with ahead() as (publisher, theirs):
        theirs.close()
        for _ in range(2):
            with pytest.raises(WorkerDiedError, match="Rank 1, which follows rank 0, has ended"):
                has_room(publisher, AFTER, 5)


def test_a_follower_that_left_with_messages_unread_has_not_died() -> None:
    with ahead() as (publisher, theirs):
        assert has_room(publisher, AFTER, 5)
        publisher.publish(AFTER, 5, torch.tensor(5), {}, WELCOME.sizes, ends_epoch=False)
        theirs.send(encode(Goodbye()))
        theirs.close()
        assert has_room(publisher, AFTER, 50)


class Endless:
    """A prefetcher whose elements nobody asks for."""

    snapshot: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    occupancy = None

    def next(self) -> Any:
        raise AssertionError("a follower has not connected")

    def close(self) -> None:
        """Has nothing to end."""


def test_a_reader_that_stops_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_NOTICE_SECONDS", -1.0)
    publisher = Publisher((1,), HELLO, WELCOME, 3)
    prefetcher = PublishingPrefetcher(
        Endless(),
        publisher,
        BEFORE,
        Progress(),
        lambda *_, **__: ({}, WELCOME.sizes),
        Watchdog(None, None, fail_on_timeout=False),
        2,
    )
    while publisher.waits_for != (1,):
        time.sleep(0.01)
    prefetcher.close()
    assert publisher.waits_for == ()
    assert publisher.running is None
    publisher.close()
