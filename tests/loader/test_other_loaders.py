"""Loaders of other libraries around ours: what works, and a clear error for what would lose samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from energon_dali import MapDataset, SavableDataset, get_loader, get_savable_loader
from energon_dali.errors import ConfigError
from energon_dali.worker_config import WorkerConfig
from tests.loader.numbers_dataset import tree

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
import torch
from accelerate import Accelerator
from energon_dali import ConfigError, MapDataset, WorkerConfig, get_loader
from tests.loader.numbers_dataset import tree
from tests.loader.test_other_loaders import Around

accelerator = Accelerator(cpu=True)
config = WorkerConfig(rank=accelerator.process_index, world_size=2, num_workers=0, num_streams=4)
def make():
    return get_loader(MapDataset(tree(config, lengths=[20] * 4), to_tensor))
def to_tensor(element):
    return torch.tensor(element)

loader = accelerator.prepare(make())
report = {"seen": [batch.tolist() for batch in loader], "errors": []}
for options in {"dispatched": {}, "sharded": {"dispatch_batches": False}}.values():
    from accelerate.utils import DataLoaderConfiguration
    accelerator.dataloader_config = DataLoaderConfiguration(**options)
    # If it dispatches, only rank 0 asks: the other rank would wait for it.
    inner = accelerator.prepare(torch.utils.data.DataLoader(Around(make()), batch_size=2))
    if accelerator.is_main_process:
        try:
            next(iter(inner))
        except ConfigError as error:
            report["errors"].append(str(error))
accelerator.wait_for_everyone()
with open(f"{sys.argv[1]}/{accelerator.process_index}.json", "w") as file:
    json.dump(report, file)
accelerator.end_training()
"""


class Around(IterableDataset[Any]):
    """What programs place between a loader and a torch DataLoader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        yield from self.loader


def place(world: int = 1) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=world, num_workers=0, num_streams=4)


@pytest.mark.timeout(300)  # two interpreters with torch, perhaps on a busy machine
def test_accelerate_leaves_a_loader_alone_and_may_not_share_its_batches_out(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(
        [*command, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    wanted = [[stream, 0, number] for stream in range(4) for number in range(20)]
    assert sorted(first["seen"] + second["seen"]) == wanted
    dispatched, sharded = first["errors"]
    assert "DataLoaderDispatcher iterates a dataset that yields the samples of rank 0 of 2" in dispatched
    assert "IterableDatasetShard iterates a dataset that yields the samples of rank 0 of 2" in sharded


def test_a_wrapped_loader_of_a_single_rank_is_iterated() -> None:
    around = DataLoader(Around(get_loader(tree(place()))), batch_size=None)
    assert len(list(around)) == 15


@pytest.mark.parametrize("savable", [True, False])
def test_a_torch_loader_around_a_loader_or_a_dataset_says_what_to_do(savable: bool) -> None:
    dataset: SavableDataset[Any] = MapDataset(tree(place()), tuple)
    loader = (get_savable_loader if savable else get_loader)(dataset)
    for given, name in ((dataset, "MapDataset"), (loader, type(loader).__name__)):
        with pytest.raises(ConfigError, match=f"A {name} yields its elements in the order of its plan.*get_loader"):
            next(iter(DataLoader(given)))  # type: ignore[arg-type]


def test_next_takes_the_elements_of_a_loader_one_by_one() -> None:
    loader = get_loader(tree(place()))
    first = next(loader)
    rest = list(loader)
    assert [first, *rest] == list(get_loader(tree(place())))
    assert next(loader)[1] == 1, "the next epoch"
