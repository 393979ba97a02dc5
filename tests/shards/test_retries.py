"""One rule for transient errors: what is retried and how often, what costs a sample, and what ends the run."""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from energon_dali.errors import ConfigError, DatasetFormatError, ShardError, StorageError, StoreUnavailableError
from energon_dali.shards import (
    JsonlFile,
    JsonlReader,
    RawSample,
    RetryPolicy,
    ShardReader,
    StoragePath,
    WebdatasetFolder,
    prepare_dataset,
    prepare_jsonl,
)
from energon_dali.shards.storage import local, retry, store
from energon_dali.shards.storage.store import ReadScope, read_scope
from tests.shards.failing_storage import FakeClock, failing_preads
from tests.shards.failing_storage import clock as clock
from tests.shards.tars import captions

ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR)
PLACES = [(shard, sample) for shard in range(3) for sample in range(4)]


@pytest.fixture(autouse=True)
def _own_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_stores", {})


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    return tmp_path


def read(folder: Path, reader: ShardReader | None = None) -> list[Any]:
    reader = reader or ShardReader(WebdatasetFolder(str(folder)))
    samples = reader.read([shard for shard, _ in PLACES], [sample for _, sample in PLACES])
    reader.close()
    return samples


def good(samples: list[Any]) -> list[str]:
    return [sample.key for sample in samples if isinstance(sample, RawSample)]


ALL = [f"s{shard}_{sample}" for shard, sample in PLACES]


def test_the_store_of_a_file_is_its_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, linked = tmp_path / "outer" / "a b" / "inner", tmp_path / "linked"
    inner.mkdir(parents=True)
    linked.symlink_to(inner)
    (tmp_path / "outer" / "a better place").mkdir()
    mounts = frozenset({"/", str(tmp_path / "outer"), str(tmp_path / "outer" / "a b")})
    monkeypatch.setattr(store, "_mount_table", (float("inf"), mounts))
    assert store.store_of(str(inner / "file")).name == str(tmp_path / "outer" / "a b")
    assert store.store_of(str(linked / "file")).name == str(tmp_path / "outer" / "a b")
    assert store.store_of(str(tmp_path / "outer" / "a better place" / "file")).name == str(tmp_path / "outer")
    assert store.store_of(str(tmp_path / "file")).name == "/"


def test_mount_points_are_those_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_mount_table", (float("-inf"), frozenset()))
    assert {"/", "/proc"} <= store._mount_points()


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["shard_1.tar", "extents.bin"])
def test_one_error_costs_no_sample(dataset: Path, clock: FakeClock, number: int, name: str) -> None:
    errors = [OSError(number, "once")]
    counts: dict[str, int] = {}
    scope = ReadScope(count=lambda name, amount: counts.update({name: counts.get(name, 0) + amount}))
    with failing_preads(lambda path, fd: errors.pop() if path.endswith(name) and errors else None), read_scope(scope):
        assert good(read(dataset)) == ALL
    assert not errors
    assert counts == {f"retries.{store.store_of(str(dataset)).name}": 1}
    assert clock.pauses == [retry.FIRST_PAUSE_SECONDS]


def test_a_descriptor_that_stays_stale_is_replaced(dataset: Path, clock: FakeClock) -> None:
    stale: set[int] = set()

    def fails(path: str, fd: int) -> OSError | None:
        if path.endswith("shard_1.tar") and not stale:
            stale.add(fd)
        return OSError(errno.ESTALE, "stale") if fd in stale else None

    with failing_preads(fails):
        assert good(read(dataset)) == ALL
    assert clock.pauses == [retry.FIRST_PAUSE_SECONDS]


def test_a_file_that_fails_for_good_costs_its_samples_and_one_budget(dataset: Path, clock: FakeClock) -> None:
    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "bad sector") if path.endswith("shard_1.tar") else None

    with failing_preads(fails) as calls, read_scope(ReadScope()):
        samples = read(dataset)
    assert good(samples) == ALL[:4] + ALL[8:]
    for error in samples[4:8]:
        assert isinstance(error, ShardError)
        assert str(dataset / "shard_1.tar") in str(error)
    assert "(5 attempts)" in str(samples[4])
    assert calls["shard_1.tar"] == 5 + 3, "the samples after the first get one attempt each"
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8]


