"""A storage protocol of a user's package is read and written like those of this one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from energon_dali.errors import ConfigError, StorageError
from energon_dali.shards import ShardReader, StoragePath, WebdatasetFolder, prepare_dataset
from energon_dali.shards.storage import Backend, RangeReader, register_protocol, unregister_protocol, with_retries
from energon_dali.shards.storage.protocols import PROTOCOLS
from tests.shards.tars import captions
from tests.shards.test_storage import contents


class DictReader:
    """A file of a `DictBackend`."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]

    def read_view(self, offset: int, size: int) -> memoryview:
        return memoryview(self._content)[offset : offset + size]

    def close(self) -> None:
        """Has nothing to close."""


class DictBackend:
    """Files in a dictionary."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def open(self, url: str, size: int | None = None) -> RangeReader:
        return DictReader(self.read_bytes(url))

    def read_bytes(self, url: str, max_bytes: int | None = None) -> bytes:
        if url not in self.files:
            raise FileNotFoundError(url)
        return self.files[url][: None if max_bytes is None else max_bytes + 1]

    def write_bytes(self, url: str, content: bytes) -> None:
        self.files[url] = content

    def write_file(self, url: str, local: str) -> None:
        self.files[url] = Path(local).read_bytes()
        os.remove(local)

    def size(self, url: str) -> int:
        return len(self.read_bytes(url))

    def identity(self, url: str) -> tuple[int, str]:
        return self.size(url), ""

    def is_dir(self, url: str) -> bool:
        return any(name.startswith(f"{url}/") for name in self.files)

    def list_files(self, url: str) -> list[str]:
        return sorted(name.removeprefix(f"{url}/") for name in self.files if name.startswith(f"{url}/"))

    def remove(self, url: str) -> None:
        self.files.pop(url, None)


@pytest.fixture
def backend() -> Iterator[DictBackend]:
    """Storage that is registered as dict:// for one test."""
    backend: Backend = DictBackend()
    assert isinstance(backend, DictBackend)
    register_protocol("dict", backend)
    yield backend
    unregister_protocol("dict")


def test_a_registered_protocol_is_prepared_and_read(backend: DictBackend, tmp_path: Path) -> None:
    expected = captions(tmp_path)
    for shard in tmp_path.glob("*.tar"):
        backend.files[f"dict://set/{shard.name}"] = shard.read_bytes()
    prepare_dataset("dict://set")
    assert "dict://set/.nv-meta/.info.json" in backend.files
    reader = ShardReader(WebdatasetFolder("dict://set"))
    samples = reader.read([0, 2], [1, 3])
    assert [contents(sample) for sample in samples] == [expected["s0_1"], expected["s2_3"]]
    reader.close()


def test_a_path_has_all_that_its_storage_has(backend: DictBackend, tmp_path: Path) -> None:
    folder = StoragePath.of("dict://set")
    assert not folder.is_dir()
    (folder / "a").write_bytes(b"text")
    (tmp_path / "b").write_bytes(b"file")
    (folder / "b").write_file(tmp_path / "b")
    assert folder.list_files() == ["a", "b"]
    assert (folder.is_dir(), folder.is_local, folder.is_file()) == (True, False, False)
    assert ((folder / "a").read_bytes(), (folder / "a").read_bytes(1), (folder / "a").size()) == (b"text", b"te", 4)
    (folder / "a").copy_to(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"text"
    (folder / "a").remove()
    assert (folder / "a").read_if_there() is None
    assert list(backend.files) == ["dict://set/b"]


def test_a_scheme_belongs_to_one_storage(backend: DictBackend) -> None:
    for scheme in ("dict", "s3", "https"):
        with pytest.raises(ConfigError, match=rf"'{scheme}' is in use.*unregister_protocol\('{scheme}'\) first"):
            register_protocol(scheme, DictBackend())
    for scheme in ("file", "dss", "filesystem"):
        with pytest.raises(ConfigError, match=f"'{scheme}' has a meaning of its own"):
            register_protocol(scheme, DictBackend())
    for scheme in ("", "HDFS", "a+b", "dict://", "7zip"):
        with pytest.raises(ConfigError, match=r"is invalid\. Give lower-case letters and digits"):
            register_protocol(scheme, DictBackend())
    other = DictBackend()
    unregister_protocol("dict")
    register_protocol("dict", other)
    StoragePath.of("dict://set/a").write_bytes(b"text")
    assert (list(other.files), list(backend.files)) == (["dict://set/a"], [])


def test_errors_name_the_protocols(backend: DictBackend) -> None:
    with pytest.raises(StorageError, match=r"file://, s3://.*https://, dict://, or add it with register_protocol"):
        StoragePath.of("nfs://x")
    pickled = pickle.dumps(StoragePath.of("dict://set/a"))
    unregister_protocol("dict")
    unregister_protocol("dict")
    with pytest.raises(StorageError, match="protocol of dict://set/a is not registered in this process"):
        pickle.loads(pickled).read_bytes()


def test_every_protocol_of_the_package_has_all_methods() -> None:
    methods = [name for name in vars(Backend) if not name.startswith("_")]
    for scheme, backend_of in PROTOCOLS.items():
        backend = backend_of(f"{scheme}://host/path")
        assert all(callable(getattr(backend, name)) for name in methods), scheme


def test_with_retries_repeats_what_failed_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_dali.shards.storage.retry.FIRST_PAUSE_SECONDS", 0.0)
    errors = [ConnectionError("reset"), TimeoutError("slow")]

    def read() -> bytes:
        if errors:
            raise errors.pop()
        return b"text"

    assert with_retries(read, "read", "dict://set/a") == b"text"
