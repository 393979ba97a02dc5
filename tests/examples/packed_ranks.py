"""Runs examples/balanced_packs.py on ranks that are forked from one process, which has imported everything.

    python -m tests.examples.packed_ranks FOLDER

FOLDER gets the data. The program trains on 1 process, then on 4, and continues on 2.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from pathlib import Path

from tests.integrations.pair import _become, open_store

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 5
LEFT = 3
"""Steps after which the run on 4 processes ends."""


def run_ranks(world: int, arguments: list[str]) -> None:
    """Runs the program on forked ranks, and waits for them."""
    program = importlib.import_module("balanced_packs")
    store, children = open_store(), []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _become(rank, world, store.port)
                sys.argv = ["balanced_packs.py", *arguments]
                program.main()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * world, codes


def main() -> None:
    sys.path.insert(0, str(EXAMPLES))
    folder = sys.argv[1]
    program = importlib.import_module("balanced_packs")
    program.prepare(Path(folder))
    gc.freeze()
    checkpoint = ["--checkpoint", f"{folder}/step.pt"]
    for world, arguments in (
        (1, ["--steps", str(STEPS)]),
        (4, ["--steps", str(LEFT), *checkpoint]),
        (2, ["--steps", str(STEPS), *checkpoint]),
    ):
        sys.stdout.flush()
        run_ranks(world, [folder, *arguments])


if __name__ == "__main__":
    main()