def test_a_file_that_reads_again_has_a_whole_budget_again(dataset: Path, clock: FakeClock) -> None:
    errors = [OSError(errno.EIO, "bad")] * 5

    def fails(path: str, fd: int) -> OSError | None:
        return errors.pop() if path.endswith("shard_1.tar") and errors else None

    with failing_preads(fails), read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(str(dataset)))
        assert [type(sample) for sample in reader.read([0, 1, 1], [0, 0, 1])] == [RawSample, ShardError, RawSample]
        errors += [OSError(errno.EIO, "bad")] * 4
        assert good(reader.read([1], [2])) == ["s1_2"]
        reader.close()


def test_failures_of_another_loader_leave_the_budget_whole(dataset: Path, clock: FakeClock) -> None:
    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "bad") if path.endswith("shard_1.tar") else None

    reader = ShardReader(WebdatasetFolder(str(dataset)))
    assert good(reader.read([0, 2], [0, 0])) == ["s0_0", "s2_0"]
    for _ in range(2):
        with failing_preads(fails) as calls, read_scope(ReadScope()):
            first, second = reader.read([1, 1], [0, 1])
        assert "(5 attempts)" in str(first)
        assert "attempts)" not in str(second)
        assert calls["shard_1.tar"] == 5 + 1
    reader.close()


def test_a_file_that_failed_has_a_whole_budget_after_a_while(dataset: Path, clock: FakeClock) -> None:
    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "bad") if path.endswith("shard_1.tar") else None

    reader = ShardReader(WebdatasetFolder(str(dataset)))
    assert good(reader.read([0, 2], [0, 0])) == ["s0_0", "s2_0"]
    with failing_preads(fails), read_scope(ReadScope(RetryPolicy(request_seconds=30))):
        for seconds, attempts in ((0, 5), (20, 1), (40, 5)):
            clock.time += seconds
            with failing_preads(fails) as calls:
                assert isinstance(reader.read([1], [0])[0], ShardError)
            assert calls["shard_1.tar"] == attempts
    reader.close()


def test_witnesses_of_a_store(clock: FakeClock) -> None:
    """Files of the index are no witnesses: a cache may hold them when nothing else can be read."""
    found = store.Store("here")
    asked: list[tuple[str, int]] = []
    broken: set[str] = set()

    def read(name: str, offset: int) -> None:
        found.succeeded(name, lambda at: probe(name, at), offset)

    def probe(name: str, offset: int) -> None:
        asked.append((name, offset))
        if name in broken:
            raise OSError(errno.EIO, "down")

    assert not found.responds(1.0)
    read("/d/.nv-meta/extents.bin", 1)
    read("/d/a.tar", 2)
    read("/d/.nv-meta/extents.bin", 3)
    assert found.responds(5.0)
    assert (asked, found.last_success) == ([("/d/a.tar", 2)], 5.0)
    broken.add("/d/a.tar")
    assert not found.responds(6.0)
    broken.clear()
    read("/d/b.tar", 4)
    read("/d/b.tar", 6)
    asked.clear()
    broken.add("/d/a.tar")
    assert found.responds(7.0)
    assert (asked, found.last_success) == ([("/d/a.tar", 2), ("/d/b.tar", 6)], 7.0)
    broken.add("/d/b.tar")
    assert not found.responds(9.0)
    assert found.last_success == 7.0


def test_a_store_that_is_down_for_a_while_costs_nothing(dataset: Path, clock: FakeClock) -> None:
    end = clock.time + 90

    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.ESTALE, "down") if "shard" in path and clock.time < end else None

    with failing_preads(fails), read_scope(ReadScope()):
        folder = WebdatasetFolder(str(dataset))
        folder.index.shard(0)
        known = store.store_of(str(dataset))
        known._latest = known._other = None  # nothing else answers either
        assert good(read(dataset, ShardReader(folder))) == ALL
    assert clock.time > end
    assert max(clock.pauses) == retry.LONGEST_PAUSE_SECONDS


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "shard.tar").touch()
    real, errors = os.scandir, [OSError(errno.ESTALE, "stale")]

    def scandir(path: str) -> Any:
        if path.endswith("/b") and errors:
            raise errors[0] if len(errors) > 1 else errors.pop()
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    names = [f"{name}/shard.tar" for name in "abc"]
    assert StoragePath.of(tmp_path).list_files() == names
    errors += [OSError(errno.ESTALE, "stale")] * 2
    with pytest.raises(StorageError, match=r"list .*/b \(5 attempts\).*stale"):
        StoragePath.of(tmp_path).list_files()
    errors[:] = [PermissionError(errno.EACCES, "denied")]
    assert StoragePath.of(tmp_path).list_files() == [names[0], names[2]], "as os.walk does"


