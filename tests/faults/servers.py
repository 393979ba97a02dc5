"""Servers that cut off, stall, refuse or forget: every sample arrives while requests succeed within their budget."""

from __future__ import annotations

import http.client
import http.server
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from energon_dali.shards import RawSample, ShardReader, WebdatasetFolder, prepare_dataset
from energon_dali.shards.storage import retry
from tests.faults.campaign import Campaign, Case, Lost, Outcome
from tests.shards.tars import captions


class UnluckyServer(http.server.ThreadingHTTPServer):
    """A proxy of a good server: some of its responses are cut off, late or errors, or the connection is reset."""

    daemon_threads = True

    def __init__(self, upstream: str, random: Random) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.random = random
        self.faults = 0
        self.row = 0
        self.lock = threading.Lock()
        self.connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accepts and records a connection, because clients keep it open after the case ends."""
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def draw(self) -> str:
        """Returns the next fault of a response, "" for none; never more than two in a row."""
        with self.lock:
            if self.random.random() < 0.25 and self.row < 2:
                self.row += 1
                self.faults += 1
                return self.random.choice(("cut", "slow", "503", "500", "reset", "429"))
            self.row = 0
            return ""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnect."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: UnluckyServer

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        fault = self.server.draw()
        if fault in ("503", "500", "429"):
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            self.close_connection = True
            return
        good = http.client.HTTPConnection(self.server.upstream, timeout=30)
        good.request(self.command, self.path, headers=dict(self.headers))
        reply = good.getresponse()
        content = reply.read()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        self.end_headers()
        good.close()
        if fault == "slow":
            for part in (content[: len(content) // 2], content[len(content) // 2 :]):
                self.wfile.write(part)
                self.wfile.flush()
                time.sleep(0.01)
            return
        self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
        if fault == "cut":
            self.wfile.flush()
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


class _RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files by ranges."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(content[start:stop])

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


@contextmanager
def serving(upstream: str, random: Random) -> Iterator[UnluckyServer]:
    """Runs an unlucky server in front of a good one while the block runs."""
    server = UnluckyServer(upstream, random)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        for connection in server.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()


def read_all(url: str, expected: dict[str, dict[str, bytes]], random: Random) -> None:
    """Reads every sample, in a random order and in several requests.

    Raises:
        Lost: A sample did not arrive as it is.
    """
    folder = WebdatasetFolder(url)
    reader = ShardReader(folder)
    positions = [(shard, n) for shard, count in enumerate(folder.shard_counts) for n in range(count)]
    random.shuffle(positions)
    found = {}
    try:
        for start in range(0, len(positions), 5):
            chunk = positions[start : start + 5]
            for position, sample in zip(
                chunk, reader.read([shard for shard, _ in chunk], [n for _, n in chunk]), strict=True
            ):
                if not isinstance(sample, RawSample):
                    raise Lost(f"{url}: {position} is {type(sample).__name__}: {str(sample)[:300]}")
                found[sample.key] = {name: bytes(content) for name, content in sample.parts.items()}
    finally:
        reader.close()
    if found != expected:
        raise Lost(f"{url}: {sorted(set(expected) ^ set(found))} differ")


def prepare_http(folder: Path) -> Case:
    """Serves a dataset by HTTP."""
    expected = captions(folder / "set", shards=3, samples=4)
    prepare_dataset(folder / "set")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_RangeHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    upstream = f"127.0.0.1:{server.server_address[1]}"
    return _case(upstream, expected, "http")


def prepare_s3(folder: Path) -> Case:
    """Serves a dataset by S3."""
    import boto3
    from moto.server import ThreadedMotoServer

    expected = captions(folder / "set", shards=3, samples=4)
    prepare_dataset(folder / "set")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket="data")
    for path in (folder / "set").rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "data", f"set/{path.relative_to(folder / 'set')}")
    client.close()
    return _case(f"{host}:{port}", expected, "s3")


def _case(upstream: str, expected: dict[str, dict[str, bytes]], scheme: str) -> Case:
    logging.disable(logging.ERROR)
    retry.FIRST_PAUSE_SECONDS = 0.0

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        with serving(upstream, random) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            if scheme == "s3":
                os.environ["AWS_ENDPOINT_URL"] = address
            while not server.faults:  # a few large requests may all be answered
                read_all("s3://data/set" if scheme == "s3" else f"{address}/set", expected, random)
            return Outcome(tried=server.faults, survived=server.faults)

    return case


HTTP = Campaign("failing web servers", 60, prepare_http, cases_per_child=30, warm_cases=2)
S3 = Campaign("failing object stores", 40, prepare_s3, cases_per_child=20, warm_cases=2)
