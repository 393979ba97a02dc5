"""States that earlier code saved restore with this code, and continue with the same elements.

`tests/data/states/before-rooms.*` were saved by version 0.1.0 before its modules and classes were renamed.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from energon_dali import get_savable_loader
from tests.data.states.make import FOLLOWING
from tests.loader import test_resume_grid as grid

STATES = Path(__file__).parents[1] / "data" / "states"
SAVED = json.loads((STATES / "before-rooms.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    with tarfile.open(STATES / "before-rooms.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_every_composition_was_saved() -> None:
    assert {name.rpartition(" at ")[0] for name in SAVED["three ranks"]} == set(grid.ENDLESS)
    assert {name.rpartition(" at ")[0] for name in SAVED["one rank"]} == {*grid.ENDLESS, *grid.FINITE}


@pytest.mark.parametrize("name", SAVED["three ranks"])
def test_a_state_of_three_ranks_goes_on_with_two(name: str, folder: Path) -> None:
    composition, position = name.rsplit(" at ")
    saved: dict[str, Any] = SAVED["three ranks"][name]
    begin = int(position)
    rest, _ = grid.taken_from_all(grid.ENDLESS[composition], folder, 2, begin, begin + FOLLOWING, saved["state"])
    assert rest == saved["next"]


@pytest.mark.parametrize("name", SAVED["one rank"])
def test_a_state_of_one_rank_goes_on(name: str, folder: Path) -> None:
    build = {**grid.ENDLESS, **grid.FINITE}[name.rsplit(" at ")[0]]
    saved: dict[str, Any] = SAVED["one rank"][name]
    with get_savable_loader(build(folder, grid.job(1, 0, streams=2))) as loader:
        loader.restore_state_rank(saved["state"])
        assert grid.taken(loader, FOLLOWING) == saved["next"]
