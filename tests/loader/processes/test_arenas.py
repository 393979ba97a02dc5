"""Arenas: used again when nobody sees them, and given back when blocks do without them."""

from __future__ import annotations

from energon_dali.loader.processes.shared_memory import ArenaStore

SIZE = 100_000


def numbers_of(store: ArenaStore, blocks: int, held: int) -> list[int]:
    """Sends blocks, of which the last ones are always held; returns the arenas that were dropped."""
    dropped: list[int] = []
    seen: list[int] = []
    for _ in range(blocks):
        if len(seen) > held:
            store.give_back(seen.pop(0))
        arena = store.take(SIZE)
        arena.close_descriptor()
        seen.append(arena.number)
        dropped += store.take_dropped()
    for number in seen:
        store.give_back(number)
    return dropped + store.take_dropped()


def test_arenas_that_the_first_blocks_alone_needed_are_dropped() -> None:
    store = ArenaStore(4)
    assert numbers_of(store, 4, held=3) == []
    assert len(store) == 4
    dropped = numbers_of(store, 40, held=1)
    assert len(dropped) == len(set(dropped)) == 2
    assert len(store) == 2, "one that is written, and one that is held"
    assert numbers_of(store, 40, held=1) == []


def test_arenas_that_are_needed_now_and_then_stay() -> None:
    store = ArenaStore(4)
    for _ in range(20):
        assert numbers_of(store, 4, held=0) == []
        assert numbers_of(store, 3, held=2) == []
    assert len(store) == 3


def test_no_more_free_arenas_than_wanted_are_kept() -> None:
    store = ArenaStore(2)
    assert len(numbers_of(store, 5, held=4)) == 3
    assert len(store) == 2