def test_outages_do_not_add_up(dataset: Path, clock: FakeClock) -> None:
    end = clock.time

    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "down") if clock.time < end else None

    with failing_preads(fails), read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(str(dataset)))
        for sample in range(3):
            assert good(reader.read([0], [sample])) == [f"s0_{sample}"]
            end = clock.time + 90
        reader.close()


def test_after_an_outage_a_file_has_a_whole_budget(dataset: Path, clock: FakeClock) -> None:
    """The store answers again, as another file shows, while this one needs a few more attempts."""
    end, bad = clock.time, 3

    def fails(path: str, fd: int) -> OSError | None:
        nonlocal bad
        if clock.time < end:
            return OSError(errno.EIO, "down")
        if path.endswith("shard_1.tar") and bad:
            bad -= 1
            return OSError(errno.EIO, "bad")
        return None

    with failing_preads(fails), read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(str(dataset)))
        bad = 0
        assert good(reader.read([1, 0], [0, 0])) == ["s1_0", "s0_0"]
        end, bad = clock.time + 60, 3
        assert good(reader.read([1], [1])) == ["s1_1"]
        assert bad == 0
        reader.close()
    assert clock.time > end
    assert clock.pauses[-3:] == [5.0, 0.1, 0.2], "pauses grow from the start again"


@pytest.mark.parametrize(
    ("policy", "failures"),
    [
        (RetryPolicy(), 5),
        (RetryPolicy(), 4),
        (RetryPolicy(attempts=2), 2),
        (RetryPolicy(attempts=50, request_seconds=3), 5),
    ],
)
def test_a_store_that_answers_again_after_the_last_attempt_costs_nothing(
    dataset: Path, clock: FakeClock, policy: RetryPolicy, failures: int
) -> None:
    """Whether the file is at fault is asked after its attempts: by then the store may be up again."""
    left = 0

    def fails(path: str, fd: int) -> OSError | None:
        nonlocal left
        down = left > 0
        left -= path.endswith("shard_1.tar")
        return OSError(errno.EIO, "down") if down else None

    with failing_preads(fails), read_scope(ReadScope(policy)):
        reader = ShardReader(WebdatasetFolder(str(dataset)))
        assert good(reader.read([1, 0], [0, 0])) == ["s1_0", "s0_0"]
        left = failures
        assert good(reader.read([1, 1], [1, 2])) == ["s1_1", "s1_2"]
        assert left <= 0
        reader.close()


def test_a_success_between_early_attempts_blames_no_file(dataset: Path, clock: FakeClock) -> None:
    """Another thread reads something after the first attempt, and then nothing can be read for a while."""
    attempts, end = 0, clock.time

    def fails(path: str, fd: int) -> OSError | None:
        nonlocal attempts
        if clock.time >= end:
            return None
        attempts += 1
        if attempts == 2:
            known.last_success = clock.now()
        return OSError(errno.EIO, "down")

    with failing_preads(fails), read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(str(dataset)))
        known = store.store_of(str(dataset))
        assert good(reader.read([1, 0], [0, 0])) == ["s1_0", "s0_0"]
        end = clock.time + 20
        assert good(reader.read([1], [1])) == ["s1_1"]
        reader.close()
    assert attempts > 5


def test_reads_from_memory_do_not_show_that_a_disk_works(dataset: Path, clock: FakeClock) -> None:
    """Other threads go on reading what the page cache holds while nothing can be read from the disk."""
    end = clock.time

    def fails(path: str, fd: int) -> OSError | None:
        known.last_success = clock.now()
        return OSError(errno.EIO, "down") if clock.time < end else None

    known = store.store_of(str(dataset))
    with failing_preads(fails), read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(str(dataset)))
        assert good(reader.read([1, 0], [0, 0])) == ["s1_0", "s0_0"]
        end = clock.time + 20
        assert good(reader.read([1], [1])) == ["s1_1"]
        reader.close()
    assert clock.time > end


