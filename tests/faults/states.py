"""Mutated states of loaders: either a StateError, or the restored loader can be iterated."""

from __future__ import annotations

import copy
import json
import logging
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from energon_dali import get_savable_loader
from energon_dali.errors import EnergonDaliError, StateError
from tests.faults.campaign import Campaign, Case, Lost, Outcome, refused_by_us
from tests.loader.test_resume_grid import ENDLESS, FINITE, job, write_grid

POISON: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    7,
    2**31,
    2**40,
    2**63,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "0",
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    "9" * 5_000,
    [0] * 100,
    {"0": {}},
)


def places_of(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the path to every value in plain values."""
    found = [way] if way else []
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places_of(inner, (*way, key))
    return found


def mutate_state(state: Any, random: Random) -> Any:
    """Returns a state with an entry replaced, removed, doubled, swapped with another, or nested too deep."""
    state = copy.deepcopy(state)
    for _ in range(random.choice((1, 1, 1, 2))):
        way = random.choice(places_of(state) or [()])
        if not way:
            return random.choice(POISON)
        inner = state
        for key in way[:-1]:
            inner = inner[key]
        change = random.random()
        if change < 0.6:
            inner[way[-1]] = copy.deepcopy(random.choice(POISON))
        elif change < 0.75:
            del inner[way[-1]]
        elif change < 0.9:
            value = inner[way[-1]]
            if isinstance(value, int):
                inner[way[-1]] = value + random.choice((-1, 1, 5, 1000))
            elif isinstance(value, list):
                inner[way[-1]] = value * 2 if random.random() < 0.5 else value[:-1]
            elif isinstance(value, str):
                inner[way[-1]] = value[: len(value) // 2] + "~" + value[len(value) // 2 :]
            elif isinstance(value, dict) and value:
                value["another"] = next(iter(value.values()))
        else:
            deep: Any = 0
            for _ in range(900):
                deep = [deep]
            inner[way[-1]] = deep
    return state


def prepare(folder: Path) -> Case:
    """Saves states of many compositions; the case mutates one and restores it."""
    logging.disable(logging.CRITICAL)
    base = write_grid(folder / "grid")
    builds = {**ENDLESS, **FINITE}
    names = list(builds)
    states: dict[str, list[Any]] = {}
    expected: dict[str, list[str]] = {}
    for name, build in builds.items():
        with get_savable_loader(build(base, job(1, 0))) as loader:
            states[name] = []
            for _ in islice(loader, 5):
                states[name].append(json.loads(json.dumps(loader.save_state_rank())))
            expected[name] = [repr(element) for element in islice(loader, 1)]

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        name = names[number % len(names)]
        state = mutate_state(random.choice(states[name]), random)
        with get_savable_loader(builds[name](base, job(1, 0))) as loader:
            error = refused_by_us(lambda: loader.restore_state_rank(state), f"{name}: restore")
            if error is not None:
                check_message(name, error)
                return Outcome(survived=0, refused=1)
            error = refused_by_us(lambda: [None for _ in islice(loader, 12)], f"{name}: iterate")
            if isinstance(error, StateError):  # streams are restored in the process that runs them, when they start
                check_message(name, error)
                return Outcome(survived=0, refused=1)
            if error is not None:
                raise Lost(f"{name}: the state was taken, and failed later: {type(error).__name__}: {str(error)[:300]}")
        return Outcome()

    return case


def check_message(name: str, error: EnergonDaliError) -> None:
    """Raises Lost if a message is too long to read."""
    if len(str(error)) > 3_000:
        raise Lost(f"{name}: a message of {len(str(error))} letters: {str(error)[:200]}")


STATES = Campaign("mutated states", 1_000, prepare, timeout_seconds=60, cases_per_child=100)
