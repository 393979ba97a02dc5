from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.wrappers.epochize import EpochizeDataset, LimitDataset
from energon_dali.errors import ConfigError, LayoutError, StateError, WatchdogTimeoutError, WorkerDiedError, WorkerError
from energon_dali.loader import watchdog
from energon_dali.loader.basic_loader import BasicDataLoader
from energon_dali.loader.get_loader import get_loader, get_savable_loader
from energon_dali.loader.loader_state import merge_states
from energon_dali.loader.prefetcher import ThreadPrefetcher
from energon_dali.loader.savable_loader import SavableDataLoader
from energon_dali.loader.watchdog import WaitMonitor, Watchdog
from energon_dali.worker_config import WorkerConfig
from tests.loader.numbers_dataset import LENGTHS, Mishap, NumbersDataset, tree
from tests.running_time import wait_until


def place(workers: int = 0, rank: int = 0, world: int = 1, streams: int = len(LENGTHS)) -> WorkerConfig:
    return WorkerConfig(rank=rank, world_size=world, num_workers=workers, num_streams=streams)


def expected(epoch: int, lengths: list[int] = LENGTHS) -> list[tuple[int, int, int]]:
    return sorted(
        ((stream, epoch, at) for stream, length in enumerate(lengths) for at in range(length)),
        key=lambda element: (element[2], element[0]),
    )


def loader(config: WorkerConfig, *, rank_work: bool = False, start_method: str = "fork", **options: Any) -> Any:
    names = ("lengths", "mishap", "make", "seconds", "block_size")
    parts = {name: options.pop(name) for name in names if name in options}
    return get_savable_loader(tree(config, rank_work=rank_work, **parts), start_method=start_method, **options)


LAYOUTS = [(0, False), (1, False), (2, False), (2, True), (4, True)]


@pytest.mark.parametrize(("workers", "rank_work"), LAYOUTS)
def test_epochs_follow_each_other_in_stream_order(workers: int, rank_work: bool) -> None:
    with loader(place(workers), rank_work=rank_work) as batches:
        assert len(batches) == 15
        for epoch in range(3):
            assert [batch[:3] for batch in batches] == expected(epoch)


@pytest.mark.parametrize(("workers", "rank_work"), LAYOUTS)
def test_breaking_and_iterating_again_continues(workers: int, rank_work: bool) -> None:
    with loader(place(workers), rank_work=rank_work) as batches:
        got = []
        for batch in batches:
            got.append(batch[:3])
            if len(got) == 4:
                break
        iterator = iter(batches)
        got += [batch[:3] for batch in iterator]
        assert got == expected(0)
        with pytest.raises(StopIteration):
            next(iterator)
        assert next(iter(batches))[:3] == expected(1)[0]


@pytest.mark.parametrize(("workers", "rank_work"), LAYOUTS)
def test_who_takes_as_many_as_there_are_finds_the_next_epoch(workers: int, rank_work: bool) -> None:
    with loader(place(workers), rank_work=rank_work) as batches:
        for epoch in range(3):  # as Lightning does: it asks for the length
            assert [batch[:3] for batch in islice(batches, len(batches))] == expected(epoch)
        assert [batch[:3] for batch in batches] == expected(3)
    with loader(place(streams=1), lengths=[0]) as batches:
        assert [*batches, *batches] == []


def test_iterators_of_one_epoch_end_together() -> None:
    with loader(place()) as batches:
        early, late, unused = iter(batches), iter(batches), iter(batches)
        got = []
        for batch in early:
            got += [batch, *late]
        assert got == expected(0)
        assert list(unused) == expected(1)
        assert not [*early, *late]
        assert list(batches) == expected(2)


