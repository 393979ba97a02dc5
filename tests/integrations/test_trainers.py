"""Each recipe on two processes: killed, resumed in the middle of an epoch, and every sample counted once."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from energon_dali import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from tests.integrations.phases import (
    ALONE,
    FEW,
    GLOBAL_STEPS,
    SAVE_AT,
    check_global_steps,
    check_resume,
    global_jobs,
    killed_global_jobs,
    number_shards,
    phases_of,
)
from tests.loader.dataset_folder import prepare, write_shards

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)
NAMES = ("ddp", "accelerate", "fabric", "fsdp2", "stateful", "nodes", "trainer", "trainer_epochs")
GLOBAL_NAMES = tuple(f"global_{name}" for name in ("ddp", "fsdp2", "accelerate", "fabric", "trainer", "lightning"))
"""Recipes with global batches."""
GLOBAL_BATCH = 12


@pytest.mark.timeout(400)  # on a busy machine
def test_recipes_on_two_processes(tmp_path: Path, warm_python: str) -> None:
    """One test, because all recipes share the processes: importing these libraries takes longest."""
    out = run_all(warm_python, tmp_path)
    for name in NAMES:
        check_resume(out / name)
    for name in ("fsdp2", "trainer"):
        check_resume_on_one_rank(out / name)
    expected = steps_of_one_rank(out / "data")
    for name in GLOBAL_NAMES:
        check_global_steps(out / name, expected, world=1)
    check_global_refusals(out / "global_refusals")
    check_evaluation(out / "trainer")
    check_programs_of_the_page(out / "docs")
    check_refusals(out / "refusals")


def run_all(python: str, root: Path) -> Path:
    """Runs all recipes, and the programs of the page; returns the folder of their reports."""
    data = number_shards(root / "data")
    number_shards(root / "few", FEW)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    refused = [[name, {"steps": 1, "save_at": 1}, 2] for name in ("refusals", "global_refusals")]
    # In processes of their own: Accelerate keeps over how many batches one of its trainings accumulates.
    global_phases = [killed_global_jobs(GLOBAL_NAMES), global_jobs(GLOBAL_NAMES, 1, resume=True)]
    phases = [*phases_of(NAMES), *global_phases, refused]
    programs = [str(program) for program in documented(root / "docs")]
    command = [python, "-m", "tests.integrations.pair", str(data), str(root), json.dumps(phases), *programs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr.partition("nanobind")[0][-6000:]
    return root


def documented(folder: Path) -> list[Path]:
    """Writes the programs of docs/trainers.md and their data; returns all but the first, which the others import."""
    first, *others = BLOCK.findall((ROOT / "docs" / "trainers.md").read_text())
    folder.mkdir()
    (folder / "images.py").write_text(first)
    programs = [folder / f"recipe{number}.py" for number in range(len(others))]
    for program, block in zip(programs, others, strict=True):
        program.write_text(block)
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (10, 200, 30)).save(file, "PNG")
    samples = {f"k{number:02d}": {"png": file.getvalue(), "txt": b"x" * (number + 1)} for number in range(32)}
    prepare(write_shards(folder / "data" / "captions", samples, 4))
    return programs


def check_resume_on_one_rank(folder: Path) -> None:
    """Checks that one rank continues a checkpoint of two ranks with the batches that both would have taken."""
    ranks: list[Any] = [json.loads((folder / f"whole-2-{rank}.json").read_text())["seen"] for rank in range(2)]
    in_order = [batch for step in zip(*ranks, strict=True) for batch in step]
    alone = json.loads((folder / "resumed-1-0.json").read_text())["seen"]
    assert alone == in_order[2 * SAVE_AT : 2 * SAVE_AT + ALONE]


def steps_of_one_rank(data: Path) -> list[list[int]]:
    """Returns, by step, the sorted numbers of the samples of global batches, as one rank takes them."""
    dataset = get_train_dataset(
        data,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=GLOBAL_BATCH,
        global_batch_size=GLOBAL_BATCH,
        shuffle_buffer_size=8,
        task_encoder=DefaultTaskEncoder(),
    )
    with get_savable_loader(dataset) as loader:
        return [sorted(int(text.split()[-1]) for text in batch.text) for batch in islice(loader, GLOBAL_STEPS)]


def check_global_refusals(folder: Path) -> None:
    """Checks what trainers are answered that accumulate gradients over other batches than those of a step."""
    messages = json.loads((folder / "whole-2-0.json").read_text())["messages"]
    size = "and a step of global_batch_size=12 is 2 batches of at most 3 samples on each of 2 ranks. Give"
    assert messages["trainer"].startswith(
        f"gradient_accumulation_steps=4, {size} gradient_accumulation_steps=2: then a step of the optimizer is"
    )
    assert messages["lightning"].startswith(
        f"accumulate_grad_batches=1, {size} accumulate_grad_batches=2, or batch_size=6: then"
    )


def check_evaluation(folder: Path) -> None:
    """Checks that an evaluation counts every sample once."""
    for rank in range(2):
        metrics = json.loads((folder / f"whole-2-{rank}.json").read_text())["evaluated"]
        assert metrics["eval_labels"] == sorted(float(number % 3) for number in range(FEW))


def check_programs_of_the_page(folder: Path) -> None:
    """Checks that they print what the page says."""
    blocks = BLOCK.findall((ROOT / "docs" / "trainers.md").read_text())[1:]
    for number, block in enumerate(blocks):
        (expected,) = PRINTED.findall(block)
        assert expected in (folder / f"recipe{number}.out0").read_text().splitlines()


def check_refusals(folder: Path) -> None:
    """Checks that what would lose or repeat samples is refused, with the right way in the message."""
    first, second = (json.loads((folder / f"whole-2-{rank}.json").read_text())["messages"] for rank in range(2))
    for name, text in {
        "dispatched": "DataLoaderDispatcher iterates a dataset that yields the samples of rank 0 of 2",
        "dispatched iterator": "DataLoaderDispatcher iterates a dataset that yields the samples of rank 0 of 2",
        "sharded": "IterableDatasetShard iterates a dataset that yields the samples of rank 0 of 2",
        "split": "IterableDatasetShard iterates a dataset that yields the samples of rank 0 of 2",
        "accelerate checkpoint": "Accelerate's register_for_checkpointing writes the state of one rank alone",
        "fabric checkpoint": "Lightning Fabric's save writes the state of one rank alone",
        "distributed checkpoint": "torch.distributed.checkpoint writes the state of one rank alone",
        "worker processes": "worker process 0 of 2 of a torch DataLoader.*WorkerConfig\\(num_workers=2\\)",
        "trainer without mixin": "transformers.Trainer was given a .*LoaderTrainerMixin",
        "trainer with a loader": "train_dataset is a loader. Give the dataset",
        "trainer skips": "ignore_data_skip=True starts a new epoch",
        "trainer finds a batch size": "auto_find_batch_size=True cannot change",
        "trainer without position": "has no loader_state_0.json",
        "trainer ignores": "have no effect on the loader.*dataloader_num_workers=3 \\(WorkerConfig",
    }.items():
        assert re.search(text, first[name]), (name, first[name])
    assert "found rank 0 of 1, and torch.distributed has rank 1 of 2: it was called too early" in second["too early"]
    assert second["restored elsewhere"].startswith("The state holds the streams [0, 2] of a job with world_size 2")
