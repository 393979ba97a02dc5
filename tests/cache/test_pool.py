"""Cache pools and references: what is fetched, what is on disk and for how long, and what remains after a crash."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energon_dali import DaliDecoder, SampleDecoder
from energon_dali.cache import (
    CachePool,
    DecodeFileStore,
    DirectLazy,
    FileStoreCachePool,
    Lazy,
    MockLazy,
    NoCachePool,
    PrimaryFileStore,
    SettledLazy,
    SystemFileStore,
)
from energon_dali.datasets.worker_border import handles_of, put_outcomes
from energon_dali.decode import Decoded
from energon_dali.errors import ConfigError, DatasetError, FileMissingError
from energon_dali.samples import ImageSample
from tests.cache.files import Numbers, source
from tests.loader.dataset_folder import picture

GIGABYTE = 1024**3


def wait_until(true: Callable[[], bool]) -> None:
    """Waits for an event in another thread; gives up after more time than any machine needs."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "owner.lock"]


def wait_for_files(pool: FileStoreCachePool, count: int) -> None:
    """Waits until `count` complete files are on disk."""
    fetcher = pool._open()
    wait_until(lambda: pool.cached_count == count and not fetcher._fetching)


def threads_of_pools() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "energon-dali-cache"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = threads_of_pools()  # those of a pool that another test of this process left to the garbage collector
    yield tmp_path
    wait_until(lambda: threads_of_pools() <= before)
    assert not list(tmp_path.iterdir()), "a pool left files behind"


@pytest.mark.parametrize("make", [NoCachePool, FileStoreCachePool])
def test_every_pool_gives_data_sources_and_references(make: type[CachePool]) -> None:
    pool, store = make(), Numbers(2)
    first: dict[str, Any] = {}
    assert pool.get(store, "5", first) == b"55"
    lazy = pool.get_lazy(store, "7")
    second: dict[str, Any] = {}
    assert lazy.get(first) == lazy.get(first) == lazy.get(second) == b"77"  # defect 9: the second was a tuple
    assert first["__sources__"] == (source("5"), source("7"))
    assert second["__sources__"] == (source("7"),)
    assert lazy == pool.get_lazy(store, "7") == DirectLazy(store, "7")
    assert lazy != pool.get_lazy(store, "8")
    assert len({lazy, pool.get_lazy(store, "7")}) == 1
    value = {"a": [1, 2]}
    assert pool.to_cache(value, "value").get() == value
    missing = pool.get_lazy(store, "x")
    for _ in range(2):
        with pytest.raises(FileMissingError):
            missing.get()
    pool.close()
    pool.close()


def test_mock_lazy_calls_its_function_once() -> None:
    calls: list[str] = []
    lazy = MockLazy("name", lambda name: [calls.append(name), name.upper()][1])
    assert lazy.get() == lazy.get() == "NAME"
    assert calls == ["name"]
    assert pickle.loads(pickle.dumps(lazy)).get() == "NAME"