@pytest.mark.parametrize(("workers", "rank_work"), [(0, True), (2, False), (2, True)])
def test_a_state_after_every_batch_restores_exactly(workers: int, rank_work: bool) -> None:
    everything = expected(0) + expected(1) + expected(2)
    with loader(place(workers), rank_work=rank_work) as batches:
        states = [batches.save_state_rank()]
        for _ in range(2):
            iterator = iter(batches)
            for _ in iterator:
                states.append(iterator.state_dict())
    assert len(states) == 31
    for taken in (0, 1, 2, 7, 14, 15, 16, 22):
        state = json.loads(json.dumps(states[taken]))
        other = 0 if workers else 1
        with loader(place(other), rank_work=rank_work) as again:
            again.restore_state_rank(state)
            assert again.state_dict() == state
            got = [batch[:3] for _ in range(2) for batch in again]
        if taken == 15:  # the end of the epoch was not seen yet: an empty rest follows first
            assert got == expected(1)
        else:
            assert got == everything[taken:][: len(got)]
            assert got


def test_a_closed_loader_continues_after_the_last_batch() -> None:
    batches = loader(place(2), rank_work=True)
    got = [next(iter(batches))[:3] for _ in range(4)]
    batches.close()
    batches.close()
    got += [batch[:3] for batch in batches]
    batches.close()
    assert got == expected(0)


def ranks(world: int, workers: int) -> Iterator[SavableDataLoader[Any]]:
    for rank in range(world):
        yield loader(place(workers, rank, world))


