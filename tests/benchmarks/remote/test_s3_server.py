from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import obstore
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from obstore.store import S3Store

from benchmarks.remote.s3_server import S3Server

CONTENT = bytes(range(256)) * 2000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("buckets")
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "data" / "shard.tar").write_bytes(CONTENT)
    for number in range(5):
        (folder / "data" / "deep" / f"a b+{number}&ü.txt").write_text(str(number))
    with S3Server(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def _as_at_first(server: S3Server) -> Iterator[None]:
    yield
    server.configure(
        latency_seconds=0.0, bandwidth=0.0, fault_503=0.0, fault_truncated=0.0, fault_reset=0.0, access_keys=[]
    )
    server.reset()


@pytest.fixture(scope="module")
def client(server: S3Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id="anyone",
        aws_secret_access_key="anything",
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 1}),
    )


def store_of(server: S3Server, **options: Any) -> S3Store:
    return S3Store(
        "data",
        endpoint=server.url,
        access_key_id="anyone",
        secret_access_key="anything",
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        **options,
    )


def test_boto3_reads_writes_and_lists(server: S3Server, client: Any) -> None:
    assert [one["Name"] for one in client.list_buckets()["Buckets"]] == ["data"]
    whole = client.get_object(Bucket="data", Key="shard.tar")
    assert whole["Body"].read() == CONTENT
    part = client.get_object(Bucket="data", Key="shard.tar", Range="bytes=100-299")
    assert part["ContentRange"] == f"bytes 100-299/{len(CONTENT)}"
    assert part["Body"].read() == CONTENT[100:300]
    assert client.get_object(Bucket="data", Key="shard.tar", Range="bytes=-5")["Body"].read() == CONTENT[-5:]
    head = client.head_object(Bucket="data", Key="shard.tar")
    assert (head["ContentLength"], head["ETag"]) == (len(CONTENT), whole["ETag"])

    client.put_object(Bucket="data", Key="new/one.bin", Body=CONTENT[:100_000])
    client.copy_object(Bucket="data", Key="new/two.bin", CopySource={"Bucket": "data", "Key": "new/one.bin"})
    assert client.get_object(Bucket="data", Key="new/two.bin")["Body"].read() == CONTENT[:100_000]
    client.delete_objects(Bucket="data", Delete={"Objects": [{"Key": "new/one.bin"}, {"Key": "new/two.bin"}]})
    with pytest.raises(ClientError, match="NoSuchKey"):
        client.get_object(Bucket="data", Key="new/one.bin")
    with pytest.raises(ClientError, match="NoSuchBucket"):
        client.get_object(Bucket="none", Key="new/one.bin")

    counters = server.counters()
    assert counters["requests"]["COPY"] == 1
    assert counters["statuses"]["404"] == 2
    assert counters["bytes_by_suffix"]["tar"] == len(CONTENT) + 200 + 5
    assert counters["requests_by_suffix"]["tar"] == 4


def test_listings_have_pages_prefixes_and_delimiters(client: Any) -> None:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="data", PaginationConfig={"PageSize": 2})
    names = [[item["Key"] for item in page["Contents"]] for page in pages]
    deep = [f"deep/a b+{number}&ü.txt" for number in range(5)]
    assert names == [deep[:2], deep[2:4], [deep[4], "shard.tar"]]
    top = client.list_objects_v2(Bucket="data", Delimiter="/")
    assert [item["Prefix"] for item in top["CommonPrefixes"]] == ["deep/"]
    assert [(item["Key"], item["Size"]) for item in top["Contents"]] == [("shard.tar", len(CONTENT))]
    found = client.list_objects_v2(Bucket="data", Prefix="deep/a b+3", Delimiter="/")
    assert [item["Key"] for item in found["Contents"]] == [deep[3]]
    assert client.list_objects_v2(Bucket="data", Prefix="nothing/")["KeyCount"] == 0


def test_uploads_in_parts(client: Any, tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(CONTENT * 40)
    client.upload_file(str(large), "data", "large.bin")
    assert client.get_object(Bucket="data", Key="large.bin")["Body"].read() == CONTENT * 40
    upload = client.create_multipart_upload(Bucket="data", Key="given-up")["UploadId"]
    client.upload_part(Bucket="data", Key="given-up", UploadId=upload, PartNumber=1, Body=b"part")
    client.abort_multipart_upload(Bucket="data", Key="given-up", UploadId=upload)
    assert "Contents" not in client.list_objects_v2(Bucket="data", Prefix="given-up")
    client.delete_object(Bucket="data", Key="large.bin")


def test_conditions(client: Any) -> None:
    etag = client.put_object(Bucket="data", Key="state", Body=b"1", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket="data", Key="state", Body=b"2", IfNoneMatch="*")
    changed = client.put_object(Bucket="data", Key="state", Body=b"2", IfMatch=etag)["ETag"]
    assert changed != etag
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.get_object(Bucket="data", Key="state", IfMatch=etag)
    with pytest.raises(ClientError, match="304"):
        client.get_object(Bucket="data", Key="state", IfNoneMatch=changed)
    client.delete_object(Bucket="data", Key="state")


def test_obstore_reads_writes_and_lists(server: S3Server) -> None:
    store = store_of(server)
    assert bytes(obstore.get_range(store, "shard.tar", start=7, length=1000)) == CONTENT[7:1007]
    ranges = obstore.get_ranges(store, "shard.tar", starts=[0, 200_000], lengths=[10, 70_000])
    assert [bytes(one) for one in ranges] == [CONTENT[:10], CONTENT[200_000:270_000]]
    obstore.put(store, "new/three.bin", CONTENT * 30, chunk_size=5 << 20, use_multipart=True)
    assert bytes(obstore.get(store, "new/three.bin").bytes()) == CONTENT * 30
    listed = obstore.list_with_delimiter(store)
    assert sorted(listed["common_prefixes"]) == ["deep", "new"]
    obstore.delete(store, "new/three.bin")
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "new/three.bin")