def test_a_probe_reads_from_the_disk(tmp_path: Path) -> None:
    """What was read before is in memory, where it can be read although the disk is down."""

    def is_in_memory(fd: int) -> bool:
        try:
            return os.preadv(fd, [bytearray(1)], 5000, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False
        except OSError as error:
            pytest.skip(f"the file system does not say what is in memory: {error}")

    def look(path: str, fd: int) -> None:
        found.append(is_in_memory(fd))

    found: list[bool] = []
    (tmp_path / "shard.tar").write_bytes(bytes(50_000))
    with open(tmp_path / "shard.tar", "r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_in_memory(file.fileno()):
            pytest.skip("the file system keeps its files in memory")
    reader = local.LocalReader(str(tmp_path / "shard.tar"))
    reader.read_at(5000, 10)
    with failing_preads(look):
        reader._probe(5000)
    assert found == [False]


def test_a_shard_that_could_not_be_opened_is_opened_by_the_next_read(dataset: Path) -> None:
    reader = ShardReader(WebdatasetFolder(str(dataset)))
    away = (dataset / "shard_1.tar").rename(dataset / "away")
    assert [type(sample) for sample in reader.read([1, 0, 1], [0, 0, 1])] == [ShardError, RawSample, ShardError]
    away.rename(dataset / "shard_1.tar")
    assert good(reader.read([1, 1], [0, 1])) == ["s1_0", "s1_1"]
    reader.close()


def test_a_store_that_stays_down_ends_the_run(
    dataset: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    down = False

    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "down") if down else None

    with failing_preads(fails), read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(str(dataset)))
        assert good(reader.read([0], [0])) == ["s0_0"]
        down, began = True, clock.time
        with pytest.raises(StoreUnavailableError, match=r"for 12\d s.*shard_0\.tar.*\[Errno 5\] down") as ended:
            reader.read([0, 0], [1, 2])
        assert isinstance(ended.value, StorageError)
        assert 120 <= clock.time - began < 130
        with pytest.raises(StoreUnavailableError):
            reader.read([0], [2])
        assert clock.time - began < 131, "nobody waits a second time"
        down = False
        assert good(reader.read([0], [2])) == ["s0_2"]
        reader.close()
    assert "shard_0.tar" in caplog.text
    assert len(caplog.records) < 15, "retries are logged now and then"


def test_the_limits_are_the_policys(dataset: Path, clock: FakeClock) -> None:
    def attempts_of(policy: RetryPolicy, shard: int) -> int:
        def fails(path: str, fd: int) -> OSError | None:
            return OSError(errno.EIO, "bad") if path.endswith(f"shard_{shard}.tar") else None

        reader = ShardReader(WebdatasetFolder(str(dataset)))
        before = len(clock.pauses)
        with failing_preads(fails), read_scope(ReadScope(policy)):
            assert isinstance(reader.read([shard], [0])[0], ShardError)
        reader.close()
        return len(clock.pauses) - before + 1

    assert attempts_of(RetryPolicy(attempts=2), 0) == 2
    assert attempts_of(RetryPolicy(attempts=1), 1) == 1
    clock.pauses.clear()
    assert attempts_of(RetryPolicy(attempts=50, request_seconds=3), 2) < 10
    assert 1 < sum(clock.pauses) <= 3
    for wrong in ({"attempts": 0}, {"attempts": 1.5}, {"request_seconds": -1}, {"store_seconds": "long"}):
        with pytest.raises(ConfigError, match=f"RetryPolicy\\({next(iter(wrong))}="):
            RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_without_a_loader_one_budget_is_all(dataset: Path, clock: FakeClock) -> None:
    reader = StoragePath.of(str(dataset / "shard_0.tar")).open()
    with (
        failing_preads(lambda path, fd: OSError(errno.EIO, "down")) as calls,
        pytest.raises(StorageError, match=r"Could not read bytes 0 to 5 of .*shard_0\.tar \(5 attempts\)"),
    ):
        reader.read_at(0, 5)
    assert calls["shard_0.tar"] == 5
    assert sum(clock.pauses) < 2


def test_a_closed_loader_ends_the_pauses(dataset: Path) -> None:
    """In real time: closing does not wait for the 5 s of a pause."""
    scope = ReadScope(RetryPolicy(store_seconds=1000))
    reader = StoragePath.of(str(dataset / "shard_0.tar")).open()
    failed = threading.Event()

    def fails(path: str, fd: int) -> OSError | None:
        failed.set()
        return OSError(errno.EIO, "down")

    def ask() -> bytes:
        with read_scope(scope):
            return reader.read_at(0, 5)

    with failing_preads(fails), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        assert failed.wait(60)
        scope.cancel()
        with pytest.raises(StorageError, match="The loader was closed meanwhile"):
            asked.result(60)


def test_short_reads_go_on_and_end_at_the_end(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 700), offset))
    assert good(read(dataset)) == ALL
    reader = ShardReader(WebdatasetFolder(str(dataset)))
    reader.read([2], [0])
    os.truncate(dataset / "shard_2.tar", 2000)
    (error,) = reader.read([2], [3])
    assert isinstance(error, ShardError)
    assert "changed since it was indexed: it ends before byte" in str(error)
    reader.close()