def test_closing_inside_of_a_wait_repeats_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler or another thread does."""
    todo: list[Any] = []

    def make(*place: int) -> tuple[int, ...]:
        if todo and place == (3, 0, 1):
            todo.pop().close()
        return place

    with loader(place(), make=make) as batches:
        todo.append(batches)
        assert list(batches) == expected(0)
    assert not todo
    take = ThreadPrefetcher._take

    def interrupted(prefetcher: ThreadPrefetcher) -> Any:
        taken = take(prefetcher)
        if todo and taken[1] is not None and taken[1][0][:3] == (3, 0, 1):
            todo.pop().close()
        return taken

    monkeypatch.setattr(ThreadPrefetcher, "_take", interrupted)
    with loader(place(2), rank_work=True) as batches:
        todo.append(batches)
        assert [batch[:3] for batch in batches] == expected(0)
    assert not todo


def test_a_wait_for_a_thread_that_was_closed_ends() -> None:
    dog = Watchdog(60, None, fail_on_timeout=True)
    prefetcher = ThreadPrefetcher(RankIterator(tree(place())), None, dog, None, depth=1)
    assert wait_until(lambda: prefetcher.occupancy == 1, 60)
    prefetcher.close()
    assert prefetcher.next() == expected(0)[0]
    with pytest.raises(WorkerError, match="The loader was closed"):
        prefetcher.next()


def test_ctrl_c_while_a_loader_is_closed_ends_its_workers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            if self.name == ThreadPrefetcher.thread_name:
                raise KeyboardInterrupt
            super().join(timeout)

    monkeypatch.setattr(threading, "Thread", Interrupted)
    batches = loader(place(1), rank_work=True)
    next(iter(batches))
    assert batches._prefetcher is not None
    pids = batches._prefetcher._processes.pids
    with pytest.raises(KeyboardInterrupt):
        batches.close()
    assert len(pids) == 1
    assert wait_until(lambda: not Path(f"/proc/{pids[0]}").exists(), 20)


def test_a_global_state_restores_onto_every_layout_that_fits() -> None:
    states = []
    for batches in ranks(2, 2):
        for _ in range(3):
            next(iter(batches))
        states.append(batches.save_state_rank())
        batches.close()
    whole = json.loads(json.dumps(merge_states(states)))
    rests = []
    for world, workers in ((1, 0), (1, 4), (2, 1), (4, 1)):
        rest: list[Any] = []
        for batches in ranks(world, workers):
            batches.restore_state_global(whole)
            assert batches.save_state_rank()["given"] == {str(batches.worker_config.rank): 6 // world}
            rest += list(batches)
            batches.close()
        rests.append(sorted(rest, key=lambda element: (element[2], element[0])))
    assert all(rest == rests[0] for rest in rests)
    # Six were delivered: three of rank 0 (streams 0 and 2) and three of rank 1 (streams 1 and 3).
    assert rests[0] == [
        e for e in expected(0) if e not in [(0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0), (3, 0, 0), (1, 0, 1)]
    ]


def test_a_global_state_of_one_process_and_a_list_of_states_restore() -> None:
    batches = loader(place())
    next(iter(batches))
    for state in (batches.save_state_global(0), [batches.save_state_rank()]):
        again = loader(place(1))
        again.restore_state_global(state)
        assert list(again) == expected(0)[1:]
        again.close()
    with pytest.warns(DeprecationWarning, match="save_state_global"):
        old = batches.save_state(0)
    again = loader(place())
    with pytest.warns(DeprecationWarning, match="restore_state_global"):
        again.restore_state(old)
    assert next(iter(again)) == expected(0)[1]


def test_states_that_do_not_fit_are_refused_with_what_would() -> None:
    state = loader(place(2)).save_state_rank()
    with pytest.raises(LayoutError, match=r"job with 4 streams; this loader has 2 .*num_streams=4.*: 1, 2, 4\."):
        loader(place(2, streams=2), lengths=[5, 3]).restore_state_rank(state)
    one = loader(place(2, 0, 2)).save_state_rank()
    with pytest.raises(LayoutError, match=r"holds the streams \[0, 2\] .*rank 1 of 2 runs \[1, 3\]"):
        loader(place(2, 1, 2)).restore_state_rank(one)
    with pytest.raises(StateError, match=r"of another dataset.* lengths\[3\] was 7, is 8"):
        loader(place(2), lengths=[5, 3, 0, 8]).restore_state_rank(state)
    with pytest.raises(StateError, match="not a loader state"):
        loader(place()).restore_state_rank({"dataset_state": 1})
    with pytest.raises(StateError, match="has version 7"):
        loader(place()).restore_state_rank({**state, "version": 7})
    damages = [
        ("streams", {**state["streams"], "a": state["streams"]["0"]}, r"streams\[a\]"),
        ("streams", {**state["streams"], "1": {**state["streams"]["1"], "count": -5}}, r"streams\[1\]"),
        ("given", {"0": -1}, r"given\[0\]"),
    ]
    for name, value, place_of_it in damages:
        with pytest.raises(StateError, match=f"damaged: {place_of_it} is missing or cannot be used"):
            loader(place(2)).restore_state_rank({**state, name: value})
    with pytest.raises(StateError, match=r"Streams \['1', '3'\] are in none"):
        merge_states([one])
    with pytest.raises(StateError, match="in more than one"):
        merge_states([one, one])
    started = loader(place())
    next(iter(started))
    with pytest.raises(StateError, match="before the first batch"):
        started.restore_state_rank(state)
    with pytest.raises(StateError, match=r"torch\.distributed is not initialised"):
        loader(place(0, 0, 2)).save_state_global(0)


def test_global_states_want_a_group_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    group: Any = object()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda asked: [2, 6] if asked is group else None)
    two_of_eight = WorkerConfig(rank=0, world_size=2, num_workers=0, num_streams=4, data_parallel_group=group)
    state = loader(place()).save_state_rank()
    with pytest.raises(StateError, match=r"global_dst_rank=0 is not among the ranks \[2, 6\]"):
        loader(two_of_eight).save_state_global(0)
    for outside in (2, 6, -1):
        reason = rf"src_rank={outside} is not a rank of .* within the group \[2, 6\]: give 0 to 1"
        with pytest.raises(StateError, match=reason):
            loader(two_of_eight).restore_state_global(state, src_rank=outside)
    sent: list[Any] = []
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda box, src, group: sent.append((src, group)))
    loader(two_of_eight).restore_state_global(state, src_rank=1)
    assert sent == [(6, group)], "as in Energon, src_rank counts within the group"
    with pytest.raises(StateError, match=r"src_rank=0 \(global rank 2\) sent None instead of a state"):
        loader(two_of_eight).restore_state_global(None, src_rank=0)
    for wrong in (place(0, 0, 2), replace(two_of_eight, world_size=4)):
        with pytest.raises(StateError, match=r"over the ranks \[.*6.*\] .* has world_size \d"):
            loader(wrong).save_state_global(0)
        with pytest.raises(StateError, match=r"over the ranks \[.*6.*\] .* has world_size \d"):
            loader(wrong).restore_state_global(state, src_rank=0)


def test_the_state_is_small_and_loads_without_trust(tmp_path: Any) -> None:
    state = loader(place(2)).save_state_rank()
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state
    assert len(json.dumps(state)) < 1000


@pytest.mark.parametrize("workers", [0, 2])
def test_limited_and_virtual_epochs(workers: int) -> None:
    limited = get_loader(LimitDataset(tree(place(workers)), 4), start_method="fork")
    assert [list(limited) for _ in range(2)] == [expected(0)[:4]] * 2
    limited.close()
    virtual = get_loader(EpochizeDataset(tree(place(workers)), 6), start_method="fork")
    assert len(virtual) == 6
    assert [list(virtual) for _ in range(2)] == [expected(0)[:6], expected(0)[6:12]]
    virtual.close()


def test_a_tree_without_a_cut_runs_in_workers_all_the_same() -> None:
    for dataset in (NumbersDataset(LENGTHS, place(2)), LimitDataset(NumbersDataset(LENGTHS, place(2)), 9)):
        batches = get_loader(dataset, start_method="fork")
        assert list(batches) == expected(0)[: batches.__len__()]
        assert batches.stats().counts["blocks"] > 1
        batches.close()


def test_what_the_rank_does_runs_ahead_in_a_thread_of_its_own() -> None:
    with loader(place(2), rank_work=True) as batches:
        assert next(iter(batches))[3] == "energon-dali-rank"
    with loader(place(0), rank_work=True) as batches:
        assert next(iter(batches))[3] == "MainThread"


@pytest.mark.parametrize("rank_work", [False, True])
def test_a_dead_worker_and_an_exception_end_the_iteration_and_leave_nothing(rank_work: bool) -> None:
    before = set(threading.enumerate())
    for kind, error in (("kill", WorkerDiedError), ("raise", ValueError)):
        batches = loader(place(2), rank_work=rank_work, mishap=Mishap(1, 1, kind))
        got = []
        with pytest.raises(error):
            got.extend(batches)
        assert [batch[:3] for batch in got] == [(0, 0, 0)]  # the other elements of the block are lost with it
        assert set(threading.enumerate()) <= before
        assert batches._prefetcher is None
        with pytest.raises(error):  # the next attempt stops at the same element
            list(batches)


def test_a_forgotten_loader_ends_everything() -> None:
    before = set(threading.enumerate())
    for workers, rank_work in ((2, True), (2, False), (0, False)):
        batches = loader(place(workers), rank_work=rank_work)
        for _ in batches:
            break
        prefetcher = batches._prefetcher
        pids = prefetcher._processes.pids if workers else []
        del batches, prefetcher
        assert set(threading.enumerate()) <= before
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


class _Release(logging.Handler):
    """Lets the first element of `waiting` continue once the watchdog has warned."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reading, self.writing = os.pipe()

    def emit(self, record: logging.LogRecord) -> None:
        os.write(self.writing, b".")

    def waiting(self, stream: int, epoch: int, at: int) -> tuple[int, int, int]:
        if at == 0:
            os.read(self.reading, 1)
        return stream, epoch, at


