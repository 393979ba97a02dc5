"""Messages over the network, also in parts, and what a relay and a follower make of waits and ends."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterator

import pytest

from energon_dali.errors import WatchdogTimeoutError
from energon_dali.loader.processes.shared_memory import Channel
from energon_dali.loader.sharing.connections import RemoteChannel
from energon_dali.loader.sharing.link import Link
from energon_dali.loader.sharing.messages import Goodbye, Hello, Sizes, Waiting, Welcome, decode, encode
from energon_dali.loader.watchdog import Watchdog
from energon_dali.share_group import Member


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
    assert passed_on == [(2,)]
    for one in (follower, relay):
        one.close()


@pytest.mark.parametrize("raised", [False, True])
def test_a_program_that_an_error_ends_does_not_say_goodbye(raised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = link()
    follower._channel, theirs = Channel.pair()
    follower._welcome = Welcome(Sizes(10, None, False), b"")
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
