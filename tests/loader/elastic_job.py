"""A training whose ranks come and go, for the tests of elastic jobs.

torchrun ... -m tests.loader.elastic_job torchrun FOLDER OUT    starts its processes again with other ranks
python -m tests.loader.elastic_job replicas FOLDER OUT          has replicas that go on when others die, leave or join
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import energon_dali as ed
from tests.loader.test_global_batches import Encoder

GLOBAL_BATCH = 24
RANKS = (4, 4, 2, 2, 4, 4)
"""By step, the number of ranks that compute it."""
LEAVES, COMES_BACK = 2, 4
"""The steps before which half of the ranks are lost, and come back."""


def open_loader(folder: Path, rank: int, world_size: int, batch_size: int) -> Any:
    """Returns the loader of a rank, with a worker."""
    dataset = ed.get_train_dataset(
        folder / "blend.yaml",
        worker_config=ed.WorkerConfig(rank=rank, world_size=world_size, num_workers=1),
        batch_size=batch_size,
        global_batch_size=GLOBAL_BATCH,
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
        task_encoder=Encoder(),
    )
    return ed.get_savable_loader(dataset)


def note(out: Path, batch: Any, start: int, rank: int) -> None:
    """Writes down the samples of a micro-batch, with the number of the start of its process."""
    with (out / f"seen-{start}-{rank}.jsonl").open("a") as file:
        print(json.dumps([batch.step, batch.text]), file=file)


def write(path: Path, value: Any) -> None:
    """Writes JSON, so that a reader finds all of it or none."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(value))
    new.replace(path)


def wait_for_a_loss() -> None:
    """Computes until a collective operation fails, because another rank has died.

    Raises:
        RuntimeError: As said, or nothing happens for minutes.
    """
    for _ in range(3_000):
        dist.all_reduce(torch.zeros(1))
        time.sleep(0.1)
    raise RuntimeError("no rank died")


def under_torchrun(folder: Path, out: Path) -> None:
    """Takes the steps that have as many ranks as there are now; torchrun starts it again with others."""
    dist.init_process_group("gloo")
    rank, world_size, start = dist.get_rank(), dist.get_world_size(), int(time.time() * 1000)
    checkpoint = out / "checkpoint.json"
    box = [start, json.loads(checkpoint.read_text()) if rank == 0 and checkpoint.exists() else None]
    dist.broadcast_object_list(box)
    start, state = box
    (out / f"pid-{os.environ['AGENT']}-{os.getpid()}").touch()
    loader = open_loader(folder, rank, world_size, GLOBAL_BATCH // world_size // 2)
    loader.restore_state_rank(state)
    for batch in loader:
        note(out, batch, start, rank)
        if RANKS[batch.step] != world_size:  # torchrun ends this process when ranks are lost, or come back
            write(out / f"waiting-{batch.step}-{rank}", start)
            wait_for_a_loss()
        if batch.is_last_of_step:
            dist.all_reduce(torch.zeros(1))  # as an optimizer step does
            if rank == 0:
                write(checkpoint, loader.save_state_rank())
            dist.barrier()
            if batch.step + 1 == len(RANKS):
                break
    loader.close()
    dist.destroy_process_group()


GROUPS = (4, 2, 4, 3)
"""Numbers of replicas: two of four die within step 2; two others join before step 4; one leaves before step 5."""
DIE_WITHIN, JOIN_BEFORE, LEAVE_BEFORE, STEPS_OF_REPLICAS = 2, 4, 5, 7


def join(out: Path, group: int, rank: int) -> None:
    """Forms a process group with the replicas that are there now."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{out}/group-{group}", rank=rank, world_size=GROUPS[group])


def be_replica(folder: Path, out: Path, rank: int, group: int) -> None:
    """Takes the steps of a replica, which belongs to the job from a group on."""
    box: list[Any] = [None]
    join(out, group, rank)
    if group:  # the others run already
        dist.broadcast_object_list(box)
    loader = open_loader(folder, rank, GROUPS[group], batch_size=2)
    loader.restore_state_rank(box[0])
    state = loader.save_state_rank()
    while True:
        batch = next(loader)
        note(out, batch, group, rank)
        if batch.step == DIE_WITHIN and group == 0:
            if rank >= GROUPS[1]:
                os.kill(os.getpid(), signal.SIGKILL)
            with contextlib.suppress(RuntimeError):
                wait_for_a_loss()
            group += 1
            loader.close()  # its workers have copies of gloo's sockets: others would not notice that this one leaves
            join(out, group, rank)
            loader = open_loader(folder, rank, GROUPS[group], batch_size=2)
            loader.restore_state_rank(state)  # the step begins again
            continue
        if not batch.is_last_of_step:
            continue
        dist.all_reduce(torch.zeros(1))  # as an optimizer step does
        state = loader.save_state_rank()
        if batch.step + 1 in (JOIN_BEFORE, LEAVE_BEFORE):
            group += 1
            loader.close()
            if rank == GROUPS[group]:
                break  # it leaves
            join(out, group, rank)
            if batch.step + 1 == JOIN_BEFORE:
                dist.broadcast_object_list([state])
            loader.resize(rank, GROUPS[group])
        if batch.step + 1 == STEPS_OF_REPLICAS:
            break
    loader.close()
    dist.destroy_process_group()


def with_replicas(folder: Path, out: Path) -> None:
    """Runs all replicas, in processes that are forked from this one."""
    children = []
    for rank, group in [*((rank, 0) for rank in range(4)), (2, 2), (3, 2)]:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                be_replica(folder, out, rank, group)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0, 0, -signal.SIGKILL, -signal.SIGKILL, 0, 0], codes


if __name__ == "__main__":
    run = {"torchrun": under_torchrun, "replicas": with_replicas}[sys.argv[1]]
    run(Path(sys.argv[2]), Path(sys.argv[3]))
