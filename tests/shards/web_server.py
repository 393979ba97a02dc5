"""A local web server for tests: counts requests, connections and bytes, and fails on demand."""

from __future__ import annotations

import http.server
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any


class Web:
    """What the server does, and which requests it received.

    Attributes:
        ranges: Whether it answers range requests.
        status: Gives the status of a request in place of 200 or 206, by (method, path); None for these.
        cut: Says whether the body of a GET is cut in the middle, by path.
        nonsense: Gives bytes that are sent in place of a response, by path; None for none.
    """

    def __init__(self) -> None:
        self.url = ""
        self.ranges = True
        self.status: Callable[[str, str], int | None] = lambda method, path: None
        self.cut: Callable[[str], bool] = lambda path: False
        self.nonsense: Callable[[str], bytes | None] = lambda path: None
        self.requests: Counter[tuple[str, str]] = Counter()
        self.connections = 0
        self.sent_bytes = 0
        self.counting = threading.Lock()


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, web: Web, *args: Any, **options: Any) -> None:
        self.web = web
        with web.counting:
            web.connections += 1
        super().__init__(*args, **options)

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        self._answer(path.read_bytes() if path.is_file() else b"")

    def _answer(self, data: bytes) -> None:
        web, path = self.web, Path(self.translate_path(self.path))
        with web.counting:
            web.requests[self.command, path.name] += 1
        nonsense = web.nonsense(path.name)
        if nonsense is not None:
            self.wfile.write(nonsense)
            self.close_connection = True
            return
        status = web.status(self.command, path.name) or (200 if path.is_file() else 404)
        wanted = self.headers.get("Range")
        if status != 200:
            data = b""
        elif wanted and web.ranges:
            status = 206
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            content_range = f"bytes {wanted.removeprefix('bytes=')}/{len(data)}"
            data = data[int(first) : int(last) + 1]
        size = path.stat().st_size if self.command == "HEAD" and status == 200 else len(data)
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        if status == 206:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command == "GET" and data and web.cut(path.name):
            data = data[: len(data) // 2]
            self.close_connection = True
        for start in range(0, len(data), 1 << 16):
            try:
                self.wfile.write(data[start : start + (1 << 16)])
            except OSError:  # the reader hung up
                self.close_connection = True
                return
            with web.counting:
                web.sent_bytes += len(data[start : start + (1 << 16)])

    def log_message(self, *args: object) -> None:
        """Logs nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[Web]:
    """Serves a folder; yields the server."""
    web = Web()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, web, directory=str(folder))) as server:
        server.daemon_threads = True
        web.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()
