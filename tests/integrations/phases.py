"""Which runs show that a recipe resumes exactly, and what their reports must say."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.loader.dataset_folder import prepare, write_shards

SAMPLES = 48
STEPS = 12
"""Two epochs of 48 samples on two ranks, in batches of 4."""
SAVE_AT = 4
"""In the middle of the first epoch."""
FEW = 17
"""Samples to evaluate: 3 batches on one rank, 2 on the other."""
ALONE = 5
"""Steps after a checkpoint of two ranks that one rank takes."""
KILL_AT = 7
"""Batches after which a process is killed."""


def number_shards(folder: Path, count: int = SAMPLES) -> Path:
    """Writes and prepares samples whose text ends in their number."""
    samples = {f"k{number:03d}": {"txt": f"number {number}".encode()} for number in range(count)}
    return prepare(write_shards(folder, samples, 4), {"text": "txt"}, "TextSample")


def phases_of(
    names: Iterable[str],
    *,
    save_at: int = SAVE_AT,
    kill_at: int = KILL_AT,
    workers: int = 0,
    kill_each: bool = False,
) -> list[Any]:
    """Returns the phases for `pair`: each recipe once killed, resumed and whole; some resumed on one rank as well.

    Args:
        names: The recipes.
        save_at: The step after which they save.
        kill_at: The batch after which they end.
        workers: Worker processes of each rank.
        kill_each: Kill the processes in each recipe. Otherwise only in the last; the others are left in the middle.
    """
    names = list(names)

    def fields(name: str, **more: Any) -> dict[str, Any]:
        saved = 2 if name == "trainer_epochs" else save_at  # in steps of the optimizer, of which an epoch has two
        return {"steps": STEPS, "save_at": saved, "workers": workers, **more}

    def killed(name: str) -> list[Any]:
        at = 10 if name == "trainer_epochs" else kill_at
        return [name, fields(name, kill_at=at, by_signal=kill_each or name == names[-1]), 2]

    phases = [[killed(name)] for name in names] if kill_each else [[killed(name) for name in names]]
    phases.append([[name, fields(name, resume=True), 2] for name in names])
    alone = [name for name in names if name in ("fsdp2", "trainer")]
    if alone:
        phases.append([[name, fields(name, resume=True, steps=save_at + ALONE), 1] for name in alone])
    # Last: the whole runs write their checkpoints over those of the killed ones.
    phases.append([[name, fields(name), 2] for name in names])
    return phases


def check_resume(folder: Path) -> None:
    """Checks the reports of a recipe: what the killed and the resumed run saw is what the whole run saw."""
    reports: dict[str, list[Any]] = {
        kind: [json.loads((folder / f"{kind}-2-{rank}.json").read_text()) for rank in range(2)]
        for kind in ("whole", "killed", "resumed")
    }
    for rank in range(2):
        whole, killed, resumed = (reports[kind][rank]["seen"] for kind in ("whole", "killed", "resumed"))
        assert len(whole) == STEPS
        assert 0 < len(resumed) < STEPS
        assert killed == whole[: len(killed)]
        assert resumed == whole[len(whole) - len(resumed) :]
        assert reports["resumed"][rank].get("weights") == reports["whole"][rank].get("weights")
    for epoch in (slice(0, 6), slice(6, 12)):
        numbers = [number for rank in range(2) for batch in reports["whole"][rank]["seen"][epoch] for number in batch]
        assert sorted(numbers) == list(range(SAMPLES)), "every sample once"


GLOBAL_STEPS, GLOBAL_SAVE_AT, GLOBAL_KILL_AT = 6, 3, 5
"""In steps of the optimizer: how many a recipe with global batches takes, when it saves, and when it ends."""


def global_jobs(names: Iterable[str], world: int, **more: Any) -> list[Any]:
    """Returns recipes with global batches on some ranks, as jobs of a phase for `pair`."""
    fields = {"steps": GLOBAL_STEPS, "save_at": GLOBAL_SAVE_AT, **more}
    return [[name, fields, world] for name in names]


def killed_global_jobs(names: Iterable[str], **more: Any) -> list[Any]:
    """Returns the same on two ranks, left after some steps."""
    return global_jobs(names, 2, kill_at=GLOBAL_KILL_AT, by_signal=False, **more)


def check_global_steps(folder: Path, expected: list[list[int]], world: int, save_at: int = GLOBAL_SAVE_AT) -> None:
    """Checks what a run on two ranks saw in each step, and one that continued its checkpoint on others.

    Args:
        folder: Reports of the recipe.
        expected: By step, the sorted numbers of its samples.
        world: Ranks of the run that continued.
        save_at: The step after which the checkpoint was written.
    """
    assert _steps(folder, "killed", 2) == expected[:GLOBAL_KILL_AT]
    assert _steps(folder, "resumed", world) == expected[save_at:GLOBAL_STEPS]


def _steps(folder: Path, kind: str, world: int) -> list[list[int]]:
    ranks = [json.loads((folder / f"{kind}-{world}-{rank}.json").read_text())["seen"] for rank in range(world)]
    return [sorted(number for of_rank in step for number in of_rank) for step in zip(*ranks, strict=True)]
