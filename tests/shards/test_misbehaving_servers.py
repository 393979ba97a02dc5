"""Servers that drip, say nothing, hang up or answer nonsense: each request ends, with an error that names the file."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

import pytest

from energon_dali.errors import StorageError, StoreUnavailableError
from energon_dali.shards import StoragePath
from energon_dali.shards.storage import buckets, retry, store
from energon_dali.shards.storage.protocols import RangeReader
from energon_dali.shards.storage.store import ReadScope, RetryPolicy, read_scope
from tests.shards.raw_server import SIZE, Answer, RawServer, answer_well, content, content_range, head, serving

POLICY = RetryPolicy(attempts=2, store_seconds=0.0)
SHORT = RetryPolicy(attempts=2, request_seconds=0.2, store_seconds=0.0)
"""For answers that take forever."""
ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>no</Message></Error>"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RawServer]:
    for name in [name for name in os.environ if name.startswith(("AWS_", "MSC_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(store, "_stores", {})
    monkeypatch.setattr(buckets, "_buckets", {})
    monkeypatch.setattr(buckets, "_SLOWEST_BYTES_PER_SECOND", 1e12)
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    with serving() as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield running


def open_file(server: RawServer, scheme: str) -> RangeReader:
    return StoragePath.of("s3://data/x.tar" if scheme == "s3" else f"{server.url}/data/x.tar").open(SIZE)


def drip(server: RawServer) -> Answer:
    def answer(client: socket.socket, start: int, stop: int) -> None:
        client.sendall(head("206 Partial Content", stop - start, content_range(start, stop)))
        for byte in content(start, stop):
            client.sendall(bytes([byte]))
            if server.ended.wait(0.01):
                return

    return answer


def say_nothing(server: RawServer) -> Answer:
    return lambda client, start, stop: server.ended.wait() and None


def hang_up(client: socket.socket, start: int, stop: int) -> None:
    raise ConnectionError


def answer_nonsense(client: socket.socket, start: int, stop: int) -> None:
    client.sendall(random.Random(0).randbytes(3000))
    raise ConnectionError


def announce_less(client: socket.socket, start: int, stop: int) -> None:
    size = (stop - start) // 2
    client.sendall(head("206 Partial Content", size, content_range(start, stop)) + content(start, start + size))


def announce_more(client: socket.socket, start: int, stop: int) -> None:
    size = 2 * (stop - start)
    client.sendall(head("206 Partial Content", size, content_range(start, stop)) + content(start, stop))
    raise ConnectionError


def announce_no_number(client: socket.socket, start: int, stop: int) -> None:
    client.sendall(head("206 Partial Content", "many", content_range(start, stop)) + content(start, stop)[:-1])
    raise ConnectionError


def send_another_range(client: socket.socket, start: int, stop: int) -> None:
    data = content(start + 7, stop + 7)
    client.sendall(head("206 Partial Content", stop - start, content_range(start + 7, stop + 7)) + data)


def name_no_range(client: socket.socket, start: int, stop: int) -> None:
    client.sendall(head("206 Partial Content", stop - start) + content(start + 7, stop + 7))


def send_an_error_as_success(client: socket.socket, start: int, stop: int) -> None:
    client.sendall(head("200 OK", len(ERROR), "Content-Type: application/xml") + ERROR)


def send_an_error_as_range(client: socket.socket, start: int, stop: int) -> None:
    client.sendall(head("206 Partial Content", len(ERROR), content_range(start, stop)) + ERROR)


def send_a_page(client: socket.socket, start: int, stop: int) -> None:
    page = b"<!DOCTYPE html>\n<html>\n<body>" + b"down " * 1000
    client.sendall(head("503 Service Unavailable", len(page)) + page)


ANSWERS = [
    drip,
    say_nothing,
    hang_up,
    answer_nonsense,
    announce_less,
    announce_more,
    announce_no_number,
    send_another_range,
    name_no_range,
    send_an_error_as_success,
    send_an_error_as_range,
    send_a_page,
]


@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.parametrize("bad", ANSWERS, ids=lambda bad: bad.__name__)
def test_a_bad_answer_is_retried_and_ends_the_run_before_a_sample_is_lost(
    server: RawServer, bad: Answer, scheme: str
) -> None:
    reader = open_file(server, scheme)
    takes_forever = bad in (drip, say_nothing)
    policy = SHORT if takes_forever else POLICY
    assert reader.read_at(10, 500) == content(10, 510)
    server.answer, server.requests = bad(server) if takes_forever else bad, 0  # type: ignore[assignment, call-arg]
    with (
        read_scope(ReadScope(policy, outlasts_stores=False)),
        pytest.raises(
            StorageError, match=r"Could not read bytes 20 to 40020 of .*/x\.tar( \(2 attempts\))?: "
        ) as outside,
    ):
        reader.read_at(20, 40_000)
    assert server.requests == 2 or takes_forever, "one attempt may take all the time that there is"
    with (
        read_scope(ReadScope(policy)),
        pytest.raises(StoreUnavailableError, match=r"from (s3|http)://.*bytes 20 to 40020 of .*/x\.tar, failed with"),
    ):
        reader.read_at(20, 40_000)
    for text in (str(outside.value), str(outside.value.__cause__)):
        assert len(text) < 700
        assert "\n" not in text
        assert ".. " not in text
    server.answer = answer_well
    assert reader.read_at(20, 40_000) == content(20, 40_020)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_bad_answer_for_a_moment_costs_nothing(server: RawServer, scheme: str) -> None:
    bad = [answer for answer in ANSWERS if answer not in (drip, say_nothing)]

    def answer(client: socket.socket, start: int, stop: int) -> None:
        (answer_well if server.requests % 2 == 0 else bad[server.requests // 2 % len(bad)])(client, start, stop)  # type: ignore[operator]

    reader = open_file(server, scheme)
    assert reader.read_at(10, 500) == content(10, 510)
    server.answer, server.requests = answer, 0
    with read_scope(ReadScope(RetryPolicy(attempts=3))):  # before the last attempt, the store is asked as well
        for start in range(len(bad)):
            assert reader.read_at(start, 100) == content(start, start + 100)
    assert server.requests == 2 * len(bad)


HOST = "n" * 64 + ".invalid"
"""Too long for a name, which the system finds out without asking anybody."""


@pytest.mark.parametrize("url", ["s3://data/x.tar", f"http://{HOST}/data/x.tar"])
def test_a_host_without_an_address(server: RawServer, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}")
    reader = StoragePath.of(url).open(SIZE)
    with (
        read_scope(ReadScope(POLICY, outlasts_stores=False)),
        pytest.raises(StorageError, match=rf"{url} \(2 attempts\): .*\.invalid.*Name or service not known"),
    ):
        reader.read_at(0, 10)
    with read_scope(ReadScope(POLICY)), pytest.raises(StoreUnavailableError, match=r"Nothing could be read from "):
        reader.read_at(0, 10)


def test_redirects_of_web_servers(server: RawServer) -> None:
    reader = open_file(server, "http")
    targets = iter(["/data/y.tar", f"{server.url}/data/z.tar", None])

    def answer(client: socket.socket, start: int, stop: int) -> None:
        target = next(targets)
        if target is None:
            answer_well(client, start, stop)
        else:
            client.sendall(head("302 Found", 0, f"Location: {target}"))

    server.answer = answer
    assert reader.read_at(10, 500) == content(10, 510)
    server.answer = lambda client, start, stop: client.sendall(head("302 Found", 0, "Location: /data/x.tar"))
    with pytest.raises(StorageError, match=r"Could not reach http://.*/x\.tar: the server redirects in a loop"):
        reader.read_at(10, 500)
    server.answer = lambda client, start, stop: client.sendall(head("302 Found", 0, "Location: file:///etc/passwd"))
    with pytest.raises(StorageError, match=r"x\.tar: the server redirects it to an address that is not followed"):
        reader.read_at(10, 500)
    server.answer = lambda client, start, stop: client.sendall(head("302 Found", 0, "Location: http://[::1"))
    with pytest.raises(StorageError, match=r"x\.tar: the server redirects it to an address that is not followed"):
        reader.read_at(10, 500)


def test_the_body_of_a_redirect_may_be_endless(server: RawServer) -> None:
    reader = open_file(server, "http")

    def answer(client: socket.socket, start: int, stop: int) -> None:
        server.answer = answer_well
        client.sendall(head("302 Found", 1 << 40, "Location: /data/y.tar"))
        while not server.ended.is_set():
            client.sendall(bytes(1 << 16))

    server.answer = answer
    assert reader.read_at(10, 500) == content(10, 510)
