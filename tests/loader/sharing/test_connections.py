"""Messages over the network, also in parts, and what a relay and a follower make of waits and ends."""

from __future__ import annotations

import pickle
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from energon_dali.datasets.metrics import Metrics
from energon_dali.errors import WatchdogTimeoutError
from energon_dali.loader.processes.shared_memory import Channel
from energon_dali.loader.sharing.connections import RemoteChannel
from energon_dali.loader.sharing.follower import _FollowingPrefetcher
from energon_dali.loader.sharing.link import Link
from energon_dali.loader.sharing.messages import (
    Course,
    Element,
    Goodbye,
    Hello,
    Sizes,
    Waiting,
    Welcome,
    decode,
    encode,
)
from energon_dali.loader.sharing.reader import Progress
from energon_dali.loader.watchdog import Watchdog
from energon_dali.share_group import Member

SIZES = Sizes(10, None, False)


@pytest.fixture
def ends() -> Iterator[tuple[RemoteChannel, RemoteChannel]]:
    pair = [RemoteChannel(one) for one in socket.socketpair()]
    yield pair[0], pair[1]
    for one in pair:
        one.close()


def test_a_message_goes_out_in_parts_and_another_follows_its_rest(ends: tuple[RemoteChannel, RemoteChannel]) -> None:
    sender, receiver = ends
    messages = [random.Random(number).randbytes(size) for number, size in enumerate([3 << 20, 0, 5, 2 << 20])]
    assert not sender.send(messages[0], wait=False)  # its sender gives up, and then has others to send
    found = []
    for message in messages[1:]:
        while not sender.send(message, wait=False):
            received = receiver.receive(wait=False)
            found += [] if received is None else [bytes(received[0])]
    while (received := receiver.receive(wait=False)) is not None:
        found.append(bytes(received[0]))
    assert found == messages


def test_a_message_that_ends_in_the_middle_is_the_end(ends: tuple[RemoteChannel, RemoteChannel]) -> None:
    sender, receiver = ends
    assert not sender.send(bytes(3 << 20), wait=False)
    assert receiver.receive(wait=False) is None
    sender.close()
    with pytest.raises(EOFError):
        receiver.receive()


def link() -> Link:
    reader = Member(0, "node", "address")
    return Link(reader, Hello(0, 1, "text", (0, 1)), "node", Watchdog(60, None, fail_on_timeout=True))


def test_a_relay_leaves_it_to_its_consumers_to_judge_how_long_they_wait() -> None:
    follower, relay = link(), link()
    passed_on: list[tuple[int, ...]] = []
    relay.on_waiting = passed_on.append
    for one in (follower, relay):
        one._channel, theirs = Channel.pair()
        theirs.send(encode(Waiting((2,))))
        one._receive()
        one._judge(59)
        theirs.close()
    with pytest.raises(WatchdogTimeoutError, match="Rank 2 has not asked"):
        follower._judge(61)
    relay._judge(61)
    assert set(passed_on) == {(2,)}  # again and again, as its own thread may have had other ranks to name meanwhile
    for one in (follower, relay):
        one.close()


def test_a_signal_handler_that_takes_a_batch_during_a_wait_takes_it_from_nobody() -> None:
    taken: list[int] = []

    class Waits:
        def element(self, course: Course, given: int) -> Any:
            if not taken:
                taken.append(-1)
                taken.append(prefetcher.next())
            return SimpleNamespace(element=Element(course, given, pickle.dumps({}), SIZES, False, None))

        def batch(self, kept: Any) -> int:
            return int(kept.element.given)

    clock = Metrics().clock("wait for reader")
    watchdog = Watchdog(None, None, fail_on_timeout=False)
    prefetcher = _FollowingPrefetcher(Waits(), Course(), Progress(), None, watchdog, None, clock)  # type: ignore[arg-type]
    taken.append(prefetcher.next())
    taken.append(prefetcher.next())
    assert taken == [-1, 0, 1, 2]


@pytest.mark.parametrize("raised", [False, True])
def test_a_program_that_an_error_ends_does_not_say_goodbye(raised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = link()
    follower._channel, theirs = Channel.pair()
    follower._welcome = Welcome(SIZES, b"")
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.delattr(sys, "last_value", raising=False)
    if raised:
        monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    follower.close()
    if raised:
        with pytest.raises(EOFError):
            theirs.receive()
    else:
        received = theirs.receive()
        assert received is not None
        assert decode(received[0]) == Goodbye()
    theirs.close()


@pytest.mark.parametrize(
    ("error", "says"), [(ValueError(), False), (StopIteration(), True), (SystemExit(0), True), (SystemExit(1), False)]
)
def test_a_loop_that_an_error_ends_does_not_say_goodbye(error: BaseException, says: bool) -> None:
    follower = link()
    follower._channel, theirs = Channel.pair()
    follower._welcome = Welcome(SIZES, b"")
    with suppress(type(error)):
        try:
            raise error
        finally:
            follower.leave()
    assert (theirs.receive(wait=False) is not None) == says
    theirs.close()
    follower.close()
