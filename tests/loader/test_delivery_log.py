"""The log of what was not delivered as planned: bounded, and whole when the ranks' logs are put together."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import energon_dali as ed
from energon_dali.datasets.step_entries import EMPTY, LEFT_OUT, Deviation
from energon_dali.errors import StateError
from energon_dali.loader import delivery_log
from energon_dali.loader.delivery_log import (
    MAX_LOG_BYTES,
    DeliveryLog,
    LogPart,
    merge_logs,
    parts_of,
    split_log,
    uncovered_ranks,
)
from energon_dali.loader.loader_state import check_format, merge_states
from tests.loader.test_global_batches import Encoder, Job, take, write_blend


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blend(tmp_path_factory.mktemp("texts"))


def state_of(log: dict[str, Any], *ranks: int, world_size: int) -> dict[str, Any]:
    """Returns what a log needs of a state."""
    return {"cursor": {}, "given": {str(rank): 0 for rank in ranks}, "world_size": world_size, **log}


def noted(log: DeliveryLog, reached: int) -> list[Deviation]:
    entry = json.loads(json.dumps(log.entry(reached)))
    return sorted(one for part in parts_of(entry) for one in part.unpacked())


def test_deviations_survive_packing() -> None:
    draw = random.Random(1)
    log, expected, unit = DeliveryLog(0, 1), [], 0
    for _ in range(2000):
        unit += draw.choice([0, 1, 100, 1 << 20])
        outcome = draw.randint(0, LEFT_OUT)
        count = draw.choice([1, 7, 1 << 30]) if outcome == LEFT_OUT else 1
        expected.append(Deviation(unit, outcome, count))
        unit += count
        log.add([list(expected[-1])])
    assert noted(log, unit) == expected
    log.add(expected[-5:])  # the same batch again
    assert noted(log, unit) == expected


@pytest.mark.parametrize("per_step", [10, 100])
def test_micro_batches_of_a_step_may_come_in_any_order(monkeypatch: pytest.MonkeyPatch, per_step: int) -> None:
    """Balanced ones do not have ascending units."""
    monkeypatch.setattr(delivery_log, "_KEPT_TAIL", 16)
    draw = random.Random(3)
    log, expected = DeliveryLog(0, 1), []
    for first in range(0, 1000, per_step):
        units = draw.sample(range(first, first + per_step - 1), per_step // 2)
        for start in range(0, len(units), 2):
            found = sorted(Deviation(unit, draw.randint(0, EMPTY), 1) for unit in units[start : start + 2])
            expected += found
            log.add(found)
            log.add(found)
    assert noted(log, 1000) == sorted(expected)
    left_out = Deviation(1000, LEFT_OUT, 50)
    log.add([Deviation(999, EMPTY, 1), left_out])
    log.add([Deviation(1060, EMPTY, 1)])
    log.add([Deviation(1055, 0, 1), Deviation(1070, 0, 1)])
    assert noted(log, 1100)[-5:] == [(999, EMPTY, 1), left_out, (1055, 0, 1), (1060, EMPTY, 1), (1070, 0, 1)]
    again = DeliveryLog.restored(state_of(log.entry(1100), 0, world_size=1), 0, 1, 1100)
    again.add(expected[-3:])
    assert noted(again, 1100) == noted(log, 1100)


def test_deviations_out_of_order_that_have_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    log = DeliveryLog(0, 1)
    log.add([(5, 0, 1), (9, 0, 1)])
    monkeypatch.setattr(DeliveryLog, "_room", 2)
    log.add([(1, 0, 1)])
    (part,) = parts_of(log.entry(10))
    assert (part.dropped, [one.unit for one in part.unpacked()]) == (1, [5, 9])


def test_what_is_to_be_delivered_again_is_forgotten() -> None:
    log = DeliveryLog(0, 2)
    log.add([(3, 0, 1), (10, LEFT_OUT, 10), (25, EMPTY, 1)])
    assert [one.unit for one in noted(log, 20)] == [3, 10]
    log.forget_from(20)
    log.add([(24, 1, 1)])
    assert [one.unit for one in noted(log, 30)] == [3, 10, 24]
    log.forget_from(0)
    assert noted(log, 30) == []


def test_a_log_that_is_full_only_counts() -> None:
    log = DeliveryLog(3, 8)
    units = range(0, 1 << 40, (1 << 40) // 300_000)
    log.add((unit, EMPTY, 1) for unit in units)
    entry = log.entry(1 << 40)
    assert len(json.dumps(entry)) <= MAX_LOG_BYTES
    (part,) = parts_of(entry)
    kept = part.unpacked()
    assert part.dropped == len(units) - len(kept) > 0
    assert [one.unit for one in kept] == list(units)[: len(kept)]
    log.add([(units[-1], EMPTY, 1)])
    assert parts_of(log.entry(1 << 40))[0].dropped == part.dropped
    assert len(kept) > 100_000
    again = DeliveryLog.restored(state_of(entry, 3, world_size=8), 3, 8, 1 << 40)
    again.add([((1 << 40) + 5, EMPTY, 1)])
    (part,) = parts_of(again.entry((1 << 40) + 10))
    assert part.dropped == len(units) - len(kept) + 1


def test_a_signal_handler_may_save_a_state_while_deviations_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    log, expected = DeliveryLog(0, 1), [Deviation(3, 0, 1), Deviation(10, EMPTY, 1)]
    real, handled = delivery_log._encode, False

    def encode(*arguments: Any) -> bytearray:
        nonlocal handled
        if not handled:
            handled = True
            log.add(expected)
            assert noted(log, 20) == expected
        return real(*arguments)

    monkeypatch.setattr(delivery_log, "_encode", encode)
    log.add(expected)
    assert handled
    assert noted(log, 20) == expected
    log.add([Deviation(15, 1, 1)])
    assert noted(log, 20) == [*expected, Deviation(15, 1, 1)]


def test_logs_of_many_ranks_that_one_rank_takes_over_keep_the_limit() -> None:
    draw = random.Random(2)
    entries = []
    for rank in range(4):
        log = DeliveryLog(rank, 4)
        log.add((unit, EMPTY, 1) for unit in sorted(draw.sample(range(1 << 40), 150_000)))
        entries.append(state_of(log.entry(1 << 40), rank, world_size=4))
    merged = merge_logs(entries)
    alone = DeliveryLog.restored(state_of(merged, *range(4), world_size=4), 0, 1, 1 << 40)
    entry = alone.entry(1 << 40)
    assert len(json.dumps(entry)) <= MAX_LOG_BYTES
    parts = parts_of(entry)
    assert sum(part.dropped + len(part.unpacked()) for part in parts) == 600_000
    assert any(part.dropped for part in parts)


def test_ranks_share_a_merged_log() -> None:
    states = []
    for rank in range(3):
        log = DeliveryLog(rank, 3)
        log.add([(rank + 1, 0, 1)])
        states.append(state_of(log.entry(9), rank, world_size=3))
    whole = state_of(merge_logs(states), 0, 1, 2, world_size=3)
    assert uncovered_ranks(parts_of(whole), 9) == []
    shares = [split_log(whole, rank, 2) for rank in range(2)]
    assert [len(parts_of(share)) for share in shares] == [2, 1]
    again = [DeliveryLog.restored(whole, rank, 2, 9) for rank in range(2)]
    for rank, log in enumerate(again):
        log.add([(10 + rank, 1, 1)])
    states = [state_of(log.entry(12), rank, world_size=2) for rank, log in enumerate(again)]
    merged = merge_logs(states)
    assert sorted(one.unit for part in parts_of(merged) for one in part.unpacked()) == [1, 2, 3, 10, 11]
    assert uncovered_ranks(parts_of(merged), 12) == []
    assert uncovered_ranks(parts_of(states[0]), 12) == [(0, 9, [1]), (9, 12, [1])]
    assert uncovered_ranks([], 12) == [(0, 12, [])]


def test_the_log_of_one_rank_lacks_the_others() -> None:
    log = DeliveryLog(0, 2)
    log.add([(4, 0, 1)])
    state = state_of(log.entry(8), 0, world_size=2)
    states = [state_of(DeliveryLog.restored(state, rank, 2, 8).entry(16), rank, world_size=2) for rank in range(2)]
    merged = parts_of(merge_logs(states))
    assert [part.identity for part in merged] == [(0, 2, 0), (8, 2, 1)]
    assert uncovered_ranks(merged, 16) == [(0, 8, [1])]


@pytest.mark.parametrize(
    "damage",
    [
        {"rank": 2},
        {"stop": -1},
        {"start": 9},
        {"world_size": 0},
        {"deviations": 3},
        {"dropped": None},
    ],
)
def test_damaged_logs_are_refused(damage: dict[str, Any]) -> None:
    entry = {"start": 0, "stop": 8, "rank": 0, "world_size": 2, "dropped": 0, "deviations": "", **damage}
    with pytest.raises(StateError, match="is damaged"):
        parts_of({"log": {"parts": [entry], "sizes": []}})


@pytest.mark.parametrize("text", ["!", "~~~~~~~~~~", "c$~Yy2mk@20MYX", "c$}Yy"])
def test_damaged_deviations_are_refused(text: str) -> None:
    with pytest.raises(StateError, match="is damaged"):
        LogPart(0, 8, 0, 1, 0, text).unpacked()


def test_states_without_a_log_are_refused(folder: Path) -> None:
    _, states = Job(folder / "blend.yaml", 1, 24, 6).run(2)
    check_format(states[0])
    with pytest.raises(StateError, match="'log' is missing"):
        check_format({name: value for name, value in states[0].items() if name != "log"})


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("where", ["rank", "workers", "decode process"])
def test_the_log_does_not_depend_on_the_processes(folder: Path, where: str) -> None:
    """Batches that were prefetched and never delivered leave nothing in it."""
    encoder = Encoder(frozenset({"a003", "a017", "b011", "b012"}))
    job = Job(folder / "blend.yaml", 2, 24, 3, 0 if where == "rank" else 2, encoder)
    with job.loader(1) as loader:
        if where == "decode process":
            loader = ed.get_savable_loader(loader.dataset, decode_process=True)
        with loader:
            entries = []
            for batch in take(loader, 12):
                entries.append(loader.save_state_rank()["log"])
                if (batch.step, batch.micro_batch) == (1, 2):
                    loader.change_workers(1)
                    assert loader.save_state_rank()["log"] == entries[-1]
    expected = []
    with Job(folder / "blend.yaml", 2, 24, 3, 0, encoder).loader(1) as loader:
        for _ in take(loader, 12):
            expected.append(loader.save_state_rank()["log"])
    assert entries == expected
    assert parts_of({"log": entries[-1]})[0].unpacked()


def test_everything_but_the_log_is_the_same_on_all_ranks(folder: Path) -> None:
    _, states = Job(folder / "blend.yaml", 4, 24, 3, encoder=Encoder(frozenset({"a003", "b011", "b002"}))).run(5)
    rest = [{name: state[name] for name in state if name not in ("log", "given", "failures")} for state in states]
    assert rest == [rest[0]] * 4
    assert len({json.dumps(state["log"]) for state in states}) == 4
    assert uncovered_ranks(parts_of(merge_states(states)), 72) == []
