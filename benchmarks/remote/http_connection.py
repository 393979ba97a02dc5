"""One connection of the S3 server: parses requests, waits, and sends with as little work as possible.

It reads and writes its socket itself, so that bodies go from the file to the socket without passing through Python.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Protocol

from benchmarks.remote.messages import (
    FileRange,
    Request,
    RequestError,
    Response,
    decode_chunks,
    parse_head,
    parse_target,
)
from benchmarks.remote.server_options import Fault, ServerOptions

RECEIVED_BYTES = 1 << 18
COPIED_BYTES = 1 << 15
"""Bodies up to this size are read and sent with their headers in one call; longer ones go by sendfile."""
SHARED_BYTES = 1 << 16
"""With limited bandwidth, connections take turns with this many bytes."""


class Server(Protocol):
    """What a connection needs to know."""

    loop: asyncio.AbstractEventLoop
    options: ServerOptions

    def answer(self, request: Request) -> Response: ...

    def begun(self, request: Request, target: bytes) -> Fault | None: ...

    def ended(self, response: Response, sent: int) -> None: ...

    def reserve(self, size: int) -> float: ...

    def closed(self, connection: Connection) -> None: ...


class Connection:
    """Serves one client until it closes.

    Args:
        server: Answers, options and counters.
        client: The connected socket.
    """

    def __init__(self, server: Server, client: socket.socket) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server = server
        self._socket = client
        self._file = client.fileno()
        self._received = bytearray()
        self._continued = False
        self._timer: asyncio.TimerHandle | None = None
        self._response: Response | None = None
        self._head = b""
        self._rest: FileRange | None = None
        self._sent = 0
        self._allowed = 0
        self._fault: Fault | None = None
        self._cut = -1
        self._writing = False
        self._free_at = 0.0
        server.loop.add_reader(self._file, self._readable)

    @property
    def waiting(self) -> bool:
        """Whether a request is being answered."""
        return self._response is not None

    def close(self) -> None:
        """Ends the connection; a request that is being answered ends unanswered."""
        if self._file < 0:
            return
        loop = self._server.loop
        loop.remove_reader(self._file)
        loop.remove_writer(self._file)
        self._file = -1
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()
        if self._response is not None:
            self._server.ended(self._response, self._sent)
            self._response = None
        self._server.closed(self)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(RECEIVED_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._received += data
        if self._response is None:
            self._next_request()

    def _next_request(self) -> None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        try:
            method, target, headers = parse_head(bytes(self._received[:end]))
            body, stop = self._body(headers, end + 4)
            if stop < 0:
                return
            path, query = parse_target(target)
        except (RequestError, ValueError) as error:
            broken = error if isinstance(error, RequestError) else RequestError(400, "BadRequest", str(error))
            self._received.clear()
            self._begin(broken.response("control"), 0.0)
            return
        del self._received[:stop]
        self._continued = False
        request = Request(method, path, query, headers, body)
        if path.startswith("/-/"):
            self._begin(self._server.answer(request), 0.0)
            return
        self._fault = self._server.begun(request, target)
        wait = self._server.options.latency_seconds
        if self._fault == "503":
            response = RequestError(503, "SlowDown", "Please reduce your request rate.").response(
                method, has_body=method != "HEAD"
            )
        else:
            response = self._server.answer(request)
        if self._fault == "slow":
            wait += self._server.options.slow_seconds
        self._begin(response, wait)

    def _body(self, headers: dict[bytes, bytes], start: int) -> tuple[bytes, int]:
        """Returns the body and its end, which is -1 if it has not arrived."""
        chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        size = int(headers.get(b"content-length", b"0"))
        if not chunked and size == 0:
            return b"", start
        if headers.get(b"expect", b"").lower() == b"100-continue" and not self._continued:
            self._continued = True
            self._socket.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if chunked:
            found = decode_chunks(self._received, start)
            if found is None:
                return b"", -1
            body, stop = found
        else:
            stop = start + size
            if len(self._received) < stop:
                return b"", -1
            body = bytes(self._received[start:stop])
        signed = headers.get(b"x-amz-content-sha256", b"").startswith(b"STREAMING-")
        if signed or b"aws-chunked" in headers.get(b"content-encoding", b""):
            decoded = decode_chunks(body)
            if decoded is None:
                raise RequestError(400, "IncompleteBody", "The body ends within a chunk.")
            body = decoded[0]
        return body, stop

    def _begin(self, response: Response, wait: float) -> None:
        self._response = response
        if wait > 0:
            self._timer = self._server.loop.call_later(wait, self._start)
        else:
            self._start()

    def _start(self) -> None:
        response = self._response
        assert response is not None
        self._timer = None
        self._sent = 0
        self._head = response.head()
        body = response.body
        size = len(body) if isinstance(body, bytes) else body.size
        self._cut = size // 2 if self._fault in ("truncated", "reset") else -1
        if isinstance(body, bytes):
            self._head += body if self._cut < 0 else body[: self._cut]
            self._rest = None
        else:
            size = size if self._cut < 0 else self._cut
            self._rest = FileRange(body.file, body.offset, size)
            options = self._server.options
            if size <= COPIED_BYTES and options.bandwidth == options.connection_bandwidth == 0:
                self._head += os.pread(body.file.descriptor, size, body.offset)
                self._sent = size
                self._rest = None
        self._send()

    def _send(self) -> None:
        self._timer = None
        try:
            while self._head:
                count = self._socket.send(self._head, socket.MSG_MORE if self._rest else 0)
                self._head = self._head[count:]
            while self._rest is not None and self._rest.size > 0:
                size = self._permitted(self._rest.size)
                if size == 0:
                    return
                count = os.sendfile(self._file, self._rest.file.descriptor, self._rest.offset, size)
                if count == 0:  # the file became shorter
                    self.close()
                    return
                self._sent += count
                self._allowed -= count
                self._rest = FileRange(self._rest.file, self._rest.offset + count, self._rest.size - count)
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._server.loop.add_writer(self._file, self._send)
            return
        except OSError:
            self.close()
            return
        self._finish()

    def _permitted(self, size: int) -> int:
        """Returns how many bytes may be sent now; with 0, sending goes on by a timer."""
        options = self._server.options
        if options.bandwidth == options.connection_bandwidth == 0:
            self._allowed = size
        if self._allowed > 0:
            return min(size, self._allowed)
        share = min(size, SHARED_BYTES)
        now = self._server.loop.time()
        wait = self._server.reserve(share)
        if options.connection_bandwidth:
            self._free_at = max(now, self._free_at) + share / options.connection_bandwidth
            wait = max(wait, self._free_at - now)
        self._allowed = share
        if wait <= 0.001:
            return share
        self._stop_writing()
        self._timer = self._server.loop.call_later(wait, self._send)
        return 0

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._server.loop.remove_writer(self._file)

    def _finish(self) -> None:
        response, self._response = self._response, None
        assert response is not None
        self._stop_writing()
        self._server.ended(response, self._sent)
        if self._cut >= 0:
            if self._fault == "reset":
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()
            return
        self._fault = None
        if self._received:
            self._server.loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self._file >= 0 and self._response is None:
            self._next_request()
