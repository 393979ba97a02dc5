"""Memory that a forked child of the trainer may see is never written again."""

from __future__ import annotations

import os
from typing import Any

import torch

from energon_dali import MapDataset, WorkerConfig, get_loader
from energon_dali.loader.processes.shared_memory import ArenaStore, ArenaViews
from tests.forking import fork
from tests.loader.numbers_dataset import tree


def in_child(check: Any) -> tuple[int, int]:
    """Forks a child that waits for a byte and then checks; returns its process id, and where to write the byte."""
    ours, theirs = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0 if check() else 1)
    os.close(ours)
    return pid, theirs


def is_right(child: tuple[int, int]) -> bool:
    """Lets a child check, and returns whether it found what it expected."""
    pid, pipe = child
    os.write(pipe, b"x")
    os.close(pipe)
    return os.waitpid(pid, 0)[1] == 0


def test_an_arena_that_a_child_sees_is_given_up() -> None:
    store, views = ArenaStore(2), ArenaViews()
    arenas = [store.take(100) for _ in range(2)]
    for arena in arenas:
        arena.memory[:3] = (1, 2, arena.number)
        assert arena.descriptor is not None
        views.add(arena.number, os.dup(arena.descriptor), arena.capacity)
        arena.close_descriptor()
    seen = views.view(0)
    child = in_child(lambda seen=seen: bytes(seen[:3]) == bytes((1, 2, 0)))
    later = views.view(1)
    del seen, later
    assert views.take_released() == [-1, 1]
    for released in (-1, 1):
        store.take_back(released)
    assert [store.take(100).number for _ in range(2)] == [1, 2]
    arenas[1].memory[:] = 9
    assert is_right(child)


def as_tensor(element: tuple[int, ...]) -> torch.Tensor:
    return torch.full((100_000,), element[2])


def test_a_child_sees_the_batch_that_it_was_started_with() -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=1, num_streams=1)
    children = []
    with get_loader(MapDataset(tree(config, lengths=[40]), as_tensor), start_method="fork") as loader:
        for number, batch in enumerate(loader):
            assert (batch == number).all()
            if number in (2, 3, 9):
                pixels = batch.numpy()
                children.append(in_child(lambda pixels=pixels, number=number: (pixels == number).all()))
                del pixels
            del batch
    assert all(map(is_right, children))
    assert len(children) == 3
