"""Datasets on web servers that fail, cut responses off, do not support ranges, or do not answer."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from energon_dali.errors import ShardError, StorageError, StoreUnavailableError
from energon_dali.shards import RawSample, RetryPolicy, ShardReader, StoragePath, WebdatasetFolder, prepare_dataset
from energon_dali.shards.storage import buckets, store
from energon_dali.shards.storage.store import ReadScope, read_scope
from tests.shards.failing_storage import FakeClock
from tests.shards.failing_storage import clock as clock
from tests.shards.tars import captions
from tests.shards.web_server import Web, serving

PLACES = [(shard, sample) for shard in range(3) for sample in range(4)]


@pytest.fixture(autouse=True)
def _own_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_stores", {})
    monkeypatch.setattr(buckets, "_buckets", {})


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    with serving(tmp_path) as server:
        yield server


def read(reader: ShardReader, places: list[tuple[int, int]] = PLACES) -> list[Any]:
    return reader.read([shard for shard, _ in places], [sample for _, sample in places])


def good(samples: list[Any]) -> list[str]:
    return [sample.key for sample in samples if isinstance(sample, RawSample)]


ALL = [f"s{shard}_{sample}" for shard, sample in PLACES]


def test_answers_that_are_cut_off_cost_no_sample(web: Web, clock: FakeClock) -> None:
    left = {"shard_0.tar": 1, "shard_2.tar": 2, "extents.bin": 1, ".info.json": 1}

    def cut(name: str) -> bool:
        left[name] = left.get(name, 0) - 1
        return left[name] >= 0

    web.cut = cut
    counts: dict[str, int] = {}
    lock = threading.Lock()

    def count(name: str, amount: int) -> None:
        with lock:
            counts[name] = counts.get(name, 0) + amount

    with read_scope(ReadScope(count=count)):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader)) == ALL
        reader.close()
    assert {name: n for name, n in counts.items() if name.startswith("retries")} == {f"retries.{web.url}": 5}
    assert counts["read_ahead.requests"] == 3, "one per shard"


def test_a_known_size_needs_no_request_to_open(web: Web) -> None:
    path = StoragePath.of(f"{web.url}/shard_0.tar")
    size = path.size()
    web.requests.clear()
    reader = path.open(size)
    assert not web.requests
    assert reader.read_at(size - 5, 10) == bytes(5)
    assert dict(web.requests) == {("GET", "shard_0.tar"): 1}
    with pytest.raises(StorageError, match=f"shard_0.tar changed since it was indexed: it has {size} bytes and had 9"):
        path.open(9).read_at(0, 5)


def test_connections_are_kept(web: Web) -> None:
    reader = ShardReader(WebdatasetFolder(web.url))
    for _ in range(10):
        assert good(read(reader)) == ALL
    reader.close()
    assert sum(web.requests.values()) > 30
    assert web.connections <= 16, "one per reading thread at most"


def test_one_shard_that_fails_for_ever_costs_one_budget_and_its_samples(web: Web, clock: FakeClock) -> None:
    with read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader, [(0, 0)])) == ["s0_0"]
        web.status = lambda method, path: 503 if path == "shard_1.tar" else None
        samples = read(reader, [(1, 0), (2, 0), (1, 1)])
        assert good(samples) == ["s2_0"]
        assert isinstance(samples[0], ShardError)
        assert f"{web.url}/shard_1.tar" in str(samples[0])
        assert web.requests["GET", "shard_1.tar"] == 5
        lookups = web.requests["GET", "extents.bin"]
        for sample in range(4):
            assert good(read(reader, [(1, sample)])) == []
            assert reader.name(1, sample) == ("shard_1.tar", f"s1_{sample}")
        assert web.requests["GET", "shard_1.tar"] == 5 + 4
        assert web.requests["GET", "extents.bin"] == lookups, "the index was asked again for names"
        reader.close()


def test_a_file_that_reads_again_has_a_whole_budget_again(web: Web, clock: FakeClock) -> None:
    left = 5

    def status(method: str, path: str) -> int | None:
        nonlocal left
        left -= path == "shard_1.tar"
        return 503 if path == "shard_1.tar" and left >= 0 else None

    with read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader, [(0, 0), (2, 0)])) == ["s0_0", "s2_0"]
        web.status = status
        assert good(read(reader, [(1, 0)])) == []
        assert good(read(reader, [(1, 1)])) == ["s1_1"]
        left = 4
        assert good(read(reader, [(1, 2)])) == ["s1_2"]
        reader.close()


def test_a_server_that_fails_for_ever_ends_the_run(web: Web, clock: FakeClock) -> None:
    # One request at a time: the clock of this test does not let pauses of several overlap.
    with read_scope(ReadScope(RetryPolicy(store_seconds=60), requests_in_flight=1)):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader, [(0, 0)])) == ["s0_0"]
        web.status, began = lambda method, path: 503, clock.time
        with pytest.raises(StoreUnavailableError, match=rf"from {web.url} for 6\d s.*503"):
            read(reader)
        assert clock.time - began < 70
        web.status = lambda method, path: None
        assert good(read(reader)) == ALL
        reader.close()


def test_a_server_that_fails_for_a_minute_costs_nothing(web: Web, clock: FakeClock) -> None:
    with read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader, [(0, 0)])) == ["s0_0"]
        end = clock.time + 60
        web.status = lambda method, path: 503 if clock.time < end else None
        assert good(read(reader)) == ALL
        reader.close()


def test_a_server_without_ranges_is_an_error_that_says_what_to_do(web: Web, clock: FakeClock) -> None:
    web.ranges = False
    reader = ShardReader(WebdatasetFolder(web.url))
    (error,) = read(reader, [(0, 0)])
    assert isinstance(error, ShardError)
    assert "the server does not answer range requests. Serve the files with one that does" in str(error)
    assert clock.pauses == []
    assert web.sent_bytes < 1 << 20, "no file is fetched whole for a range of it"
    reader.close()


def test_refusals_are_told_at_once(web: Web, clock: FakeClock) -> None:
    web.status = lambda method, path: 403
    with pytest.raises(StorageError, match=r"403 Forbidden.*Check the address, and that you may read it"):
        StoragePath.of(f"{web.url}/shard_0.tar").open()
    web.status = lambda method, path: 405
    with pytest.raises(StorageError, match=r"shard_0\.tar: .*405 Method Not Allowed"):
        StoragePath.of(f"{web.url}/shard_0.tar").open(10).read_at(0, 5)
    web.status = lambda method, path: 410 if path == "gone.tar" else None
    for name in ("gone.tar", "nothing.tar"):
        with pytest.raises(FileNotFoundError):
            StoragePath.of(f"{web.url}/{name}").open()
    assert clock.pauses == []
    assert web.requests["HEAD", "shard_0.tar"] == 1


def test_a_file_that_became_shorter_is_a_changed_shard(web: Web, tmp_path: Path) -> None:
    reader = ShardReader(WebdatasetFolder(web.url))
    assert good(read(reader, [(0, 0)])) == ["s0_0"]
    (tmp_path / "shard_0.tar").write_bytes((tmp_path / "shard_0.tar").read_bytes()[:3000])
    (error,) = read(reader, [(0, 3)])
    assert isinstance(error, ShardError)
    assert "changed since it was indexed" in str(error)
    reader.close()


def test_a_server_that_says_nothing_is_left(clock: FakeClock) -> None:
    policy = RetryPolicy(attempts=2, request_seconds=0.9)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.tar"
        with (
            read_scope(ReadScope(policy, outlasts_stores=False)),
            pytest.raises(StorageError, match=r"2 attempts.*[Tt]imed out"),
        ):
            StoragePath.of(url).open()


# --- https -----------------------------------------------------------------------------------------------------------


def _certified(folder: Path) -> ssl.SSLContext:
    """Returns the context of a server on localhost, with a certificate of an authority whose own is in `ca.pem`."""
    name = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in ("authority", "localhost")]
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in name]
    now = datetime.now(timezone.utc)
    for subject, key, is_authority in zip(name, keys, (True, False), strict=True):
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(name[0]).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        certificate = builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (folder / ("ca.pem" if is_authority else "server.pem")).write_bytes(certificate)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with (folder / "server.pem").open("ab") as file:
        file.write(keys[1].private_bytes(serialization.Encoding.PEM, *form))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


class _Redirecting(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target = ""

    def do_GET(self) -> None:
        self.send_response(302 if self.path.startswith("/moved") else 200)
        self.send_header("Content-Length", "0" if self.path.startswith("/moved") else "7")
        if self.path.startswith("/moved"):
            self.send_header("Location", self.target)
        self.end_headers()
        if not self.path.startswith("/moved"):
            self.wfile.write(b"content")

    def log_message(self, *args: object) -> None:
        """Logs nothing."""


def test_https_needs_a_certificate_and_is_never_left_for_http(
    web: Web, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Redirecting) as server:
        server.daemon_threads = True
        server.socket = _certified(tmp_path).wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            url = f"https://localhost:{server.server_address[1]}"
            with pytest.raises(StorageError, match=r"Could not reach https://localhost:\d+/x: .*Check the address"):
                StoragePath.of(f"{url}/x").read_bytes()
            monkeypatch.setattr(buckets, "_buckets", {})
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            assert StoragePath.of(f"{url}/x").read_bytes() == b"content"
            for _Redirecting.target in (f"{web.url}/shard_0.tar", f"{web.url}/shard_0.tar?signature=secret"):
                with pytest.raises(StorageError, match=r"/moved: the server redirects it to an address that is not"):
                    StoragePath.of(f"{url}/moved").read_bytes()
            _Redirecting.target = f"{url.replace('localhost', 'LOCALHOST')}/y"
            assert StoragePath.of(f"{url}/moved").read_bytes() == b"content"
        finally:
            server.shutdown()
            thread.join()
    assert sum(web.requests.values()) == 0, "nothing was sent by http"


def test_a_query_which_may_be_a_signature_goes_to_no_other_host(web: Web) -> None:
    arrived = []

    class Elsewhere(_Redirecting):
        target = f"{web.url}/.nv-meta/.info.json"

        def do_GET(self) -> None:
            arrived.append(self.path)
            super().do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            url = f"http://localhost:{server.server_address[1]}"
            assert StoragePath.of(f"{url}/x%20y?signature=a%2Fb").read_bytes() == b"content"
            assert b"shard_counts" in StoragePath.of(f"{url}/moved").read_bytes()
            web.requests.clear()
            with pytest.raises(StorageError, match=r"the server redirects it to .* from an address with a query"):
                StoragePath.of(f"{url}/moved?signature=secret").read_bytes()
        finally:
            server.shutdown()
            thread.join()
    assert arrived == ["/x%20y?signature=a%2Fb", "/moved", "/moved?signature=secret"]
    assert sum(web.requests.values()) == 0


def test_what_keeps_connections_is_bounded(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_MOST_BUCKETS", 2)
    for number in range(5):
        assert StoragePath.of(f"{web.url}/shard_0.tar?{number}").size() > 0
    assert [name for _, name, _ in buckets._buckets] == [f"{web.url.removeprefix('http://')}?{n}" for n in (3, 4)]


def test_a_proxy_of_the_environment_is_used(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", web.url)
    with pytest.raises(FileNotFoundError):
        StoragePath.of("http://somewhere.invalid/deep/nothing.tar").size()
    assert ("HEAD", "nothing.tar") in web.requests
