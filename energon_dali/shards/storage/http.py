"""Files on web servers, read by range requests."""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
import threading
import urllib.request
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError
from urllib3.exceptions import SSLError as UrllibSSLError

from energon_dali.errors import StorageError
from energon_dali.shards.storage.local import Descriptor
from energon_dali.shards.storage.remote_reader import RemoteReader
from energon_dali.shards.storage.retry import with_retries
from energon_dali.shards.storage.store import PROBE_BYTES, changed_text, clock, current_scope, store_of

COPIED_BYTES = 16 << 30
"""Limit of the copies that a process keeps on disk of files whose servers do not answer range requests."""

_CONNECTIONS = 64
"""Number of connections that are kept open per server."""
_SLOWEST_BYTES_PER_SECOND = 50_000
"""A response that is slower has failed."""
_CHUNK_BYTES = 256 << 10
_TEXT_CHARS = 300
"""Longer messages are cut: they may quote what a server sent."""
_FOLLOWED_REDIRECTS = 5

_log = logging.getLogger(__name__)


class HttpReader(RemoteReader):
    """A file on a web server, read by ranges over persistent connections. Thread-safe.

    If the server does not answer range requests, the file is fetched once and read from a copy on disk.

    Args:
        url: Its URL.
        size: Its size in bytes; None asks the server.

    Raises:
        FileNotFoundError: There is no such file.
        StorageError: The server does not answer, or refuses.
    """

    def __init__(self, url: str, size: int | None = None) -> None:
        super().__init__(url, HttpBackend().size(url) if size is None else size)

    def _fetch(self, offset: int, size: int) -> bytes:
        """Makes one attempt."""
        server = _server_of(self.url)
        if server.has_ranges is None:
            # One thread finds out first, or several would each start to fetch a whole file.
            with server.lock:
                return self._fetch_range(server, offset, size)
        return self._fetch_range(server, offset, size)

    def _fetch_range(self, server: _Server, offset: int, size: int) -> bytes:
        if server.has_ranges is False:
            return _copies.read_at(self.url, self.size, offset, size)
        response = _request("GET", self.url, {"Range": f"bytes={offset}-{offset + size - 1}"})
        if response.status == 200:
            response.close()  # the body would be the whole file
            length = response.headers.get("Content-Length", "")
            if length.isdigit() and int(length) != self.size:
                raise ConnectionError(f"the server sent a document of {length} bytes instead of the range")
            if server.has_ranges is None:
                server.has_ranges = False
                _log.warning(
                    "%s does not answer range requests. Each file is fetched whole, once per process, into %s (up to "
                    "%d GiB per process). Serve the files with a server that does, such as nginx or Apache, or copy "
                    "them to a local disk.",
                    server.name,
                    tempfile.gettempdir(),
                    COPIED_BYTES >> 30,
                )
            return _copies.read_at(self.url, self.size, offset, size)
        if response.status == 416:  # the file has become shorter
            response.close()
            return b""
        content_range = response.headers.get("Content-Range", "")
        found, _, total = content_range.rpartition("/")
        if total.isdigit() and int(total) != self.size:
            response.close()
            raise StorageError(changed_text(self.url, int(total), self.size))
        if found != f"bytes {offset}-{offset + size - 1}":
            response.close()
            sent = f"those of {content_range!r}" if content_range else "a range without a Content-Range"
            raise ConnectionError(f"bytes {offset} to {offset + size} were requested, and the server sent {sent}")
        server.has_ranges = True
        return _read_body(response, size)

    def _probe(self, offset: int) -> None:
        """Reads a little; raises if that fails."""
        server = _server_of(self.url)
        if server.has_ranges:
            self._fetch_range(server, offset, min(PROBE_BYTES, self.size - offset))
        else:  # a copy on disk shows nothing
            _request("GET", self.url, {"Range": f"bytes={offset}-{offset}"}).close()


