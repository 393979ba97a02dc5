"""Object stores through obstore and multi-storage-client: reading, writing, settings, credentials, failures, forks."""

from __future__ import annotations

import errno
import gc
import http.server
import json
import multiprocessing
import os
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import unquote

import pytest

from benchmarks.remote.s3_server import S3Server
from energon_dali.errors import StorageError, StoreUnavailableError
from energon_dali.shards import StoragePath
from energon_dali.shards.storage import access, aws, buckets, msc, objects, retry, storage_in_use
from energon_dali.shards.storage.store import ReadScope, RetryPolicy, read_scope
from tests.shards.failing_storage import FakeClock
from tests.shards.failing_storage import clock as clock

CONTENT = bytes(range(256)) * 2000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("buckets")
    (folder / "data" / "deep").mkdir(parents=True)
    with S3Server(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def s3(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server as only its environment names it: no files of the AWS tools, no multi-storage-client."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MSC_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(buckets, "_buckets", {})
    (server.folder / "data" / "shard.tar").write_bytes(CONTENT)
    server.configure(latency_seconds=0.0, fault_503=0.0, fault_truncated=0.0, fault_reset=0.0, access_keys=[])
    server.reset()
    return server


@contextmanager
def answering(answer: Callable[[str, str, str], tuple[int, str, dict[str, str]]]) -> Iterator[str]:
    """Serves what `answer` returns for (method, path, Authorization): status, body, headers. Yields the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body, headers = answer(self.command, self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(body)),
                "ETag": '"tag"',
                "Last-Modified": "Sun, 22 Nov 2026 10:00:00 GMT",
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_HEAD = do_PUT = do_GET

        def log_message(self, *args: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        web.daemon_threads = True
        thread = threading.Thread(target=web.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_address[1]}"
        finally:
            web.shutdown()
            thread.join()


def refusal(status: int, code: str, more: str = "") -> tuple[int, str, dict[str, str]]:
    return status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message>{more}</Error>", {}


# --- reading and writing ---------------------------------------------------------------------------------------------


def test_a_known_size_needs_no_request_to_open(s3: S3Server) -> None:
    path = pickle.loads(pickle.dumps(StoragePath.of("s3://data/shard.tar")))
    reader = path.open(len(CONTENT))
    assert s3.counters()["requests"] == {}
    assert reader.read_at(1000, 50) == CONTENT[1000:1050]
    assert reader.read_at(len(CONTENT) - 10, 50) == CONTENT[-10:]
    assert reader.read_at(len(CONTENT), 50) == b""
    assert set(s3.counters()["requests"]) == {"GET"}
    opened = path.open()
    assert opened.size == len(CONTENT)
    assert s3.counters()["requests"] == {"GET": 2, "HEAD": 1}


def test_threads_share_connections(s3: S3Server) -> None:
    reader = StoragePath.of("s3://data/shard.tar").open(len(CONTENT))
    with ThreadPoolExecutor(64) as pool:
        read = list(pool.map(lambda start: reader.read_at(start, 100), range(0, 40_000, 50)))
    assert read == [CONTENT[start : start + 100] for start in range(0, 40_000, 50)]
    assert s3.counters()["connections"] < 400  # threads that begin at once may open a few more than they need
    before = s3.counters()["connections"]
    for start in range(20):
        StoragePath.of("s3://data/shard.tar").open(len(CONTENT)).read_at(start, 10)
    assert s3.counters()["connections"] <= before + 2


def test_writes_lists_copies_and_removes(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = StoragePath.of("s3://data/new set")
    assert not root.is_dir()
    assert root.list_files() == []
    names = ["a b+c&ü#.json", "deep/er/x.tar", "empty"]
    for name in names:
        (root / name).write_bytes(name.encode() if name != "empty" else b"")
    assert root.is_dir()
    assert not StoragePath.of("s3://data/new").is_dir()  # a prefix of the name is not a folder
    assert root.list_files() == names
    assert "new set/empty" in StoragePath.of("s3://data").list_files()
    assert [(root / name).read_bytes() for name in names] == [names[0].encode(), names[1].encode(), b""]
    assert (root / names[0]).size() == len(names[0].encode())
    assert not (root / "deep").is_file()
    assert (root / "nothing").read_if_there() is None
    with pytest.raises(FileNotFoundError, match="nothing"):
        (root / "nothing").open()
    with pytest.raises(FileNotFoundError, match="nothing"):
        (root / "nothing").open(10).read_at(0, 5)

    monkeypatch.setattr(objects, "_PART_BYTES", 5 << 20)  # the smallest that S3 allows
    (tmp_path / "large").write_bytes(os.urandom((11 << 20) + 7))
    s3.reset()
    (root / "large").write_file(tmp_path / "large")
    assert s3.counters()["bytes_received"] >= 11 << 20
    (root / "large").copy_to(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "large").read_bytes()
    content = (tmp_path / "large").read_bytes()
    assert (root / "large").read_bytes(max_bytes=1000) == content[:1001]
    assert (root / "large").read_bytes(max_bytes=len(content)) == content
    monkeypatch.setattr(objects, "PIECE_BYTES", 4 << 20)
    assert (root / "large").read_bytes() == (tmp_path / "large").read_bytes()
    for name in [*names, "large", "large"]:
        (root / name).remove()
    assert root.list_files() == []


def test_an_object_of_another_size_is_an_error(s3: S3Server) -> None:
    path = StoragePath.of("s3://data/shard.tar")
    reader = path.open(len(CONTENT))
    (s3.folder / "data" / "shard.tar").write_bytes(CONTENT + b"more")
    with pytest.raises(StorageError, match=rf"shard.tar changed since it was indexed: it has {len(CONTENT) + 4} bytes"):
        reader.read_at(0, 10)
    (s3.folder / "data" / "shard.tar").write_bytes(CONTENT[:100])
    for start in (50, 5000):
        with pytest.raises(StorageError, match=f"it has 100 bytes and had {len(CONTENT)}"):
            reader.read_at(start, 100)


def test_wrong_names_are_errors() -> None:
    with pytest.raises(StorageError, match="has no bucket"):
        StoragePath.of("s3:///x").read_bytes()
    with pytest.raises(StorageError, match=r"s3://nowhere/x.*there is no bucket s3://nowhere"):
        StoragePath.of("s3://nowhere/x").read_bytes()
    with pytest.raises(StorageError, match=r"a//b"):
        StoragePath.of("s3://data/a//b").read_bytes()


# --- failures --------------------------------------------------------------------------------------------------------


def test_faults_are_retried_and_counted(s3: S3Server) -> None:
    counted: Counter[str] = Counter()
    lock = threading.Lock()

    def count(name: str, amount: int) -> None:
        with lock:
            counted[name] += amount

    scope = ReadScope(RetryPolicy(attempts=20), count)
    s3.configure(fault_503=0.2, fault_truncated=0.2, fault_reset=0.1)
    with read_scope(scope):
        reader = StoragePath.of("s3://data/shard.tar").open(len(CONTENT))

        def read(start: int) -> bytes:
            return reader.read_at(start, 1000)

        with ThreadPoolExecutor(8) as pool:
            starts = range(0, 100_000, 1000)
            read_bytes = [future.result() for future in [pool.submit(copy_context().run, read, n) for n in starts]]
    assert b"".join(read_bytes) == CONTENT[:100_000]
    faults = s3.counters()["faults"]
    assert min(faults[name] for name in ("503", "truncated", "reset")) > 0
    # Each fault is one retry of ours, except resets of a kept connection before the response, which hyper repeats.
    assert 0 < counted["retries.s3://data"] <= sum(faults.values())
    assert counted["retries.s3://data"] >= faults["503"] + faults["truncated"]


def test_a_silent_server_has_failed_after_a_third_of_the_time(s3: S3Server) -> None:
    s3.configure(latency_seconds=30.0)
    policy = RetryPolicy(attempts=2, request_seconds=0.6)
    with (
        read_scope(ReadScope(policy, outlasts_stores=False)),
        pytest.raises(StorageError, match=r"\(2 attempts\).*timed out"),
    ):
        StoragePath.of("s3://data/shard.tar").open(len(CONTENT)).read_at(0, 10)


def test_a_store_that_stays_down_ends_the_run(s3: S3Server, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.1)  # of the fake clock
    with read_scope(ReadScope()):
        reader = StoragePath.of("s3://data/shard.tar").open(len(CONTENT))
        reader.read_at(0, 10)
        s3.configure(fault_503=1.0)
        with pytest.raises(StoreUnavailableError, match=r"read from s3://data for .*503"):
            reader.read_at(0, 10)


@pytest.mark.parametrize(
    ("status", "code", "attempts", "said"),
    [
        (403, "AccessDenied", 2, r"403 Forbidden.*\(AccessDenied\).*AWS_ACCESS_KEY_ID"),
        (400, "InvalidRequest", 1, r"InvalidRequest.*AWS_ENDPOINT_URL"),
        (501, "NotImplemented", 5, "501"),
        (429, "SlowDown", 5, "429"),
        (301, "PermanentRedirect", 2, "another region. Set AWS_REGION"),
    ],
)
def test_refusals_say_what_to_set(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, attempts: int, said: str
) -> None:
    asked: list[str] = []

    def answer(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        asked.append(path)
        return refusal(status, code)

    with answering(answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(StorageError, match=said) as caught:
            StoragePath.of("s3://data/x").read_bytes()
    assert "s3://data/x" in str(caught.value)
    assert "Debug source" not in str(caught.value)
    assert len(asked) <= attempts


def test_finds_the_region_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        if "/eu-west-9/s3/" in signature:
            return 200, "content", {}
        return (*refusal(301, "PermanentRedirect")[:2], {"x-amz-bucket-region": "eu-west-9"})

    with answering(answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert StoragePath.of("s3://data/x").read_bytes() == b"content"


# --- redirects -------------------------------------------------------------------------------------------------------


@contextmanager
def redirecting(monkeypatch: pytest.MonkeyPatch, status: int = 307, scheme: str = "http") -> Iterator[list[str]]:
    """Serves redirects to another host as the endpoint of every store; yields the requests that the host receives."""
    arrived: list[str] = []

    def elsewhere(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        arrived.append(f"{method} {path} {signature}".rstrip())
        return 200, "content", {}

    with answering(elsewhere) as other:
        other = other.replace("http://127.0.0.1", f"{scheme}://localhost")
        with answering(lambda method, path, signature: (status, "", {"Location": other + path})) as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
            monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{url}/account")
            yield arrived


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_credentials_go_to_no_other_host(monkeypatch: pytest.MonkeyPatch, status: int, scheme: str) -> None:
    said = r"Could not reach s3://data/x: the server redirects .* to another host, and credentials .*Set AWS_REGION"
    path = StoragePath.of("s3://data/x")
    with redirecting(monkeypatch, status, scheme) as arrived:
        for ask in (path.read_bytes, path.size, path.list_files, lambda: path.open(10).read_at(0, 5)):
            with pytest.raises(StorageError, match=said):
                ask()
        with pytest.raises(StorageError, match=said):
            path.write_bytes(b"content")
    assert arrived == []


def test_a_signature_in_the_address_goes_to_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with redirecting(monkeypatch) as arrived:
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=secret")
        with pytest.raises(StorageError, match=r"az://data/x: the server redirects .*Set AZURE_STORAGE_ENDPOINT"):
            StoragePath.of("az://data/x").read_bytes()
    assert arrived == []


def test_redirects_are_followed_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with redirecting(monkeypatch) as arrived:
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
        assert StoragePath.of("s3://data/x").read_bytes() == b"content"
        assert StoragePath.of("az://data/x").read_bytes() == b"content"
    assert arrived == ["GET /data/x", "GET /account/data/x"]


def test_redirects_within_a_host_are_followed_until_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        asked.append(path)
        if path.endswith("/moved"):
            return 200, "content", {}
        return 307, "", {"Location": "/data/moved" if path.endswith("/old") else "/data/loop"}

    with answering(answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert StoragePath.of("s3://data/old").read_bytes() == b"content"
        assert asked == ["/data/old", "/data/moved"]
        with pytest.raises(StorageError, match=r"s3://data/loop: the server redirects in a loop"):
            StoragePath.of("s3://data/loop").read_bytes()
    assert len(asked) < 20


def test_a_redirect_to_another_region_is_answered_by_that_region(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = []

    def answer(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        if "/eu-west-9/s3/" in signature:
            return 200, "content", {}
        arrived.append(method)
        return 307, "", {"x-amz-bucket-region": "eu-west-9", "Location": "http://localhost:1/elsewhere"}

    with answering(answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert StoragePath.of("s3://data/x").read_bytes() == b"content"
    assert arrived == ["GET", "HEAD"]


def test_hosts_that_a_client_may_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        for variable in (name, name.lower()):
            monkeypatch.delenv(variable, raising=False)
    urls = ["https://minio.local:9000/deep", "http://[::1]:9000", "http://169.254.169.254"]
    options = access.stay_on({"allow_http": True}, urls)
    assert options == {
        "allow_http": True,
        "proxy_url": "http://127.0.0.1:0",
        "proxy_excludes": "minio.local,::1,169.254.169.254",
    }
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert access.stay_on({}, urls) == {}, "a proxy of the user is used"
    monkeypatch.setenv("NO_PROXY", "minio.local")
    assert access.stay_on({}, urls)["proxy_url"] == "http://127.0.0.1:0"


# --- settings and credentials ----------------------------------------------------------------------------------------


def test_profiles_name_keys_endpoint_and_region(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        "[default]\naws_access_key_id = other\naws_secret_access_key = s\n"
        "[training]\naws_access_key_id = right\naws_secret_access_key = s\naws_session_token = t\n"
    )
    (tmp_path / ".aws/config").write_text(
        f"[profile training]\nregion = eu-west-9\nservices = here\n[services here]\ns3 =\n  endpoint_url = {s3.url}/\n"
    )
    s3.configure(access_keys=["right"])
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert StoragePath.of("s3://data/shard.tar").read_bytes() == CONTENT
    assert aws.S3Access("data").region == "eu-west-9"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match=r"s3://data: The config profile \(nobody\) could not be found"):
        StoragePath.of("s3://data/shard.tar").read_bytes()


def test_missing_credentials_say_what_to_set(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StorageError, match=r"no credentials for s3://data. Set AWS_ACCESS_KEY_ID.*AWS_SKIP_SIGNATURE"):
        StoragePath.of("s3://data/shard.tar").read_bytes()
    signatures = []

    def answer(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        signatures.append(signature)
        return 200, "content", {}

    with answering(answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for name in ("AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST"):
            monkeypatch.setenv(name, "true")
            assert StoragePath.of("s3://public/x").read_bytes() == b"content"
            monkeypatch.delenv(name)
    assert signatures == ["", ""]


def test_expired_credentials_are_read_again(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_key(key: str) -> None:
        (tmp_path / "keys").write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    write_key("first")
    s3.configure(access_keys=["first"])
    reader = StoragePath.of("s3://data/shard.tar").open()
    assert reader.read_at(0, 10) == CONTENT[:10]
    write_key("second")
    s3.configure(access_keys=["second"])
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda start: reader.read_at(start, 10), range(50)))
    assert read == [CONTENT[start : start + 10] for start in range(50)]
    write_key("third")
    s3.configure(access_keys=["third"])
    assert StoragePath.of("s3://data/shard.tar").size() == len(CONTENT)  # a HEAD is refused without a reason

    # Whoever renews them is late: the request is repeated as for any store that is down.
    s3.configure(access_keys=["fourth"])
    pauses = []

    def pause(self: ReadScope, *details: object) -> None:
        pauses.append(details)
        write_key("fourth")

    monkeypatch.setattr(ReadScope, "pause", pause)
    assert reader.read_at(5, 10) == CONTENT[5:15]
    assert len(pauses) == 1


@pytest.mark.parametrize(("code", "requests"), [("InvalidAccessKeyId", 5), ("AccessDenied", 2)])
def test_new_credentials_that_are_refused_too_are_an_error(
    monkeypatch: pytest.MonkeyPatch, code: str, requests: int
) -> None:
    """Those of a role are new each time, and take longer than the time for which a denied object is not looked at."""
    asked: list[str] = []
    seconds = 1000.0

    def answer(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        asked.append(path)
        return refusal(403, code) if len(asked) < 20 else (200, "content", {})

    def renew(self: aws.S3Access) -> bool:
        nonlocal seconds
        seconds += 2 * buckets._LOOK_SECONDS
        return True

    monkeypatch.setattr(aws.S3Access, "renew", renew)
    monkeypatch.setattr(buckets, "time", SimpleNamespace(monotonic=lambda: seconds))
    with answering(answer) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(StorageError, match=rf"PermissionError.*{code}.*Check AWS_ACCESS_KEY_ID"):
            StoragePath.of("s3://role/x").read_bytes()
    assert len(asked) == requests


def test_credentials_with_a_term_are_renewed_before_it_ends(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a process that prints credentials, as botocore runs it; those of a container or role have a term too."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / ".aws").mkdir()
    printed = tmp_path / "printed.json"
    (tmp_path / ".aws/config").write_text(f"[default]\ncredential_process = cat {printed}\n")

    def write_key(key: str, until: str) -> None:
        found = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": "s", "SessionToken": "t", "Expiration": until}
        printed.write_text(json.dumps(found))

    monkeypatch.setattr(aws, "CHECK_SECONDS", 0.0)
    write_key("first", "2020-01-01T00:00:00Z")  # always due
    s3.configure(access_keys=["first"])
    with pytest.raises(StorageError, match=r"s3://data: Credentials were refreshed, but the refreshed credentials are"):
        StoragePath.of("s3://data/shard.tar").size()
    write_key("first", "2099-01-01T00:00:00Z")
    reader = StoragePath.of("s3://data/shard.tar").open()
    (bucket,) = buckets._buckets.values()
    credentials = bucket._access._renewable  # type: ignore[attr-defined]
    credentials._expiry_time = credentials._time_fetcher()  # due now
    time.sleep(0.2)  # obstore asks for credentials at most every 100 ms
    write_key("second", "2099-01-01T00:00:00Z")
    s3.reset()
    s3.configure(access_keys=["second"])
    assert reader.read_at(0, 10) == CONTENT[:10]
    assert s3.counters()["statuses"] == {"206": 1}


@pytest.mark.parametrize("has_botocore", [True, False])
def test_containers_supply_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_botocore: bool) -> None:
    if not has_botocore:
        for name in ("botocore", "botocore.session"):
            monkeypatch.setitem(sys.modules, name, None)
    signatures = []

    def answer(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        signatures.append(signature)
        keys = {"AccessKeyId": "pod", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}
        return 200, json.dumps(keys) if path == "/keys" else "content", {}

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with answering(answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        (tmp_path / "token").write_text("token")
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/keys")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        assert StoragePath.of("s3://data/x").read_bytes() == b"content"
        if not has_botocore:
            monkeypatch.setenv("AWS_PROFILE", "training")
            with pytest.raises(StorageError, match=r"in a profile, and reading profiles needs boto3"):
                StoragePath.of("s3://data/x").read_bytes()
    assert "Credential=pod/" in signatures[-1]


def test_reads_google_and_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []

    def answer(method: str, path: str, signature: str) -> tuple[int, str, dict[str, str]]:
        paths.append(path)
        return 200, "content", {}

    with answering(answer) as url:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url.removeprefix("http://"))
        assert StoragePath.of("gs://bucket/deep/x.tar").read_bytes() == b"content"
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{url}/account")
        monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
        assert StoragePath.of("az://container/deep/x.tar").read_bytes() == b"content"
    assert [unquote(path) for path in paths] == ["/bucket/deep/x.tar", "/account/container/deep/x.tar"]


def test_credentials_of_google_that_need_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "google.json"))
    with pytest.raises(StorageError, match=r"gs://bucket cannot be read from .*google.json: .*No such file"):
        StoragePath.of("gs://bucket/x").read_bytes()
    monkeypatch.setitem(sys.modules, "google.auth", None)
    (tmp_path / "google.json").write_text('{"type": "external_account"}')
    with pytest.raises(StorageError, match=r"credentials of gs://bucket are of a kind that needs google-auth"):
        StoragePath.of("gs://bucket/y").read_bytes()


# --- multi-storage-client --------------------------------------------------------------------------------------------


@pytest.fixture
def profile(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A configuration with the profile "here", to which s3://alias/ is mapped; it has a cache."""
    from multistorageclient import shortcuts

    configuration = {
        "profiles": {
            "here": {
                "storage_provider": {"type": "s3", "options": {"base_path": "data", "endpoint_url": s3.url}},
                "caching_enabled": True,
            }
        },
        "cache": {"location": str(tmp_path / "cache"), "size": "1G"},
        "path_mapping": {"s3://alias/": "msc://here/"},
    }
    (tmp_path / "msc.json").write_text(json.dumps(configuration))
    monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "msc.json"))
    for cached in (shortcuts._STORAGE_CLIENT_CACHE, shortcuts._PATH_MAPPING_CACHE):
        cached.clear()
    msc._mapping.cache_clear()
    yield
    for cached in (shortcuts._STORAGE_CLIENT_CACHE, shortcuts._PATH_MAPPING_CACHE):
        cached.clear()
    msc._mapping.cache_clear()


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize("url", ["msc://here/shard.tar", "s3://alias/shard.tar"])
def test_profiles_of_multi_storage_client(s3: S3Server, url: str) -> None:
    reader = StoragePath.of(url).open(len(CONTENT))
    assert isinstance(reader, msc.MscReader)
    with ThreadPoolExecutor(64) as pool:
        read = list(pool.map(lambda start: reader.read_at(start, 100), range(0, 10_000, 100)))
    assert b"".join(read) == CONTENT[:10_000]
    s3.reset()
    assert reader.read_at(5000, 10) == CONTENT[5000:5010]
    assert set(s3.counters()["requests"]) == {"HEAD"}  # the cache of the client looks whether the object changed
    assert isinstance(StoragePath.of("s3://data/shard.tar").open(1), objects.ObjectReader)


