"""Datasets on an S3 server and on a web server, both on this machine; retries and paths."""

from __future__ import annotations

import copy
import errno
import http.server
import os
import pickle
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from energon_dali.errors import DatasetFormatError, ShardError, StorageError, StoreUnavailableError
from energon_dali.shards import RawSample, ShardReader, StoragePath, WebdatasetFolder, prepare_dataset
from energon_dali.shards.read_ahead import GAP_BYTES, GAP_SHARE, REQUEST_BYTES, PlannedReads, join_runs, read_planned
from energon_dali.shards.storage import WindowReader, local, retry
from energon_dali.shards.storage.objects import ObjectReader
from energon_dali.shards.storage.store import ReadScope, read_scope
from tests.shards.failing_storage import FakeClock
from tests.shards.failing_storage import clock as clock
from tests.shards.tars import captions, write_tar


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server on this machine, with the bucket "data"."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3
    from multistorageclient import shortcuts

    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    shortcuts._STORAGE_CLIENT_CACHE.clear()
    client = boto3.client("s3")
    client.create_bucket(Bucket="data")
    yield client
    for item in client.list_objects_v2(Bucket="data").get("Contents", []):
        client.delete_object(Bucket="data", Key=item["Key"])
    client.delete_bucket(Bucket="data")
    client.close()
    shortcuts._STORAGE_CLIENT_CACHE.clear()


def upload(client: Any, root: Path, prefix: str) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "data", f"{prefix}/{path.relative_to(root)}")


def contents(sample: object) -> dict[str, bytes]:
    assert isinstance(sample, RawSample), sample
    return {name: bytes(content) for name, content in sample.parts.items()}


def check_reading(url: str, expected: dict[str, dict[str, bytes]]) -> None:
    reader: ShardReader = pickle.loads(pickle.dumps(ShardReader(WebdatasetFolder(url))))
    samples = reader.read([2, 0, 0, 1, 2, 7, 0], [3, 0, 1, 2, 0, 0, 99])
    assert [sample.key for sample in samples[:5] if isinstance(sample, RawSample)] == [
        "s2_3",
        "s0_0",
        "s0_1",
        "s1_2",
        "s2_0",
    ]
    for sample in samples[:5]:
        assert isinstance(sample, RawSample)
        assert contents(sample) == expected[sample.key]
    assert "shard 7 was requested" in str(samples[5])
    assert "sample 99 was requested" in str(samples[6])
    reader.close()


@pytest.mark.parametrize("without", [(), ("extents.bin",), ("extents.bin", "index.sqlite")])
def test_reads_from_s3(bucket: Any, tmp_path: Path, without: tuple[str, ...]) -> None:
    expected = captions(tmp_path)
    prepare_dataset(tmp_path)
    for name in without:
        (tmp_path / ".nv-meta" / name).unlink()
    upload(bucket, tmp_path, "deep/set")
    check_reading("s3://data/deep/set", expected)


def test_prepares_on_s3(bucket: Any, tmp_path: Path) -> None:
    expected = captions(tmp_path)
    upload(bucket, tmp_path, "set")
    result = prepare_dataset("s3://data/set", split_ratio={"train": 2, "val": 1})
    assert result.shard_counts == {"shard_0.tar": 4, "shard_1.tar": 4, "shard_2.tar": 4}
    folder = WebdatasetFolder("s3://data/set")
    assert folder.split_ranges("val").shard.tolist() == [2]
    assert folder.index.source == "extents"
    check_reading("s3://data/set", expected)


def test_missing_and_changed_shards_on_s3(bucket: Any, tmp_path: Path) -> None:
    expected = captions(tmp_path)
    prepare_dataset(tmp_path)
    (tmp_path / ".nv-meta/extents.bin").unlink()
    (tmp_path / "shard_0.tar").unlink()
    write_tar(tmp_path / "shard_1.tar", {"other.jpg": bytes(20_000)})
    upload(bucket, tmp_path, "set")
    reader = ShardReader(WebdatasetFolder("s3://data/set"))
    missing, changed, good = reader.read([0, 1, 2], [0, 1, 0])
    assert isinstance(missing, ShardError)
    assert "s3://data/set/shard_0.tar is missing" in str(missing)
    assert isinstance(changed, ShardError)
    assert "shard_1.tar changed since it was indexed" in str(changed)
    assert contents(good) == expected["s2_0"]
    reader.close()