class HttpBackend:
    """Files on web servers."""

    def open(self, url: str, size: int | None = None) -> HttpReader:
        return HttpReader(url, size)

    def read_bytes(self, url: str, max_bytes: int | None = None) -> bytes:
        return with_retries(lambda: _read_body(_request("GET", url, {}), max_bytes=max_bytes), "read", url)

    def size(self, url: str) -> int:
        return self.identity(url)[0]

    def identity(self, url: str) -> tuple[int, str]:
        def ask() -> tuple[int, str]:
            response = _request("HEAD", url, {})
            response.drain_conn()
            response.release_conn()
            length = response.headers.get("Content-Length")
            if length is None or not length.isdigit():
                raise StorageError(
                    f"Could not look at {url}: the server does not say how large it is (Content-Length). Serve it "
                    "with a server that does, or copy it to a local disk."
                )
            tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            return int(length), tag

        return with_retries(ask, "look at", url)

    def is_dir(self, url: str) -> bool:
        return True  # a web server has no folders; files below are requested by name

    def list_files(self, url: str) -> list[str]:
        raise StorageError(
            f"{url} cannot be listed: http has no folders. Prepare the dataset where its files are stored, then serve "
            "it."
        )

    def write_bytes(self, url: str, content: bytes) -> None:
        raise StorageError(
            f"{url} cannot be written: http is read only. Prepare the dataset where its files are stored, then serve "
            "it."
        )

    def write_file(self, url: str, local: str) -> None:
        self.write_bytes(url, b"")

    def remove(self, url: str) -> None:
        self.write_bytes(url, b"")


class _Server:
    """What is known about one web server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_ranges: bool | None = None
        """Whether it answers range requests; None before the first one."""
        self.lock = threading.Lock()


class _Copies:
    """Unlinked copies of whole files on disk: as many of the most recent ones as the limit allows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: OrderedDict[str, tuple[Descriptor, int]] = OrderedDict()
        self._file_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def read_at(self, url: str, size: int, offset: int, count: int) -> bytes:
        """Returns a range of a file, which is fetched if there is no copy yet.

        Args:
            url: The file.
            size: Its size in bytes.
            offset: First byte.
            count: Number of bytes.
        """
        with self._lock:
            file_lock = self._file_locks[url]
        with file_lock:  # other threads that need this file wait for it
            with self._lock:
                copy = self._copies.get(url)
            if copy is None or copy[1] != size:
                copy = _fetch_whole(url, size), size
                self._keep(url, copy)
        with self._lock:
            if url in self._copies:
                self._copies.move_to_end(url)
        return os.pread(copy[0].fd, count, offset)

    def _keep(self, url: str, copy: tuple[Descriptor, int]) -> None:
        with self._lock:
            self._copies[url] = copy
            while len(self._copies) > 1 and sum(size for _, size in self._copies.values()) > COPIED_BYTES:
                oldest, _ = self._copies.popitem(last=False)  # the space is freed when its last reader is done
                self._file_locks.pop(oldest, None)


def _fetch_whole(url: str, size: int) -> Descriptor:
    """Fetches a whole file into an unlinked file on disk.

    Raises:
        ConnectionError: The response is incomplete.
        StorageError: There is no room for it.
    """
    try:
        with tempfile.TemporaryFile(prefix="energon-dali-") as file:
            written = 0

            def write(chunk: bytes) -> None:
                nonlocal written
                file.write(chunk)
                written += len(chunk)

            _read_chunks(_request("GET", url, {}), size, write)
            if written != size:
                raise ConnectionError(f"the response ended after {written} of {size} bytes")
            file.flush()
            return Descriptor(os.dup(file.fileno()))
    except OSError as error:
        if isinstance(error, (ConnectionError, TimeoutError, FileNotFoundError)):
            raise
        raise StorageError(
            f"A copy of {url} ({size} bytes) could not be kept in {tempfile.gettempdir()}: {error}. Its server does "
            "not answer range requests, so the whole file is needed. Set TMPDIR to a folder with more room, or serve "
            "the file with a server that answers range requests."
        ) from error


