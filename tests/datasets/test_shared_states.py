"""Parts that many states share are kept once, and sent to another process once."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.stream import StreamContext
from energon_dali.errors import StateError
from energon_dali.loader.processes.messages import StateReceiver, StateSender
from energon_dali.loader.savable_loader import SavableDataLoader
from energon_dali.shards.documents.state_entries import Rest, Snapshot, plain
from tests.datasets.oracle import Counting, config

BUFFER = 60


def test_a_rest_is_the_end_of_the_rows_as_plain_lists() -> None:
    snapshot = Snapshot([(("a", 1), ("b", (2, 3))), (("c", 4),), ()])
    assert plain({"packs": Rest(snapshot, 1), "other": [Rest(snapshot, 3), (5,)]}) == {
        "packs": [[["c", 4]], []],
        "other": [[], (5,)],
    }
    assert plain(Rest(snapshot)) == [[["a", 1], ["b", [2, 3]]], [["c", 4]], []]


def test_the_keys_of_a_round_become_plain_once_for_all_its_states() -> None:
    snapshot = Snapshot([(("key", number),) for number in range(5)])
    first, second = plain({"packs": Rest(snapshot)}), plain({"packs": Rest(snapshot, 2)})
    assert first["packs"] == [[["key", number]] for number in range(5)]
    assert all(one is other for one, other in zip(first["packs"][2:], second["packs"], strict=True))
    first["packs"].clear()  # a state's own list
    assert plain(Rest(snapshot, 4)) == [[["key", 4]]]


def test_a_snapshot_crosses_once_while_states_refer_to_it() -> None:
    sender, receiver = StateSender(), StateReceiver()
    first, second = (Snapshot([("key", number)] * 5000) for number in (1, 2))
    sizes, found = [], []
    for states in (
        [Rest(first, 4999), Rest(first, 4998)],
        [Rest(first, 4998), Rest(second, 4999)],
        [Rest(second, 4999)],
        [],
        [Rest(second, 4999)],
    ):
        sent = sender.send(states)
        sizes.append(len(sent[0]) + sum(map(len, sent[1].values())))
        found.append(plain(receiver.take(sent)))
    assert found == [
        [[["key", 1]], [["key", 1]] * 2],
        [[["key", 1]] * 2, [["key", 2]]],
        [[["key", 2]]],
        [],
        [[["key", 2]]],
    ]
    assert min(sizes[0], sizes[1], sizes[4]) > 5000  # for the last one, nothing had referred to it in between
    assert max(sizes[2], sizes[3]) < 500


def test_received_states_are_sent_on_without_unpickling() -> None:
    sender, receiver = StateSender(), StateReceiver()
    received = receiver.take(sender.send(Rest(Snapshot([("key", 1)]))))
    assert received.snapshot._rows is None
    assert plain(StateReceiver().take(StateSender().send(received))) == [["key", 1]]
    assert received.snapshot._rows is None


def in_tens(samples: list[Any]) -> list[list[Any]]:
    return [samples[start : start + 5] for start in range(0, len(samples), 5)]


def numbers(samples: list[Any]) -> dict[str, Any]:
    return {"__restore_key__": (), "numbers": [sample["number"] for sample in samples]}


def test_the_states_of_a_round_of_packs_share_what_the_buffer_holds() -> None:
    iterator = PackingDataset(Counting(1000, config()), BUFFER, in_tens, numbers).open(StreamContext(0))
    sender, receiver = StateSender(), StateReceiver()
    alone = together = 0
    shared = set()
    for _ in islice(iterator, 3 * BUFFER // 5):
        state = iterator.state_dict()
        shared.add(id(state["packs"].snapshot))
        sent = sender.send(state)
        together += len(sent[0]) + sum(map(len, sent[1].values()))
        alone += len(json.dumps(plain(state)))
        assert plain(receiver.take(sent)) == plain(state)
    assert len(shared) <= 3
    assert together < alone / 2


def test_the_config_of_a_tree_is_packed_once_for_all_states_of_a_loader() -> None:
    asked = []

    class Asked(Counting):
        def config(self) -> dict[str, Any]:
            asked.append(1)
            return super().config()

    with SavableDataLoader(Asked(10, config())) as loader:
        states = [loader.save_state_rank() for _ in islice(loader, 3)]
    assert len(asked) == 1
    assert len({state["config"] for state in states}) == 1
    assert [state["streams"]["0"]["count"] for state in states] == [1, 2, 3]
    with SavableDataLoader(Counting(10, config())) as other, pytest.raises(StateError, match="Asked"):
        other.restore_state_rank(states[0])
