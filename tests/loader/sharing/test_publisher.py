"""The connections of a reader to its followers, also to those that it has not taken over yet."""

from __future__ import annotations

import os

import pytest

from energon_dali.loader.processes.shared_memory import Channel
from energon_dali.loader.sharing.messages import Hello, Sizes, Welcome
from energon_dali.loader.sharing.publisher import Publisher

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