@pytest.mark.parametrize("method", ["raw", "pickle"])
def test_files_are_fetched_ahead_once_and_leave_the_disk_when_they_were_used(method: Any, folder: Path) -> None:
    store = Numbers()
    pool = FileStoreCachePool(parent_cache_dir=folder, num_workers=3, method=method)
    assert not list(folder.iterdir()), "no folder is created before the first file"
    lazies = [pool.get_lazy(store, str(number % 20)) for number in range(40)]
    wait_for_files(pool, 20)
    assert sorted(store.reads, key=int) == [str(number) for number in range(20)]
    size = sum(path.stat().st_size for path in files_below(folder))
    assert pool.cached_bytes == size
    assert [lazy.get() for lazy in lazies[:20]] == [str(number).encode() * 100 for number in range(20)]
    assert pool.cached_count == 20, "the other references still need them"
    del lazies[:30]
    wait_until(lambda: pool.cached_count == 10)
    assert lazies[0].get() == b"10" * 100
    del lazies
    wait_until(lambda: (pool.cached_count, pool.cached_bytes, len(files_below(folder))) == (0, 0, 0))
    assert len(store.reads) == 20
    pool.close()
    with pytest.raises(ConfigError, match="was closed"):
        pool.get_lazy(store, "1")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    names=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    max_files=st.integers(0, 4),
    max_bytes=st.integers(0, 450),
    workers=st.integers(1, 4),
    data=st.data(),
)
def test_the_disk_never_holds_more_than_the_limits(
    names: list[int], max_files: int, max_bytes: int, workers: int, data: st.DataObject, tmp_path: Path
) -> None:
    store = Numbers()
    pool = FileStoreCachePool(
        parent_cache_dir=tmp_path,
        num_workers=workers,
        max_cache_size_gbytes=max_bytes / GIGABYTE,
        max_cache_count=max_files,
    )
    fetcher = pool._open()
    seen: list[tuple[int, int]] = []
    write = fetcher._write

    def watched(entry: Any, packed: Any) -> bool:
        done = write(entry, packed)
        found = []
        for path in files_below(tmp_path):
            try:
                found.append(path.stat().st_size)
            except FileNotFoundError:
                continue
        seen.append((len(found), sum(found)))
        return done

    fetcher._write = watched  # type: ignore[method-assign]
    lazies = [(name, pool.get_lazy(store, str(name))) for name in names]
    lazies += [(name, pool.to_cache(str(name).encode() * 100, "v")) for name in names[:5]]  # type: ignore[misc]
    for name, lazy in data.draw(st.permutations(lazies)):
        assert lazy.get() == str(name).encode() * 100
    assert all(files <= max_files and size <= max_bytes for files, size in seen)
    wait_until(lambda: pool.cached_count == 0)
    pool.close()


def test_a_file_that_is_wanted_before_there_is_room_is_handed_over(folder: Path) -> None:
    store = Numbers()
    pool = FileStoreCachePool(parent_cache_dir=folder, num_workers=2, max_cache_count=1)
    kept, waiting = pool.get_lazy(store, "1"), pool.get_lazy(store, "2")
    wait_until(lambda: len(store.reads) == 2 and pool.cached_count == 1)
    assert waiting.get() == b"2" * 100
    assert kept.get() == b"1" * 100
    assert sorted(store.reads) == ["1", "2"], "no file was read twice"
    pool.close()


def test_what_nobody_began_to_fetch_is_read_at_once(folder: Path) -> None:
    store = Numbers()
    store.gate.clear()
    pool = FileStoreCachePool(parent_cache_dir=folder, num_workers=1)
    blocked, later = pool.get_lazy(store, "1"), pool.get_lazy(store, "2")
    wait_until(lambda: store.reads == ["1"])
    threading.Timer(0.05, store.gate.set).start()
    assert later.get() == b"2" * 100
    assert blocked.get() == b"1" * 100
    pool.close()


def test_a_disk_that_fails_costs_a_second_read_and_no_sample(folder: Path) -> None:
    store = Numbers()
    pool = FileStoreCachePool(parent_cache_dir=folder, num_workers=1, method="pickle")
    one, two, three = (pool.get_lazy(store, name) for name in "123")
    wait_for_files(pool, 3)
    first, second, _ = sorted(files_below(folder))
    first.unlink()
    second.write_bytes(b"\x80" * second.stat().st_size)  # a pickle that this pool did not write is not loaded
    assert [lazy.get() for lazy in (one, two, three)] == [b"1" * 100, b"2" * 100, b"3" * 100]
    assert sorted(store.reads) == ["1", "1", "2", "2", "3"]
    later = pool.get_lazy(store, "4")
    wait_for_files(pool, 1)
    pool.close()
    assert later.get() == b"4" * 100, "a closed pool reads from the store"