@pytest.mark.parametrize(("workers", "rank_work"), [(0, False), (1, False), (1, True)])
def test_the_watchdog_warns_once_with_the_stacks(
    workers: int, rank_work: bool, caplog: pytest.LogCaptureFixture
) -> None:
    release = _Release()
    logger = logging.getLogger("energon_dali.loader")
    logger.addHandler(release)
    try:
        with (
            caplog.at_level(logging.WARNING, "energon_dali.loader"),
            loader(
                place(workers, streams=1),
                lengths=[2],
                make=release.waiting,
                block_size=1,
                rank_work=rank_work,
                watchdog_timeout_seconds=0.3,
            ) as batches,
        ):
            assert next(iter(batches))[:3] == (0, 0, 0)
    finally:
        logger.removeHandler(release)
        os.close(release.reading)
        os.close(release.writing)
    assert len(caplog.records) == 1
    assert "No batch arrived for" in caplog.text
    assert "Thread MainThread" in caplog.text


def endless_second(stream: int, epoch: int, at: int) -> tuple[int, int, int]:
    while at:
        time.sleep(0.01)  # an exception from elsewhere arrives between two lines
    return stream, epoch, at


def test_ctrl_c_while_the_watchdog_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    with loader(place()) as batches:
        monkeypatch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(iter(batches))
        monkeypatch.undo()
        assert list(batches) == expected(0)


