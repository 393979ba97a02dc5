"""Runs recipes on pairs of processes, which are forked from one that has imported everything.

    python -m tests.integrations.pair DATA OUT SPEC [PROGRAM ...]

SPEC is JSON: a list of phases, each a list of [recipe, fields of Run, world size]. The phases of one recipe need each
other's checkpoints and run in turn. Each PROGRAM runs afterwards, as torchrun would run it on two ranks.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import runpy
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.integrations import global_batch_recipes, recipes
from tests.integrations.recipes import Killed, Run

RECIPES = recipes.RECIPES | global_batch_recipes.RECIPES


def open_store() -> dist.TCPStore:
    """Returns the store of a group of ranks, on a free port that nobody can take. It has to outlive them."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def be_rank(rank: int, world: int, port: int, jobs: list[tuple[str, Run]]) -> None:
    """Runs recipes in turn as one rank of a process group."""
    _become(rank, world, port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for name, run in jobs:
        with contextlib.suppress(Killed):
            RECIPES[name](run)
            run.write()
        dist.barrier()
    dist.destroy_process_group()


def run_phase(data: Path, out: Path, jobs: list[list[Any]]) -> None:
    """Runs jobs of one world size in turn, in one group of processes; the last may kill them."""
    world = jobs[0][2]
    store, children = open_store(), []
    for rank in range(world):
        runs = [(name, Run(data, _folder(out, name), rank, world, **fields)) for name, fields, _ in jobs]
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                be_rank(rank, world, store.port, runs)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    last = jobs[-1][1]
    wanted = -signal.SIGKILL if last.get("kill_at") and last.get("by_signal", True) else 0
    assert codes == [wanted] * world, (codes, jobs)


def run_program(program: Path, world: int = 2) -> None:
    """Runs a program as torchrun would, in its folder; the output of the first rank is kept in NAME.out."""
    store, children = open_store(), []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _become(rank, world, store.port)
            os.chdir(program.parent)
            sys.path.insert(0, str(program.parent))
            with program.with_suffix(f".out{rank}").open("w") as output:
                os.dup2(output.fileno(), 1)
            code = 1
            try:
                # Kept until the process ends: a DDP model that is freed after the process group joins gloo's thread
                # while it holds the GIL, for which that thread may wait to free a tensor (torch 2.13).
                _kept = runpy.run_path(str(program), run_name="__main__")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * world, (codes, program.name)


def _become(rank: int, world: int, port: int) -> None:
    local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in local.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_RUN_ID="pair", GROUP_RANK="0", ACCELERATE_USE_CPU="1")
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # no rank opens a store
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")


def _folder(out: Path, name: str) -> Path:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    gc.freeze()  # the children share what was imported
    for jobs in json.loads(sys.argv[3]):
        run_phase(data, out, jobs)
    for program in sys.argv[4:]:
        run_program(Path(program))


if __name__ == "__main__":
    main()
