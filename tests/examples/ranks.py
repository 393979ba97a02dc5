"""Runs recipes of examples/vlm on ranks that are forked from one process, which has imported everything.

    python -m tests.examples.ranks FOLDER SPEC

FOLDER gets the dataset of `energon-dali demo-data` or of small_data.py, and models/FAMILY, if they are not there. SPEC
is JSON: a list of runs that follow each other, each {"recipe", "family", "data", "arguments", "kill_at", "report",
"world"}: a recipe's module, a family of models, a kind of data, the command line, the step of the optimizer after which
all ranks die, the file that gets the losses of each rank (with .RANK), and the number of ranks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.integrations.pair import _become, open_store

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "vlm"


def be_rank(run: dict[str, Any], rank: int, port: int) -> None:
    """Runs a recipe as torchrun would start it."""
    _become(rank, run["world"], port)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == run["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)
    losses = importlib.import_module(run["recipe"]).main(run["arguments"])
    Path(f"{run['report']}.{rank}").write_text(json.dumps(losses))


def run_recipe(run: dict[str, Any]) -> None:
    """Starts the ranks of a run and waits for them."""
    store, children = open_store(), []
    for rank in range(run["world"]):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                be_rank(run, rank, store.port)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    wanted = -signal.SIGKILL if run["kill_at"] else 0
    assert codes == [wanted] * run["world"], (codes, run)


def make_data(folder: Path, kinds: set[str], families: set[str]) -> None:
    from energon_dali.cli.main import main as command

    tiny_model, small_data = importlib.import_module("tiny_model"), importlib.import_module("small_data")
    for kind in kinds:
        if not (folder / kind).exists() and kind == "captions":
            command(["demo-data", str(folder), "--samples", "64"], standalone_mode=False)
        elif not (folder / kind).exists():
            small_data.write_data(kind, folder / kind)
    for family in families:
        if not (folder / "models" / family).exists():
            tiny_model.write_tiny_model(family, folder / "models" / family)


def main() -> None:
    sys.path.insert(0, str(EXAMPLES))
    folder, runs = Path(sys.argv[1]), json.loads(sys.argv[2])
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    make_data(folder, {run["data"] for run in runs}, {run["family"] for run in runs})
    for recipe in {run["recipe"] for run in runs}:
        importlib.import_module(recipe)
    gc.freeze()
    for run in runs:
        run_recipe(run)


if __name__ == "__main__":
    main()