def test_an_index_that_shrinks_is_an_error_and_no_crash(dataset: Path) -> None:
    folder = WebdatasetFolder(str(dataset))
    assert folder.index.shard(0).num_samples == 4
    os.truncate(dataset / ".nv-meta/extents.bin", 200)
    with pytest.raises(DatasetFormatError, match=r"extents\.bin"):
        folder.index.shard(1)


def test_lines_of_json_are_read_by_the_same_rule(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    prepare_jsonl(path)
    errors = [OSError(errno.EIO, "once")]
    reader = JsonlReader(JsonlFile(path))
    with failing_preads(lambda path, fd: errors.pop() if errors else None):
        assert good(reader.read([0, 0], [1, 0])) == ["1", "0"]
    assert not errors
    with (
        failing_preads(lambda path, fd: OSError(errno.EIO, "down")),
        read_scope(ReadScope()),
        pytest.raises(StoreUnavailableError),
    ):
        reader.read([0], [0])
    reader.close()


def test_readers_are_closed_by_the_collector_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection while a file is opened closes other files in the same thread: that must never deadlock."""
    monkeypatch.setattr(local, "MAX_OPEN_FILES", 3)
    (tmp_path / "f").write_bytes(b"content")
    place = StoragePath.of(str(tmp_path / "f"))

    class Owner:
        def __init__(self) -> None:
            self.reader, self.cycle = place.open(), self

        def __del__(self) -> None:
            self.reader.close()

    def work() -> None:
        for allocations in range(1, 120):
            Owner()
            gc.set_threshold(allocations)
            readers = [place.open() for _ in range(4)]
            assert [reader.read_at(0, 7) for reader in readers] == [b"content"] * 4

    before = gc.get_threshold()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    gc.set_threshold(*before)
    assert not thread.is_alive(), "it waits for a lock that it holds"


def test_a_file_that_begins_to_fail_is_told_from_its_store(dataset: Path, clock: FakeClock) -> None:
    """The file that was read last fails, but another one can still be read, so the store answers."""
    broken = False

    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "bad") if broken and path.endswith("shard_1.tar") else None

    with failing_preads(fails), read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(str(dataset)))
        assert good(reader.read([0, 1], [0, 0])) == ["s0_0", "s1_0"]
        broken, began = True, clock.time
        assert isinstance(reader.read([1], [1])[0], ShardError)
        reader.close()
    assert clock.time - began < 3


def test_files_that_fail_in_other_threads_meanwhile_do_not_disturb_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FAILED_FILES", 3)
    scope = ReadScope()
    steps = 0

    def interleave(frame: Any, event: str, argument: Any) -> Any:
        """Records another file before each step of `mark_failed`, as another thread may."""
        nonlocal steps
        if frame.f_code is not ReadScope.mark_failed.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            scope.failed_files[f"other {steps}"] = 0.0
        return interleave

    outer = sys.gettrace()
    sys.settrace(interleave)
    try:
        scope.mark_failed("one", 1.0)
    finally:
        sys.settrace(outer)
    assert steps
    scope.mark_failed("last", 2.0)
    assert len(scope.failed_files) == 3
    assert scope.failed_files["last"] == 2.0