# --- forks -----------------------------------------------------------------------------------------------------------


def _read_in_child(reader: Any, results: Any, generations: int = 2) -> None:
    results.put((storage_in_use(), reader.read_at(5, 10), StoragePath.of("s3://data/shard.tar").size()))
    with ThreadPoolExecutor(4) as pool:
        results.put(list(pool.map(lambda start: reader.read_at(start, 10), range(20))))
    if generations > 1:
        child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(reader, results, 1))
        child.start()
        child.join(60)
        results.put(child.exitcode)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_children_read(s3: S3Server) -> None:
    reader = StoragePath.of("s3://data/shard.tar").open()
    assert reader.read_at(0, 10) == CONTENT[:10]
    assert storage_in_use()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(reader, results))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    for _ in range(2):
        assert results.get() == (False, CONTENT[5:15], len(CONTENT))
        assert results.get() == [CONTENT[start : start + 10] for start in range(20)]
    assert results.get() == 0
    assert reader.read_at(7, 10) == CONTENT[7:17]


class _Store:
    """Stands for a store of obstore, which waits for a lock of its runtime when it is finalised."""

    finalised: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        self.finalised.append(self.name)


def _collect_in_child(results: Any) -> None:
    gc.collect()
    results.put(list(_Store.finalised))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_never_finalises_the_stores_of_its_parent() -> None:
    bucket = buckets.Bucket("s3", "data")
    bucket._stores[1.0, 1] = _Store("used")
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_collect_in_child, args=(results,))
    child.start()
    assert results.get() == []
    child.join(60)
    assert child.exitcode == 0
    assert [store.name for store in bucket._stores.values()] == ["used"]


