"""A server for tests that answers range requests in any way, valid or not."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SIZE = 100_000
"""Bytes of each file."""

Answer = Callable[[socket.socket, int, int], None]
"""Takes a connection and the range (start, stop); sends the response. Raise ConnectionError to close the connection."""


def content(start: int, stop: int) -> bytes:
    """Returns a range of each file."""
    return bytes(number % 251 for number in range(start, stop))


def head(status: str, length: int | str, *more: str) -> bytes:
    """Returns the head of a response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}", 'ETag: "tag"']
    lines += ["Last-Modified: Sun, 22 Nov 2026 10:00:00 GMT", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def content_range(start: int, stop: int) -> str:
    """Returns the header for a range."""
    return f"Content-Range: bytes {start}-{stop - 1}/{SIZE}"


def answer_well(client: socket.socket, start: int, stop: int) -> None:
    """Sends what was requested."""
    client.sendall(head("206 Partial Content", stop - start, content_range(start, stop)) + content(start, stop))


class RawServer:
    """What the server does, and how many requests it received."""

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}"
        self.answer: Answer = answer_well
        self.requests = 0
        self.ended = threading.Event()
        """Set when the test is over: an answer that takes forever ends then."""

    def serve(self, client: socket.socket) -> None:
        """Answers the requests of a connection until it is closed."""
        received = b""
        with client, suppress(OSError):
            while piece := client.recv(1 << 16):
                received += piece
                while b"\r\n\r\n" in received:
                    request, _, received = received.partition(b"\r\n\r\n")
                    wanted = re.search(rb"(?i)range: bytes=(\d+)-(\d+)", request)
                    assert wanted is not None
                    self.requests += 1
                    self.answer(client, int(wanted[1]), int(wanted[2]) + 1)


@contextmanager
def serving() -> Iterator[RawServer]:
    """Runs a server while the block runs."""
    clients: list[socket.socket] = []
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        server = RawServer("{}:{}".format(*listener.getsockname()))

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    clients.append(client)
                    threads.append(threading.Thread(target=server.serve, args=(client,)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield server
        finally:
            server.ended.set()
            for opened in (listener, *clients):
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
            for thread in (accepting, *threads):
                thread.join()