@pytest.mark.parametrize("method", ["raw", "pickle"])
def test_a_file_that_was_cut_on_disk_is_read_again(folder: Path, method: Any) -> None:
    store = Numbers()
    pool = FileStoreCachePool(parent_cache_dir=folder, num_workers=1, method=method)
    lazy = pool.get_lazy(store, "1")
    wait_for_files(pool, 1)
    (file,) = files_below(folder)
    os.truncate(file, file.stat().st_size - 1)
    assert lazy.get() == b"1" * 100
    assert store.reads == ["1", "1"]
    pool.close()


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_file_that_is_dropped_while_it_is_written_frees_its_room(folder: Path, has_failed: bool) -> None:
    pool = FileStoreCachePool(parent_cache_dir=folder, num_workers=1)
    fetcher = pool._open()
    name_folder, begun, dropped = fetcher._folder, threading.Event(), threading.Event()

    def name_folder_slowly() -> Path:
        begun.set()
        assert dropped.wait(60)
        if has_failed:
            raise OSError("no room")
        return name_folder()

    fetcher._folder = name_folder_slowly
    lazy = pool.get_lazy(Numbers(), "1")
    assert begun.wait(60)
    assert (pool.cached_count, pool.cached_bytes) == (1, 100), "its room is reserved"
    del lazy
    dropped.set()
    wait_until(lambda: not fetcher._fetching)
    assert (pool.cached_count, pool.cached_bytes, files_below(folder)) == (0, 0, [])
    pool.close()


def test_a_store_that_raises_system_exit_ends_neither_the_thread_nor_the_wait(folder: Path) -> None:
    class GivesUp(Numbers):
        def __getitem__(self, key: str) -> Any:
            super().__getitem__(key)
            if key == "1":
                raise SystemExit("a library gave up")
            return super().__getitem__(key)

    store, errors = GivesUp(), []
    store.gate.clear()
    pool = FileStoreCachePool(parent_cache_dir=folder, num_workers=1)
    bad, good = pool.get_lazy(store, "1"), pool.get_lazy(store, "2")
    wait_until(lambda: store.reads == ["1"])

    def wait() -> None:
        try:
            bad.get()
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    store.gate.set()
    waiting.join(60)
    assert [type(error) for error in errors] == [DatasetError], "threads that wait must not end either"
    assert "SystemExit(a library gave up) was raised while '1' was read" in str(errors[0])
    assert good.get() == b"2" * 100
    pool.close()


def test_a_relative_folder_stays_where_it_was_meant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    pool = FileStoreCachePool(parent_cache_dir=".", num_workers=1)
    monkeypatch.chdir("/")
    reference = pool.get_lazy(Numbers(), "1")
    wait_for_files(pool, 1)
    assert len(files_below(folder)) == 1
    assert reference.get() == b"1" * 100
    pool.close()


