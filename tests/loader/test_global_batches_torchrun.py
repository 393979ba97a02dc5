"""Global batches over real processes: ranks that differ are an error, and a job continues on other numbers of ranks."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(400)  # interpreters with torch, perhaps on a busy machine
ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, os, sys
import torch.distributed as dist
import energon_dali as ed
from tests.loader.test_global_batches import Encoder

folder, out, steps, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
dataset = ed.get_train_dataset(
    f"{folder}/blend.yaml", worker_config=ed.WorkerConfig.default_worker_config(1), batch_size=24 // world // 2,
    global_batch_size=int(os.environ.get(f"SIZE_{rank}", 24)), uneven="round_down", shuffle_buffer_size=20,
    max_samples_per_sequence=10, task_encoder=Encoder(),
)
loader = ed.get_savable_loader(dataset)
checkpoint = f"{out}/checkpoint.json"
if os.path.exists(checkpoint):
    loader.restore_state_rank(json.load(open(checkpoint)))
for batch in loader:
    with open(f"{out}/seen-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{world}-{rank}.jsonl", "a") as file:
        print(json.dumps([batch.step, batch.text]), file=file)
    if batch.is_last_of_step:
        dist.barrier()  # as an optimizer step does
        if rank == 0:
            with open(checkpoint + ".new", "w") as file:
                json.dump(loader.save_state_rank(), file)
            os.replace(checkpoint + ".new", checkpoint)
        dist.barrier()
        if batch.step + 1 == steps:
            break
    elif batch.step == kill_at and rank == world - 1 and not os.path.exists(f"{out}/killed"):
        open(f"{out}/killed", "w").close()
        os.kill(os.getpid(), 9)
loader.close()
"""


def torchrun(
    python: str, processes: int, *arguments: Any, restarts: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    program = Path(str(arguments[1])) / "program.py"
    program.write_text(PROGRAM)
    command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", str(program), *map(str, arguments)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300, check=False)


def steps_seen(out: Path) -> dict[int, list[str]]:
    """Returns the samples of each step; those of the last start count for a step that was begun several times."""
    found: dict[int, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(out.glob("seen-*.jsonl"), key=lambda file: file.stat().st_mtime):
        restart = file.name.rsplit("-", 1)[0]
        for line in file.read_text().splitlines():
            step, texts = json.loads(line)
            found[step][restart, ""] += texts
    return {step: sorted(list(by_start.values())[-1]) for step, by_start in sorted(found.items())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.loader.test_global_batches import write_blend

    return write_blend(tmp_path_factory.mktemp("texts"))


def test_a_killed_job_continues_on_other_numbers_of_ranks(folder: Path, tmp_path: Path, warm_python: str) -> None:
    from tests.loader.test_global_batches import REFERENCE, Job

    expected = Job(folder / "blend.yaml", 1, 24, 24).run(REFERENCE)[0]
    out = tmp_path
    killed = torchrun(warm_python, 4, folder, out, 6, 2)
    assert killed.returncode != 0
    assert json.loads((out / "checkpoint.json").read_text())["cursor"]["step"] == 2
    assert torchrun(warm_python, 2, folder, out, 4, -1).returncode == 0
    assert torchrun(warm_python, 3, folder, out, 6, -1).returncode == 0
    seen = steps_seen(out)
    assert {step: seen[step] for step in range(6)} == {step: expected[step] for step in range(6)}


def test_ranks_that_differ_are_an_error(folder: Path, tmp_path: Path, warm_python: str) -> None:
    done = torchrun(warm_python, 2, folder, tmp_path, 2, -1, SIZE_1="48")
    assert done.returncode != 0
    assert "What differs: global_batch_size (24 and 48)" in done.stderr
    assert not list(tmp_path.glob("seen-*"))