def test_a_store_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.tar"
        with pytest.raises(StorageError, match=r"Could not look at http.*\(5 attempts\)"):
            StoragePath.of(url).open()


# --- http ------------------------------------------------------------------------------------------------------------


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files with range requests, and answers every third request with 503."""

    requests = 0
    ranges = True

    def do_GET(self) -> None:
        type(self).requests += 1
        if type(self).requests % 3 == 0:
            self.send_error(503)
            return
        wanted = self.headers.get("Range")
        if wanted is None or not self.ranges:
            super().do_GET()
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        path = Path(self.translate_path(self.path))
        whole = path.read_bytes()
        data = whole[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Logs nothing."""


@pytest.mark.parametrize("ranges", [True, False])
def test_reads_from_a_web_server(tmp_path: Path, ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = captions(tmp_path)
    prepare_dataset(tmp_path)
    monkeypatch.setattr(Handler, "ranges", ranges)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{web.server_address[1]}"
            if ranges:
                check_reading(url, expected)
            else:
                (error,) = ShardReader(WebdatasetFolder(url)).read([0], [0])
                assert "does not answer range requests" in str(error)
            assert StoragePath.of(f"{url}/nothing").read_if_there() is None
            with pytest.raises(StorageError, match="http is read only"):
                StoragePath.of(f"{url}/x").write_bytes(b"")
            with pytest.raises(StorageError, match="cannot be listed"):
                prepare_dataset(url)
        finally:
            web.shutdown()
            thread.join()


# --- paths, retries, requests ----------------------------------------------------------------------------------------


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StoragePath.of("a/b").url == str(tmp_path / "a/b")
    assert StoragePath.of(f"file://{tmp_path}/a%20b").local == tmp_path / "a b"
    assert (StoragePath.of("s3://bucket/x/") / "y.tar").url == "s3://bucket/x/y.tar"
    assert StoragePath.of("s3://bucket/x").name == "x"
    with pytest.raises(StorageError, match="scheme 'ftp', which is not known"):
        StoragePath.of("ftp://x/y")
    with pytest.raises(StorageError, match="not in the local file system"):
        _ = StoragePath.of("s3://bucket/x").local


def test_a_path_that_is_not_utf_8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"b\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    for path in (folder, f"{folder}/x.jsonl", "x.jsonl", "s3://bucket/\udce9"):
        with pytest.raises(DatasetFormatError, match=r"udce9.* is not valid UTF-8\. Rename the folder") as raised:
            StoragePath.of(path)
        str(raised.value).encode()
    assert StoragePath.of(tmp_path / "bé").name == "bé"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = StoragePath.of(str(tmp_path / "f"))
    place.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left"):
        place.write_bytes(b"new")
    monkeypatch.undo()
    assert place.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]
    shutil.copy(tmp_path / "f", tmp_path / "g")
    place.write_file(tmp_path / "g")
    assert os.listdir(tmp_path) == ["f"]


def test_retries_what_may_pass_and_nothing_else() -> None:
    errors: list[Exception] = [OSError(errno.EIO, "io"), ConnectionResetError(), TimeoutError()]

    def flaky() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert retry.with_retries(flaky, "read x") == "done"
    tried = []

    def broken(error: Exception) -> None:
        tried.append(error)
        raise error

    with pytest.raises(StorageError, match="Could not read x: PermissionError"):
        retry.with_retries(lambda: broken(PermissionError("no")), "read x")
    with pytest.raises(FileNotFoundError):
        retry.with_retries(lambda: broken(FileNotFoundError("no")), "read x")
    assert len(tried) == 2


def test_near_pieces_are_joined_and_far_ones_are_not() -> None:
    def piece(start: int, size: int) -> tuple[int, int, int, int]:
        return (0, 1, start, size)

    assert join_runs([piece(1500, 10), piece(0, 100), piece(0, 100)]) == [(0, 1510)]
    assert join_runs([piece(5000, 10), piece(0, 100)]) == [(0, 100), (5000, 10)]
    gap = GAP_BYTES + 100 // GAP_SHARE
    assert join_runs([piece(0, 100), piece(100 + gap, 5)]) == [(0, 105 + gap)]
    assert join_runs([piece(0, 100), piece(101 + gap, 5)]) == [(0, 100), (101 + gap, 5)]
    assert join_runs([piece(0, REQUEST_BYTES), piece(REQUEST_BYTES, 1)]) == [(0, REQUEST_BYTES), (REQUEST_BYTES, 1)]
    assert join_runs([piece(0, 9 * REQUEST_BYTES), piece(10, 5)]) == [(0, 9 * REQUEST_BYTES)]


