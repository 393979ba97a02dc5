"""An S3 server over a local folder, for tests and benchmarks: `python -m benchmarks.remote.s3_server FOLDER`.

It has the operations that readers and writers of datasets use, accepts every signature, and can be slow and faulty on
purpose. It counts requests, bytes and its own processor time, which a benchmark on the same cores has to deduct.

    with S3Server(folder, latency_seconds=0.02) as server:
        os.environ.update(server.environment())  # AWS_ENDPOINT_URL and the keys
        ...                                      # s3://BUCKET/KEY is the file FOLDER/BUCKET/KEY
        print(server.counters())
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.remote.bucket_folder import BucketFolder
from benchmarks.remote.http_connection import Connection
from benchmarks.remote.messages import Request, RequestError, Response
from benchmarks.remote.s3_service import S3Service
from benchmarks.remote.server_options import Fault, ServerOptions

ROOT = Path(__file__).resolve().parents[2]
ACCESS_KEY = "benchmark"


class S3Server:
    """Runs the server in a process of its own, which ends with the block, or with this process.

    Args:
        folder: Its subfolders are the buckets; it is made if it does not exist.
        options: Fields of `ServerOptions`.

    Raises:
        RuntimeError: The server does not start.
    """

    def __init__(self, folder: Path | str, **options: Any) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._options = dataclasses.asdict(ServerOptions(**options))
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> S3Server:
        command = [sys.executable, "-m", "benchmarks.remote.s3_server", str(self.folder.resolve()), "--with-parent"]
        self._process = subprocess.Popen(
            [*command, "--options", json.dumps(self._options)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.close()
            raise RuntimeError(f"The S3 server did not start: {' '.join(command)}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def close(self) -> None:
        """Ends the server; again, it does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def environment(self, access_key: str = ACCESS_KEY) -> dict[str, str]:
        """Returns the variables that lead clients of AWS here."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def counters(self) -> dict[str, Any]:
        """Returns what was counted since the start or `reset`; see `_Counters`."""
        found: dict[str, Any] = self._control("counters")
        return found

    def reset(self) -> None:
        """Sets the counters to zero."""
        self._control("reset", {})

    def configure(self, **options: Any) -> None:
        """Changes fields of `ServerOptions`; requests from now on follow them.

        Raises:
            urllib.error.HTTPError: One of them is unknown or wrong.
        """
        self._control("configure", options)

    def _control(self, name: str, document: dict[str, Any] | None = None) -> Any:
        content = None if document is None else json.dumps(document).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/-/{name}", data=content, timeout=30) as answer:
            return json.load(answer)


class _Counters:
    """Counts requests and bytes, and integrates the number of requests in flight over time."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.bytes_by_suffix: Counter[str] = Counter()
        self.requests_by_suffix: Counter[str] = Counter()
        self.bytes_sent = 0
        self.bytes_received = 0
        self.connections = 0
        self.most_in_flight = 0
        self.busy_seconds = 0.0
        self.request_seconds = 0.0
        self.started_cpu = time.process_time()

    def report(self, in_flight: int) -> dict[str, Any]:
        return {
            "requests": dict(self.requests),
            "statuses": dict(self.statuses),
            "faults": dict(self.faults),
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "bytes_by_suffix": dict(self.bytes_by_suffix),
            "requests_by_suffix": dict(self.requests_by_suffix),
            "connections": self.connections,
            "in_flight": in_flight,
            "most_in_flight": self.most_in_flight,
            "busy_seconds": self.busy_seconds,
            "request_seconds": self.request_seconds,
            "mean_in_flight": self.request_seconds / self.busy_seconds if self.busy_seconds else 0.0,
            "cpu_seconds": time.process_time() - self.started_cpu,
        }