@pytest.mark.parametrize(("workers", "rank_work"), [(0, False), (1, False), (1, True)])
def test_the_watchdog_fails_where_it_is_told_to(workers: int, rank_work: bool) -> None:
    batches = loader(
        place(workers, streams=1),
        lengths=[9],
        make=endless_second,
        block_size=1,
        rank_work=rank_work,
        watchdog_timeout_seconds=0.2,
        watchdog_initial_timeout_seconds=60,
        fail_on_timeout=True,
    )
    iterator = iter(batches)
    next(iterator)
    with pytest.raises(WatchdogTimeoutError, match="No batch arrived"):
        next(iterator)
    batches.close()


def test_a_wait_that_ended_while_the_watching_thread_stood_still_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([False, False, True])
    dog = Watchdog(0.5, None, fail_on_timeout=False)
    monkeypatch.setattr(dog, "check", lambda waited: pytest.fail(f"{waited} s"))
    monitor = WaitMonitor(dog)
    monitor._since = 0.0, threading.get_ident()

    def much_later() -> float:
        monitor.end()
        dog.reset()
        return 100.0

    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=much_later))
    monitor._watch(SimpleNamespace(wait=lambda seconds: next(looks)))  # type: ignore[arg-type]
    assert not list(looks)


def test_statistics_say_how_long_the_trainer_waited() -> None:
    with loader(place(1, streams=1), lengths=[6], seconds=0.05, block_size=1, rank_work=True) as batches:
        list(batches)
        stats = batches.stats()
    assert stats.batches == 6
    assert stats.first_batch_seconds is not None
    assert 0.0 < stats.blocked_seconds <= stats.elapsed_seconds
    assert 0.0 < stats["trainer"]["blocked_share"] <= 1.0
    assert stats.counts["made"] == 6
    assert stats.block_bytes > 0
    assert str(stats).startswith("trainer blocked")
    assert json.dumps(stats.as_dict())


def test_settings_are_checked() -> None:
    dataset = tree(place())
    with pytest.raises(ConfigError, match="prefetch_factor=0"):
        get_loader(dataset, prefetch_factor=0)
    with pytest.raises(ConfigError, match="start_method='thread'"):
        get_loader(dataset, start_method="thread")
    with pytest.raises(ConfigError, match="pin_memory='yes'"):
        get_loader(dataset, pin_memory="yes")
    with pytest.raises(ConfigError, match="watchdog_timeout_seconds=0"):
        get_loader(dataset, watchdog_timeout_seconds=0)
    with pytest.warns(DeprecationWarning, match="leave it out"), pytest.raises(ConfigError, match="the dataset has"):
        BasicDataLoader(dataset, worker_config=place(3, streams=3))
    with pytest.warns(DeprecationWarning, match="leave it out"):
        made = get_savable_loader(dataset, worker_config=place(), checkpoint_every_sec=1, n_checkpoints=3)
    assert made.config()["dataset"] == dataset.config()
    assert "NumbersDataset" in str(made)