def test_many_readers_need_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_OPEN_FILES", 4)
    before = len(os.listdir("/proc/self/fd"))
    readers = []
    for number in range(40):
        (tmp_path / str(number)).write_bytes(b"%03d" % number)
        readers.append(StoragePath.of(str(tmp_path / str(number))).open())
    for _ in range(2):
        assert [reader.read_at(0, 3) for reader in readers] == [b"%03d" % number for number in range(40)]
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda number: readers[number % 40].read_at(0, 3), range(2000)))
    assert read == [b"%03d" % (number % 40) for number in range(2000)]
    for reader in readers:
        reader.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_window_asks_in_large_steps(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "f").write_bytes(data)
    asked: list[tuple[int, int]] = []

    class Counting:
        size = len(data)

        def read_at(self, offset: int, size: int) -> bytes:
            asked.append((offset, size))
            return data[offset : offset + size]

        def close(self) -> None:
            """Has nothing to close."""

    window = WindowReader(Counting(), 1000)
    assert b"".join(window.read_at(offset, 100) for offset in range(0, len(data), 100)) == data
    assert len(asked) <= 12
    assert window.read_at(10, 5000) == data[10:5010]
    assert window.read_at(len(data), 10) == b""


def test_an_interrupted_read_leaves_nothing_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between requesting and waiting: the next read gets its own responses."""
    expected = captions(tmp_path)
    prepare_dataset(tmp_path)
    reader = ShardReader(WebdatasetFolder(str(tmp_path)))
    real = PlannedReads.issue

    def interrupted(self: PlannedReads, *args: Any) -> Any:
        real(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PlannedReads, "issue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_planned(reader, [0, 0, 1], [0, 1, 2])
    (sample,) = read_planned(reader, [2], [3])
    assert contents(sample) == expected["s2_3"]
    reader.close()


def test_an_object_store_that_fails_for_a_moment_or_for_ever(
    bucket: Any, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.1)  # the clock's, not ours
    expected = captions(tmp_path)
    prepare_dataset(tmp_path)
    upload(bucket, tmp_path, "set")
    with read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder("s3://data/set"))
        assert contents(reader.read([0], [0])[0]) == expected["s0_0"]
        errors: list[Exception] = [ConnectionError("answered 500"), ConnectionResetError("reset")]
        real = ObjectReader._fetch

        def fetch(self: ObjectReader, offset: int, size: int) -> bytes:
            if errors and (self.url.endswith("shard_1.tar") or len(errors) > 10):
                raise errors.pop()
            return real(self, offset, size)

        monkeypatch.setattr(ObjectReader, "_fetch", fetch)
        assert contents(reader.read([1], [1])[0]) == expected["s1_1"]
        errors += [ConnectionError("answered 500")] * 6
        lost, good = reader.read([1, 2], [1, 0])
        assert isinstance(lost, ShardError)
        assert "s3://data/set/shard_1.tar" in str(lost)
        assert contents(good) == expected["s2_0"]
        errors += [ConnectionError("answered 500")] * 1000
        with pytest.raises(StoreUnavailableError, match="read from s3://data for"):
            reader.read([0], [1])
        reader.close()


def test_an_open_file_cannot_be_copied() -> None:
    """Both copies would close its descriptor, the second one after another file took the number."""
    descriptor = local.Descriptor(os.open(os.devnull, os.O_RDONLY))
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="an open file cannot be copied"):
            call(descriptor)


def test_a_file_whose_status_cannot_be_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(descriptor: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    path = tmp_path / "f"
    path.write_bytes(b"content")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale)
        with pytest.raises(OSError, match="Stale"):
            local.open_regular(str(path))
    assert path not in [link.resolve() for link in Path("/proc/self/fd").iterdir()]