class _ServerProcess:
    """The server itself.

    Args:
        folder: Its subfolders are the buckets.
        options: How it behaves.
    """

    def __init__(self, folder: Path, options: ServerOptions) -> None:
        self.loop = asyncio.new_event_loop()
        self.options = options
        self._service = S3Service(BucketFolder(folder))
        self._counters = _Counters()
        self._connections: set[Connection] = set()
        self._in_flight = 0
        self._changed_at = self.loop.time()
        self._free_at = 0.0
        self._repetitions: Counter[bytes] = Counter()
        self._accepted_keys: set[str] = set(options.access_keys)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)

    def run(self, *, with_parent: bool) -> None:
        """Serves until the process is ended, or standard input is closed."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.loop.add_reader(self._listener, self._accept)
        if with_parent:
            self.loop.add_reader(sys.stdin.fileno(), self.loop.stop)
        self.loop.add_signal_handler(signal.SIGTERM, self.loop.stop)
        print(f"http://127.0.0.1:{self._listener.getsockname()[1]}", flush=True)
        self.loop.run_forever()

    def _accept(self) -> None:
        for _ in range(64):
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._counters.connections += 1
            self._connections.add(Connection(self, client))

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def begun(self, request: Request, target: bytes) -> Fault | None:
        """Counts a request that has arrived, and returns its fault."""
        self._change_in_flight(1)
        self._counters.bytes_received += len(request.body)
        if not self.options.has_faults:
            return None
        identity = b"%b %b %b" % (request.method.encode(), target, request.headers.get(b"range", b""))
        fault = self.options.fault(identity, self._repetitions[identity])
        self._repetitions[identity] += 1
        if fault is not None:
            self._counters.faults[fault] += 1
        return fault

    def ended(self, response: Response, sent: int) -> None:
        """Counts a response that was sent, or given up."""
        if response.kind == "control":
            return
        self._change_in_flight(-1)
        counters = self._counters
        counters.requests[response.kind] += 1
        counters.statuses[str(response.status)] += 1
        sent = sent or (len(response.body) if isinstance(response.body, bytes) else 0)
        counters.bytes_sent += sent
        if response.suffix:
            counters.bytes_by_suffix[response.suffix] += sent
            counters.requests_by_suffix[response.suffix] += 1

    def _change_in_flight(self, change: int) -> None:
        now = self.loop.time()
        if self._in_flight:
            self._counters.busy_seconds += now - self._changed_at
            self._counters.request_seconds += (now - self._changed_at) * self._in_flight
        self._changed_at = now
        self._in_flight += change
        self._counters.most_in_flight = max(self._counters.most_in_flight, self._in_flight)

    def reserve(self, size: int) -> float:
        """Returns how long to wait before bytes may be sent; they count as sent then."""
        if self.options.bandwidth == 0:
            return 0.0
        now = self.loop.time()
        wait = max(0.0, self._free_at - now)
        self._free_at = max(now, self._free_at) + size / self.options.bandwidth
        return wait

    def answer(self, request: Request) -> Response:
        """Returns the response to a request."""
        if request.path.startswith("/-/"):
            return self._answer_control(request)
        if self.options.access_keys and request.access_key not in self.options.access_keys:
            if request.access_key in self._accepted_keys:
                error = RequestError(400, "ExpiredToken", "The provided token has expired.")
            elif request.access_key:
                error = RequestError(403, "InvalidAccessKeyId", f"There is no access key {request.access_key!r}.")
            else:
                error = RequestError(403, "AccessDenied", "The request is not signed.")
            return error.response(request.method, has_body=request.method != "HEAD")
        return self._service.answer(request)

    def _answer_control(self, request: Request) -> Response:
        found: Any = {}
        try:
            if request.path == "/-/counters":
                found = self._counters.report(self._in_flight)
            elif request.path == "/-/reset":
                self._counters = _Counters()
                self._changed_at = self.loop.time()
            elif request.path == "/-/configure":
                self.options = self.options.changed(json.loads(request.body))
                self._accepted_keys.update(self.options.access_keys)
                self._repetitions.clear()
            else:
                raise ValueError(f"There is no path {request.path!r}.")
        except (TypeError, ValueError) as error:
            return RequestError(400, "InvalidArgument", str(error)).response("control")
        return Response("control", 200, b"Content-Type: application/json\r\n", json.dumps(found).encode())


def main(arguments: list[str] | None = None) -> None:
    """Serves a folder, and prints the URL."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote.s3_server", description=__doc__)
    parser.add_argument("folder", type=Path, help="its subfolders are the buckets")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input is closed")
    parser.add_argument("--options", default="{}", help="fields of ServerOptions as JSON")
    options = parser.parse_args(arguments)
    chosen = ServerOptions().changed(json.loads(options.options))
    _ServerProcess(options.folder, chosen).run(with_parent=options.with_parent)


if __name__ == "__main__":
    main()
