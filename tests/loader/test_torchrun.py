"""Saving and restoring with torch.distributed: four processes under torchrun, and fewer afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from energon_dali import WorkerConfig, get_savable_loader, get_train_dataset
from energon_dali.task_encoder.default import DefaultTaskEncoder
from tests.loader.dataset_folder import captioning_dataset

pytestmark = pytest.mark.timeout(400)  # a dozen interpreters with torch, perhaps on a busy machine
STREAMS = 8
ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys, os
import torch, torch.distributed as dist
from energon_dali import WorkerConfig, get_savable_loader
from tests.loader.test_torchrun import STREAMS, dataset_of, keys_of

folder, what = sys.argv[1], sys.argv[2]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

def loader_in(group=None, workers=1):
    config = WorkerConfig.default_worker_config(workers, group, num_streams=STREAMS)
    return get_savable_loader(dataset_of(folder, config))

def saved(name):
    return torch.load(os.path.join(folder, name), weights_only=True)

def report(**values):
    with open(os.path.join(folder, f"{what}-{rank}.json"), "w") as file:
        json.dump(values, file)
"""


def dataset_of(folder: str, config: WorkerConfig) -> Any:
    """Returns a blend of two prepared datasets in a folder."""
    parts = [{"weight": 3, "path": f"{folder}/one"}, {"weight": 1, "path": f"{folder}/two"}]
    blend = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": parts}}}
    encoder: Any = DefaultTaskEncoder()
    encoder.decoder = None
    return get_train_dataset(
        blend,
        worker_config=config,
        batch_size=3,
        shuffle_buffer_size=20,
        max_samples_per_sequence=5,
        task_encoder=encoder,
    )


def keys_of(batches: Any, count: int) -> list[list[str]]:
    """Returns the keys of the next `count` batches."""
    return [list(batch.__key__) for _, batch in zip(range(count), batches, strict=False)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("torchrun")
    for name, count in (("one", 40), ("two", 25)):
        captioning_dataset(folder / name, count)
    return str(folder)


@pytest.fixture(scope="module")
def whole_order(folder: str) -> list[list[str]]:
    """The batches of the job in their global order, from a single process."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=STREAMS)
    return keys_of(get_savable_loader(dataset_of(folder, config)), 8 * STREAMS)


def torchrun(python: str, folder: str, what: str, body: str, processes: int) -> list[dict[str, Any]]:
    """Returns what each rank reported."""
    program = Path(folder, f"{what}.py")
    program.write_text(PROGRAM + body + "\ndist.barrier()\ndist.destroy_process_group()\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python}
    command = [
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
        str(program),
        folder,
        what,
    ]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(Path(folder, f"{what}-{rank}.json").read_text()) for rank in range(processes)]


def of_rank(whole_order: list[list[str]], rank: int, world: int, start: int, count: int) -> list[list[str]]:
    """Returns batches of a rank: the k-th batch of stream s is number k * STREAMS + s of the whole order."""
    own = [batch for number, batch in enumerate(whole_order) if number % STREAMS % world == rank]
    return own[start : start + count]


def test_four_processes_save_and_others_go_on(folder: str, whole_order: list[list[str]], warm_python: str) -> None:
    saving = """
loader = loader_in()
before = keys_of(loader, 4)
torch.save(loader.save_state_rank(), os.path.join(folder, f"rank{rank}.pt"))
whole = loader.save_state_global(global_dst_rank=2)
assert (whole is None) == (rank != 2)
if rank == 2:
    torch.save(whole, os.path.join(folder, "whole.pt"))
after = keys_of(loader, 4)
del loader

scattered = loader_in()
scattered.restore_state_global(whole, src_rank=2)
assert keys_of(scattered, 4) == after
del scattered

own = loader_in()
own.restore_state_rank(saved(f"rank{rank}.pt"))
assert keys_of(own, 4) == after

# Two tensor-parallel pairs: (0, 1) and (2, 3) load the same data; each pair is one rank of the data-parallel groups.
groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
paired = loader_in(groups[rank % 2], workers=0)
pair_before = keys_of(paired, 6)
try:
    paired.save_state_global(global_dst_rank=1 - rank % 2)
except Exception as error:
    assert "data-parallel group" in str(error), error
state = paired.save_state_global(global_dst_rank=rank % 2)
pair_after = keys_of(paired, 3)
again = loader_in(groups[rank % 2], workers=0)
again.restore_state_global(state, src_rank=0)  # the first rank of the group, which is rank 0 or 1 of the world
assert keys_of(again, 3) == pair_after
report(before=before, after=after, pair=pair_before + pair_after)
"""
    reports = torchrun(warm_python, folder, "saving", saving, 4)
    for rank, report in enumerate(reports):
        assert report["before"] == of_rank(whole_order, rank, 4, 0, 4)
        assert report["after"] == of_rank(whole_order, rank, 4, 4, 4)
        assert report["pair"] == of_rank(whole_order, rank // 2, 2, 0, 9)
    assert len({json.dumps(report["before"]) for report in reports}) == 4

    # Half as many ranks, with more workers each; every rank reads the file itself.
    going_on = """
loader = loader_in(workers=2)
loader.restore_state_global(saved("whole.pt"))
report(after=keys_of(loader, 6))
"""
    for rank, report in enumerate(torchrun(warm_python, folder, "going_on", going_on, 2)):
        # 4 batches of each of the 4 ranks are 2 of each stream: 2 ranks have delivered 8 each.
        assert report["after"] == of_rank(whole_order, rank, 2, 8, 6)