class _ImportedMeanwhile(str):
    """A name in sys.modules; comparing it imports another module, as a thread may do at any moment."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        sys.modules.setdefault(f"{self}.{len(sys.modules)}", sys)
        return str.__eq__(self, other)


def _load_twice_with_one_descriptor(reader: Any, results: Any, generations: int = 2) -> None:
    create = os.memfd_create

    def create_at_200(name: str, flags: int) -> int:
        found = create(name, flags)
        os.dup2(found, 200)
        os.close(found)
        return 200

    os.memfd_create = create_at_200
    sys.modules[_ImportedMeanwhile("imported")] = sys
    _read_in_child(reader, results, generations)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_loads_obstore_while_modules_are_imported_and_so_does_its_own_child(s3: S3Server) -> None:
    reader = StoragePath.of("s3://data/shard.tar").open()
    assert reader.read_at(0, 10) == CONTENT[:10]
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_load_twice_with_one_descriptor, args=(reader, results))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    for _ in range(2):
        assert results.get() == (False, CONTENT[5:15], len(CONTENT))
        assert results.get() == [CONTENT[start : start + 10] for start in range(20)]
    assert results.get() == 0


def _load_after_failures(reader: Any, results: Any) -> None:
    create, left = os.memfd_create, 2

    def fail_twice(name: str, flags: int) -> int:
        nonlocal left
        if left:
            left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return create(name, flags)

    os.memfd_create = fail_twice
    for _ in range(3):
        try:
            results.put(reader.read_at(5, 10))
        except Exception as error:
            results.put(repr(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_cannot_load_obstore_says_so_and_tries_again(s3: S3Server) -> None:
    reader = StoragePath.of("s3://data/shard.tar").open()
    assert reader.read_at(0, 10) == CONTENT[:10]
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_load_after_failures, args=(reader, results))
    child.start()
    child.join(60)
    for _ in range(2):
        failed = results.get()
        assert failed.startswith("StorageError")
        assert "Too many open files. Start processes with the method 'spawn'" in failed
    assert results.get() == CONTENT[5:15]
    assert child.exitcode == 0
