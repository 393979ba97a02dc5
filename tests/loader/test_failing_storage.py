"""A store that fails for a moment costs no sample; one that stays down ends the run, wherever reading happens."""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    ConfigError,
    DaliDecoder,
    DefaultTaskEncoder,
    RetryPolicy,
    SampleDecoder,
    StorageError,
    StoreUnavailableError,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.cli.media_options import check_image
from energon_dali.loader import deferred_close
from energon_dali.shards import ShardReader, prepare_dataset
from energon_dali.shards.storage import retry, store
from tests.loader.dataset_folder import captioning_dataset
from tests.quiet import quiet
from tests.shards.failing_storage import failing_preads
from tests.shards.web_server import serving

COUNT = 48
IMPATIENT = RetryPolicy(attempts=2, request_seconds=0.2, store_seconds=0.3)
AT_ONCE = RetryPolicy(attempts=2, store_seconds=0.0)
BROKEN = "broken"
"""While a file of this name is next to the dataset, every shard fails; forked workers see it too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("data") / "set", COUNT)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(store, "_stores", {})


class Pil(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="torchrgb8")


class Dali(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")


def dataset_of(folder: Path | str, encoder: type[Any], num_workers: int = 0, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=2, global_error_handler=quiet)
    return get_train_dataset(
        folder,
        batch_size=4,
        worker_config=config,
        task_encoder=encoder(),
        shuffle_buffer_size=None,
        max_samples_per_sequence=8,
        parallel_shard_iters=1,
        **options,
    )


def take_all(loader: Any, found: list[str]) -> None:
    while True:
        found += keys(iter(loader), 1)


def keys(batches: Iterator[Any], count: int) -> list[str]:
    return [key for batch in islice(batches, count) for key in batch.__key__]


@pytest.mark.parametrize(
    ("encoder", "num_workers", "options"),
    [(Pil, 0, {}), (Pil, 2, {}), (Dali, 0, {}), (Dali, 2, {}), (Dali, 2, {"decode_process": True})],
    ids=["in process", "workers", "dali", "dali with workers", "decode process"],
)
def test_a_store_that_stays_down_ends_the_run_and_the_loader_goes_on_later(
    folder: Path, tmp_path: Path, encoder: type[Any], num_workers: int, options: dict[str, Any]
) -> None:
    broken = tmp_path / BROKEN
    with get_savable_loader(dataset_of(folder, encoder)) as loader:
        expected = keys(iter(loader), 80)  # more than processes make ahead of the trainer

    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "down") if path.endswith(".tar") and broken.exists() else None

    loader = get_savable_loader(
        dataset_of(folder, encoder, num_workers),
        start_method="fork",
        prefetch_factor=1,
        retry_policy=IMPATIENT,
        **options,
    )
    with failing_preads(fails):
        found = keys(iter(loader), 2)
        broken.touch()
        with pytest.raises(StoreUnavailableError, match=r"retry_policy=RetryPolicy\(store_seconds=...\)") as ended:
            take_all(loader, found)
        assert isinstance(ended.value, StorageError)
        assert loader.stats()["retries"], "retries are counted by store"
        broken.unlink()
        found += keys(iter(loader), 80 - len(found) // 4)
    assert found == expected, "samples were dropped or came twice"
    assert loader.stats().failures == []
    loader.close()


@pytest.mark.parametrize(
    "nonsense",
    [b"\x00\xff nonsense" * 100, b"HTTP/1.1 206 Partial Content\r\nContent-Length: 9\r\n\r\nx"],
    ids=["no HTTP", "no range"],
)
def test_a_web_server_that_answers_nonsense_costs_no_sample(folder: Path, nonsense: bytes) -> None:
    with serving(folder) as web:
        with get_savable_loader(dataset_of(web.url, Pil)) as loader:
            expected = keys(iter(loader), 24)
        loader = get_savable_loader(dataset_of(web.url, Pil), retry_policy=AT_ONCE, read_ahead_bytes=0)
        found = keys(iter(loader), 2)
        web.nonsense = lambda path: nonsense if path.endswith(".tar") else None
        with pytest.raises(
            StoreUnavailableError, match=r"read from http://127\..*read bytes .*shard_00\d\.tar, failed"
        ):
            take_all(loader, found)
        state, delivered = loader.save_state_rank(), len(found)
        web.nonsense = lambda path: None
        found += keys(iter(loader), 24 - len(found) // 4)
        assert found == expected, "samples were dropped or came twice"
        assert loader.stats().failures == []
        loader.close()
        again = get_savable_loader(dataset_of(web.url, Pil))
        again.restore_state_rank(state)
        assert keys(iter(again), 24 - delivered // 4) == expected[delivered:]
        again.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_that_pass_cost_no_sample_and_are_counted(folder: Path, tmp_path: Path, num_workers: int) -> None:
    with get_loader(dataset_of(folder, Pil)) as loader:
        expected = keys(iter(loader), 24)
    failed = tmp_path / "failed"
    failed.mkdir()

    def fails(path: str, fd: int) -> OSError | None:
        try:
            (failed / f"{os.getpid()} {os.path.basename(path)}").touch(exist_ok=False)
        except FileExistsError:
            return None
        return OSError(errno.ESTALE, "once")

    with failing_preads(fails), get_loader(dataset_of(folder, Pil, num_workers), start_method="fork") as loader:
        assert keys(iter(loader), 24) == expected
        retries = loader.stats().retries
    names = [path.name.partition(" ")[2] for path in failed.iterdir()]
    assert {"extents.bin", "shard_000.tar"} <= set(names)
    assert list(retries) == [store.store_of(str(folder)).name]
    # With workers, reads of the index in the trainer's process, while it plans, belong to no loader.
    assert len(names) - 2 <= sum(retries.values()) <= len(names)
    assert f"retries of {next(iter(retries))}" in str(loader.stats())


def test_a_shard_that_fails_for_good_costs_its_samples_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: Counter[int] = Counter()
    read = ShardReader.read

    def counted(self: ShardReader, shards: Any, samples: Any) -> Any:
        wanted.update(shards)
        return read(self, shards, samples)

    monkeypatch.setattr(ShardReader, "read", counted)

    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "bad disk") if path.endswith("shard_001.tar") else None

    policy = RetryPolicy(attempts=3)
    with failing_preads(fails) as calls, get_loader(dataset_of(folder, Pil), retry_policy=policy) as loader:
        found = set(keys(iter(loader), 16))
        failures = loader.stats().failures
    lost = {f"k{number:04d}" for number in range(16, 32)}
    assert found == {f"k{number:04d}" for number in range(COUNT)} - lost
    assert {failure["key"] for failure in failures} == lost
    assert {failure["shard"] for failure in failures} == {"shard_001.tar"}
    assert calls["shard_001.tar"] <= wanted[1] + 2


def test_dalis_own_reader_goes_on_after_an_error(tmp_path: Path) -> None:
    """What DALI cannot read is read again in Python; a store that stays down ends the run there too."""
    folder = captioning_dataset(tmp_path / "set", COUNT)
    patterns = [("train", ".*"), ("val", ".*")]
    prepare_dataset(str(folder), split_patterns=patterns, check_part=check_image)
    with get_loader(dataset_of(folder, Dali)) as loader:
        expected = keys(iter(loader), 12)
    encoder = type(
        "Native", (Dali,), {"decoder": DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu", feed="native")}
    )
    errors = [OSError(errno.EIO, "once")] * 2
    from energon_dali.decode.dali.images.dali_reader import DaliReader

    def refuses(self: Any, places: Any, first: int) -> None:
        raise RuntimeError("encountered: cannot read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DaliReader, "_check_order", refuses)
        with (
            failing_preads(lambda path, fd: errors.pop() if path.endswith(".tar") and errors else None),
            get_loader(dataset_of(folder, encoder)) as loader,
        ):
            assert keys(iter(loader), 12) == expected
            assert sum(loader.stats().retries.values()) == 2
        dataset = dataset_of(folder, encoder)
        with (
            failing_preads(lambda path, fd: OSError(errno.EIO, "down")),
            get_loader(dataset, retry_policy=IMPATIENT) as loader,
            pytest.raises(StoreUnavailableError),
        ):
            next(iter(loader))


def test_closing_does_not_wait_for_a_store_that_is_down(folder: Path) -> None:
    reading = threading.Event()

    def fails(path: str, fd: int) -> OSError | None:
        if not path.endswith(".tar"):
            return None
        reading.set()
        return OSError(errno.EIO, "down")

    loader = get_loader(dataset_of(folder, Pil), retry_policy=RetryPolicy(store_seconds=10_000, request_seconds=0))
    known = store.store_of(str(folder))
    known._latest = known._other = None
    ended: list[BaseException] = []

    def take() -> None:
        try:
            next(iter(loader))
        except BaseException as error:
            ended.append(error)

    with failing_preads(fails):
        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        assert reading.wait(60)
        loader.close()
        thread.join(60)
    assert not thread.is_alive()


def test_states_do_not_depend_on_the_policy(folder: Path) -> None:
    with get_savable_loader(dataset_of(folder, Pil), retry_policy=IMPATIENT) as loader:
        keys(iter(loader), 3)
        state = loader.save_state_rank()
        expected = keys(iter(loader), 5)
    with get_savable_loader(dataset_of(folder, Pil), retry_policy=RetryPolicy(attempts=1)) as loader:
        loader.restore_state_rank(state)
        assert keys(iter(loader), 5) == expected
    with pytest.raises(ConfigError, match="retry_policy=5 is not a RetryPolicy"):
        get_loader(dataset_of(folder, Pil), retry_policy=5)  # type: ignore[arg-type]


# --- the garbage collector -------------------------------------------------------------------------------------------


def test_a_collected_loader_is_closed_away_from_the_thread_that_collects() -> None:
    """That thread may hold locks that closing waits for."""
    lock, closed = threading.Lock(), threading.Event()

    class Prefetcher:
        def close(self) -> None:
            with lock:
                closed.set()

    class Owner:
        def __init__(self) -> None:
            self.cycle = self

    owner = Owner()
    end = deferred_close.close_when_collected(owner, Prefetcher())  # type: ignore[arg-type]
    seen = weakref.ref(owner)
    done = threading.Event()

    def collect() -> None:
        with lock:
            gc.collect()
        done.set()

    del owner
    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    assert done.wait(60), "the collecting thread waits for its own lock"
    assert seen() is None
    assert closed.wait(60)
    assert not end.alive


def test_a_loader_that_nobody_holds_is_closed_at_once() -> None:
    closed = []

    class Prefetcher:
        def close(self) -> None:
            closed.append(threading.current_thread())

    class Owner:
        pass

    owner = Owner()
    deferred_close.close_when_collected(owner, Prefetcher())  # type: ignore[arg-type]
    del owner
    assert closed == [threading.current_thread()]