def test_a_folder_that_cannot_be_written_to_is_told_once(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path_factory.mktemp("occupied") / "file"
    file.touch()
    store = Numbers()
    pool = FileStoreCachePool(parent_cache_dir=file, num_workers=1)
    references = [pool.get_lazy(store, name) for name in "12"]
    wait_until(lambda: len(store.reads) == 2 and not pool._open()._fetching)
    assert [reference.get() for reference in references] == [b"1" * 100, b"2" * 100]
    pool.close()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "could not be kept on disk" in told[0]
    assert str(file) in told[0]


def test_names_of_the_current_sample_are_told_apart(folder: Path) -> None:
    (folder / "files").mkdir()
    for key in "ab":
        (folder / "files" / f"{key}.txt").write_text(key * 3)
    store = SystemFileStore(folder / "files")
    pool = FileStoreCachePool(parent_cache_dir=folder)
    lazies = [pool.get_lazy(PrimaryFileStore(store, key), ".txt") for key in "ab"]
    assert [lazy.get() for lazy in lazies] == [b"aaa", b"bbb"]
    assert lazies[0] != lazies[1]
    pool.close()
    for path in (folder / "files").iterdir():
        path.unlink()
    (folder / "files").rmdir()


class OddError(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail_oddly(name: str) -> Any:
    raise OddError(1, 2)


def test_references_arrive_with_their_data_or_their_failure(folder: Path) -> None:
    store = Numbers()
    pool = FileStoreCachePool(parent_cache_dir=folder)
    sent = [
        pool.get_lazy(store, "3"),
        DirectLazy(store, "4"),
        pool.to_cache([5], "v"),
        pool.get_lazy(store, "x"),
        MockLazy("m", fail_oddly),
    ]
    three, four, five, missing, odd = pickle.loads(pickle.dumps(sent))
    target: dict[str, Any] = {}
    assert three.get(target) == b"3" * 100
    assert (four.get(), five.get()) == (b"4" * 100, [5])
    assert target["__sources__"] == (source("3"),)
    assert three == sent[0]
    assert isinstance(three, SettledLazy)
    with pytest.raises(FileMissingError, match="no file 'x'"):
        missing.get()
    with pytest.raises(DatasetError, match="OddError: 1 and 2"):
        odd.get()
    pool.close()


def test_a_fork_uses_neither_the_threads_nor_the_files_of_its_parent(folder: Path) -> None:
    store = Numbers()
    pool = FileStoreCachePool(parent_cache_dir=folder, num_workers=1)
    lazy = pool.get_lazy(store, "3")
    wait_for_files(pool, 1)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        good = lazy.get() == b"3" * 100 and pool.get_lazy(store, "6").get() == b"6" * 100
        pool.close()
        os.write(writing, b"good" if good else b"bad")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 10) == b"good"
    assert pool.cached_count == 1
    assert lazy.get() == b"3" * 100
    assert store.reads == ["3"]
    pool.close()


def test_a_share_has_part_of_the_limits_and_goes_alone(folder: Path) -> None:
    store = Numbers()
    pool = FileStoreCachePool(parent_cache_dir=folder, max_cache_size_gbytes=1000 / GIGABYTE, max_cache_count=9)
    share = pool.shared_by(3)
    assert (share.max_bytes, share.max_count) == (333, 3)
    worker = pickle.loads(pickle.dumps(share))
    lazies = [p.get_lazy(store, "1") for p in (pool, share, worker)]
    for each in (pool, share, worker):
        wait_for_files(each, 1)
    share.close()
    assert len(files_below(folder)) == 1, "removing the share removes the files of its workers"
    assert [lazy.get() for lazy in lazies] == [b"1" * 100] * 3
    worker.close()
    pool.close()


CRASH = """
import os, sys, time
from energon_dali.cache import FileStoreCachePool
from tests.cache.files import Numbers
pool = FileStoreCachePool(parent_cache_dir=sys.argv[1])
lazies = [pool.get_lazy(Numbers(), str(n)) for n in range(5)]
while pool.cached_count < 5 or pool._open()._fetching: time.sleep(0.01)
print("ready", flush=True)
time.sleep(60)
"""


def test_the_next_pool_removes_what_a_killed_process_left(folder: Path) -> None:
    alive = FileStoreCachePool(parent_cache_dir=folder)
    lazy = alive.get_lazy(Numbers(), "1")
    wait_for_files(alive, 1)
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", CRASH, str(folder)], cwd=root, stdout=subprocess.PIPE, env={**os.environ}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert len(files_below(folder)) == 6
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    following = FileStoreCachePool(parent_cache_dir=folder)
    assert following.to_cache(1, "one").get() == 1
    assert len(files_below(folder)) == 1, "the open pool keeps its file"
    assert lazy.get() == b"1" * 100
    alive.close()
    del following  # not closed: it goes away with its last reference


def test_media_in_references_are_decoded_in_the_block(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(picture(1))
    store = DecodeFileStore(SystemFileStore(tmp_path), decoder=DaliDecoder(image_decode_device="cpu"))
    lazy: Lazy[Any] = DirectLazy(store, "a.jpg")
    sample = ImageSample(__key__="k", __restore_key__=(), image=lazy)  # type: ignore[arg-type]
    found = handles_of([sample, {"again": lazy}])
    assert [handle.format for handle in found] == ["jpeg"], "each file is decoded once"
    put_outcomes([sample, {"again": lazy}], [Decoded(handle.decode(), "pil") for handle in found])
    expected = DecodeFileStore(SystemFileStore(tmp_path), decoder=SampleDecoder())["a.jpg"][0]
    assert (lazy.get() == expected).all()


@pytest.mark.parametrize(
    "options",
    [
        {"method": "zip"},
        {"num_workers": 0},
        {"max_cache_count": -1},
        {"max_cache_size_gbytes": -1},
        {"max_cache_size_gbytes": float("nan")},
        {"max_cache_size_gbytes": float("inf")},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"method|is invalid"):
        FileStoreCachePool(**options)
