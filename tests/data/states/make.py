"""Saves states of every composition of the resume grid, with what follows each; run from the repository root.

    python -m tests.data.states.make NAME

writes `NAME.tar.gz`, the prepared datasets, and `NAME.json`, the states, to this folder. They are written once, by the
code whose states they hold, and kept: later code has to restore them (`tests/loader/test_saved_states.py`).
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.loader import test_resume_grid as grid

SAVED_AT = {"endless": (5, 18), "finite": (3, 11)}
FOLLOWING = 24


def saved(folder: Path) -> dict[str, Any]:
    """Returns, per composition and position, the state of all streams on three ranks, and the elements after it."""
    found: dict[str, Any] = {}
    for name, build in grid.ENDLESS.items():
        expected, _ = grid.taken_from_all(build, folder, 1, 0, SAVED_AT["endless"][-1] + FOLLOWING)
        for position in SAVED_AT["endless"]:
            _, state = grid.taken_from_all(build, folder, 3, 0, position)
            found[f"{name} at {position}"] = {"state": state, "next": expected[position : position + FOLLOWING]}
    return found


def saved_of_one_rank(folder: Path) -> dict[str, Any]:
    """Returns the same for one rank with two streams, for compositions that end as well."""
    found: dict[str, Any] = {}
    for name, build in {**grid.ENDLESS, **grid.FINITE}.items():
        for position in SAVED_AT["finite"]:
            with grid.get_savable_loader(build(folder, grid.job(1, 0, streams=2))) as loader:
                grid.taken(loader, position)
                state = json.loads(json.dumps(loader.save_state_rank()))
                following = grid.taken(loader, FOLLOWING)
            found[f"{name} at {position}"] = {"state": state, "next": following}
    return found


def main() -> None:
    """Writes the files whose name is given."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as temporary:
        folder = grid.write_grid(Path(temporary))
        states = {"three ranks": saved(folder), "one rank": saved_of_one_rank(folder)}
        with tarfile.open(here / f"{sys.argv[1]}.tar.gz", "w:gz") as tar:
            tar.add(folder, arcname=".")
    (here / f"{sys.argv[1]}.json").write_text(json.dumps(states, indent=0) + "\n")


if __name__ == "__main__":
    main()