def _request(method: str, url: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
    """Returns a response with status 200, 206 or 416, whose body is still to be read.

    Raises:
        FileNotFoundError: There is no such file.
        ConnectionError: The server did not answer, or is not available now.
        StorageError: It refuses the request.
    """
    address = url
    for _ in range(_FOLLOWED_REDIRECTS + 1):
        response = _send(method, address, headers)
        location = response.get_redirect_location()
        if not location:
            break
        _read_body(response, max_bytes=_CHUNK_BYTES)  # the connection can be reused, unless the body is long
        address = _redirected(url, address, location)
    else:
        raise StorageError(
            f"Could not read {url}: the server redirects it more than {_FOLLOWED_REDIRECTS} times. Check the address."
        )
    if response.status in (200, 206, 416):
        return response
    response.drain_conn()
    response.release_conn()
    said = f"{response.status} {response.reason}"
    if response.status in (404, 410):
        raise FileNotFoundError(f"{url}: {said}")
    if response.status in (408, 425, 429) or response.status >= 500:
        raise ConnectionError(said)
    raise StorageError(
        f"Could not read {url}: the server answered {said}. Check the address, and that you may read it."
    )


def _send(method: str, address: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
    """Returns the response to one request, whatever its status.

    Raises:
        ConnectionError: The server did not answer.
        StorageError: The address is wrong, or the certificate of the server.
    """
    try:
        return _connections_to(address).request(
            method,
            address,
            headers=headers,
            preload_content=False,
            decode_content=False,
            timeout=max(0.1, current_scope().policy.request_seconds / 3),
            retries=False,
            redirect=False,
        )
    except HTTPError as error:
        raise _translated(error) from error


def _redirected(url: str, address: str, location: str) -> str:
    """Returns where a redirect leads.

    Args:
        url: What was asked for, for messages.
        address: What the server answered for.
        location: The header of its response.

    Raises:
        StorageError: It leads from https to http, or to something else than a web server, or is not a URL.
    """
    try:
        following = urljoin(address, location)
    except ValueError as error:
        raise StorageError(
            f"Could not read {url}: the server redirects it to {location[:_TEXT_CHARS]!r}, which is not a URL: "
            f"{error}. Check the address."
        ) from error
    before, after = urlsplit(address).scheme, urlsplit(following).scheme
    if after not in ("http", "https") or (before, after) == ("https", "http"):
        raise StorageError(
            f"Could not read {url}: the server redirects it from {before} to {after}, which is not followed. Give an "
            f"address that is served by {before}."
        )
    return following


def _read_body(response: urllib3.BaseHTTPResponse, size: int | None = None, *, max_bytes: int | None = None) -> bytes:
    """Returns the body of a response; of one larger than `max_bytes`, its first `max_bytes` + 1 bytes.

    Raises:
        ConnectionError: It is incomplete.
        TimeoutError: It is too slow.
    """
    chunks: list[bytes] = []
    _read_chunks(response, size or 0, chunks.append, max_bytes)
    data = b"".join(chunks)
    if max_bytes is not None:
        return data[: max_bytes + 1]
    if size is not None and len(data) != size:
        raise ConnectionError(f"the response ended after {len(data)} of {size} bytes")
    return data


def _read_chunks(
    response: urllib3.BaseHTTPResponse, size: int, write: Callable[[bytes], object], max_bytes: int | None = None
) -> None:
    """Passes the body of a response on, chunk by chunk; the connection can be reused afterwards.

    Ends after more than `max_bytes`.
    """
    last = clock.now() + current_scope().policy.request_seconds + size / _SLOWEST_BYTES_PER_SECOND
    passed = 0
    try:
        while chunk := response.read1(_CHUNK_BYTES):  # what has arrived: `read` would wait for all of it
            write(chunk)
            passed += len(chunk)
            if max_bytes is not None and passed > max_bytes:
                response.close()  # the rest of the body is still to come
                return
            if clock.now() > last:
                raise TimeoutError("the response is too slow")
        response.release_conn()
    except HTTPError as error:
        response.close()
        raise _translated(error) from error
    except BaseException:
        response.close()
        raise


def _translated(error: HTTPError) -> Exception:
    """Returns an error of urllib3 as one that `with_retries` handles."""
    if isinstance(error, LocationValueError):
        return StorageError(f"{error}. Check the address.")
    if isinstance(error, UrllibSSLError) and any(isinstance(a, ssl.SSLCertVerificationError) for a in error.args):
        return StorageError(f"The certificate of the server cannot be trusted: {error}. Check the address.")
    text = str(error)
    return ConnectionError(text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]} ...")


def _connections_to(url: str) -> urllib3.PoolManager:
    """Returns the connection pool of this process, through the proxy that the environment sets for this URL."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is not None and urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        proxy = None
    manager = _managers.get(proxy)
    if manager is None:
        if proxy is None:
            manager = urllib3.PoolManager(maxsize=_CONNECTIONS)
        else:
            manager = urllib3.ProxyManager(proxy if "://" in proxy else f"http://{proxy}", maxsize=_CONNECTIONS)
        manager = _managers.setdefault(proxy, manager)
    return manager


def _server_of(url: str) -> _Server:
    name = store_of(url).name
    return _servers.get(name) or _servers.setdefault(name, _Server(name))


_managers: dict[str | None, urllib3.PoolManager] = {}
_servers: dict[str, _Server] = {}
_copies = _Copies()


def _after_fork() -> None:
    """Leaves connections and locks to the parent; the child creates its own."""
    global _copies
    _managers.clear()
    _servers.clear()
    _copies = _Copies()


os.register_at_fork(after_in_child=_after_fork)