def test_multi_storage_client_reads_writes_and_lists(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from multistorageclient import StorageClient, StorageClientConfig

    provider = {
        "type": "s3",
        "options": {"base_path": "data", "endpoint_url": server.url, "region_name": "us-east-1"},
    }
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    client = StorageClient(
        StorageClientConfig.from_dict({"profiles": {"here": {"storage_provider": provider}}}, "here")
    )
    assert bytes(client.read("shard.tar")) == CONTENT
    client.write("written/by-msc", b"content")
    assert [item.key for item in client.list(path="written/")] == ["written/by-msc"]
    assert client.info("written/by-msc").content_length == 7
    client.delete("written/by-msc")


def test_latency_holds_up_no_other_request(server: S3Server) -> None:
    store = store_of(server)
    server.configure(latency_seconds=1.0)
    start = threading.Barrier(16)

    def read(_: int) -> None:
        start.wait(60)
        obstore.get_range(store, "shard.tar", start=0, length=10)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(read, range(16)))
    counters = server.counters()
    assert counters["requests"] == {"GET": 16}
    assert counters["most_in_flight"] == 16
    assert counters["in_flight"] == 0
    assert counters["cpu_seconds"] > 0


def test_limited_bandwidth(server: S3Server, client: Any) -> None:
    server.configure(bandwidth=10 * len(CONTENT))
    begun = time.monotonic()
    assert client.get_object(Bucket="data", Key="shard.tar")["Body"].read() == CONTENT
    assert client.get_object(Bucket="data", Key="shard.tar")["Body"].read() == CONTENT
    # All but the last share of 64 KiB has to wait for its turn.
    assert time.monotonic() - begun > 0.2 - 65536 / (10 * len(CONTENT))


def test_faults_follow_the_seed(server: S3Server) -> None:
    def outcomes(seed: int) -> list[str]:
        server.configure(seed=seed, fault_503=0.3, fault_truncated=0.2, fault_reset=0.2)
        found = []
        for number in range(30):
            request = urllib.request.Request(f"{server.url}/data/shard.tar", headers={"Range": f"bytes={number}-99999"})
            try:
                content = urllib.request.urlopen(request, timeout=10).read()
                assert content == CONTENT[number:100_000]
                found.append("whole")
            except urllib.error.HTTPError as error:
                with error:
                    found.append(f"{error.code} with code" if b"<Code>SlowDown</Code>" in error.read() else "")
            except Exception as error:  # IncompleteRead, or a reset
                found.append(type(error).__name__)
        return found

    first = outcomes(1)
    assert {"whole", "503 with code", "IncompleteRead", "ConnectionResetError"} == set(first)
    assert first == outcomes(1) != outcomes(2)
    counted = server.counters()["faults"]
    assert set(counted) == {"503", "truncated", "reset"}


def test_access_keys_expire(server: S3Server, client: Any) -> None:
    server.configure(access_keys=["anyone", "later"])
    client.head_object(Bucket="data", Key="shard.tar")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{server.url}/data/shard.tar")
    signed = client.generate_presigned_url("get_object", Params={"Bucket": "data", "Key": "shard.tar"})
    assert urllib.request.urlopen(signed).read() == CONTENT
    server.configure(access_keys=["later"])
    with pytest.raises(ClientError, match="ExpiredToken"):
        client.get_object(Bucket="data", Key="shard.tar")
    server.configure(access_keys=["another"])
    with pytest.raises(urllib.error.HTTPError, match="400"):
        server.configure(latency=1)


def test_a_replaced_object_is_sent_as_it_was(server: S3Server, client: Any) -> None:
    client.put_object(Bucket="data", Key="replaced", Body=b"old" * 100_000)
    server.configure(latency_seconds=2.0)
    found: list[bytes] = []
    reading = threading.Thread(
        target=lambda: found.append(client.get_object(Bucket="data", Key="replaced")["Body"].read())
    )
    reading.start()
    while reading.is_alive() and server.counters()["in_flight"] == 0:
        time.sleep(0.01)
    (server.folder / "data" / "aside").write_bytes(b"new" * 100_000)
    (server.folder / "data" / "aside").rename(server.folder / "data" / "replaced")
    server.configure(latency_seconds=0.0)
    assert client.get_object(Bucket="data", Key="replaced")["Body"].read() == b"new" * 100_000
    reading.join()
    assert found == [b"old" * 100_000]
    client.delete_object(Bucket="data", Key="replaced")


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /data/../secret HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /data/%2e%2e/secret HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /data/shard.tar HTTP/1.1\r\nRange: bytes=9999999-\r\n\r\n", b"HTTP/1.1 416 "),
        (b"PATCH /data/shard.tar HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (
            b"PUT /data/chunks HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            b"GET /data/chunks HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 200 ",
        ),
    ],
)
def test_plain_requests(server: S3Server, sent: bytes, answered: bytes) -> None:
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = connection.recv(65536)
    assert received.startswith(answered)
