"""A job whose ranks are a mesh, for the tests of ranks that share their batches.

python -m tests.loader.sharing.mesh_job FOLDER OUT JSON    runs all ranks, each in a process; JSON is a `Plan`
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import energon_dali as ed
from energon_dali import share_group
from energon_dali.compat import loading
from energon_dali.errors import StateError, WorkerError
from energon_dali.loader.sharing.link import Link
from energon_dali.loader.sharing.reader import PublishingPrefetcher
from energon_dali.samples.context_parallel import ContextCut
from energon_dali.task_encoder.planned_packs import PlannedPacks

BATCH_SIZE = 2


@dataclass
class Plan:
    """What the ranks do."""

    mesh: dict[str, int]
    """Sizes by names of dimensions."""
    data: list[str]
    shared: list[str]
    batches: int = 6
    """Batches that each rank takes, or until the data ends."""
    workers: int = 0
    global_batch_size: int | None = None
    packs: bool = False
    """Whether steps are made of planned packs."""
    repeat: bool = True
    state: str | None = None
    """File with a global state to restore."""
    kill: dict[str, Any] = field(default_factory=dict)
    """{"rank": which, "after": batches}: it kills itself; or {"worker_of": which, "after": batches}."""
    fails: list[int] | None = None
    """[rank, after how many batches] of a step that raises."""
    pause_seconds: float = 0.0
    """How long each rank waits before each batch, times its rank."""
    calls: list[list[Any]] = field(default_factory=list)
    """[after how many batches, method, arguments by name]."""
    megatron: bool = False
    """Whether the program takes its groups from Megatron-Core, and its loaders from `megatron.energon`."""
    nodes: str | None = None
    """A letter for the node of each rank, as ranks on other nodes cannot reach each other's memory."""
    across_nodes: bool = False
    interrupted: int | None = None
    """A rank in which Ctrl-C comes while the fourth batch is on its way to the trainer, who then goes on."""
    closed: int | None = None
    """A rank whose loader a signal handler closes inside the fourth `next`; the trainer then goes on."""
    interrupted_close: int | None = None
    """A rank in which Ctrl-C comes while `close` waits for threads; the trainer then goes on."""
    late: int | None = None
    """A rank that waits a second before and after each `close`, while the others go on."""
    pairs: bool = False
    """Whether the first half of the ranks are encoders, each for one rank of the other half."""
    differ: bool = False
    """Whether rank 1 leaves out a step more than the others."""
    keep: bool = False
    """Whether ranks keep all batches and compare them again at the end."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the loader."""
    deliver: dict[str, str] | None = None
    """Roles by field."""
    cut: dict[str, int] | None = None
    """Dimensions of tokens by field."""
    absent: list[int] = field(default_factory=list)
    """Ranks that never take a batch."""


class Numbers(ed.DefaultTaskEncoder):  # type: ignore[type-arg]
    """Makes a picture of each number, so that batches are larger than a message."""

    @ed.stateless
    def encode_sample(self, sample: Any) -> dict[str, Any]:
        number = int(sample.text.split()[-1])
        return {
            "__key__": sample.__key__,
            "__restore_key__": sample.__restore_key__,
            "number": torch.tensor(number),
            "tokens": torch.arange(8) + 8 * number,
            "pixels": torch.full((3, 40, 40), float(number)),
            "text": sample.text,
        }


class Packed(Numbers):
    """Makes packs of numbers; the first sample of each stands for it."""

    @ed.stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


class Measures:
    """Lengths of the samples of any dataset, as if they had been measured."""

    names = ()
    identity = "numbers"

    def take(self, name: str, numbers: Any) -> Any:
        return 5 + numbers % 20


class Interrupted:
    """Interrupts the delivery of one batch."""

    batches = 0

    def of(self, batch: Any) -> Any:
        self.batches += 1
        if self.batches == 4:
            raise KeyboardInterrupt
        return batch


def digest(batch: Any) -> str:
    """Returns a short text that is the same for equal batches alone."""
    if not isinstance(batch, dict):
        batch = dict(vars(batch))
    found = hashlib.blake2b(digest_size=8)
    for name, value in sorted(batch.items()):
        content = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
        found.update(name.encode() + content)
    return found.hexdigest()


def open_loader(folder: Path, config: ed.WorkerConfig, plan: Plan) -> Any:
    """Returns the loader of a rank."""
    packs: dict[str, Any] = {"packs": PlannedPacks(64, window=20, real_length=None)} if plan.packs else {}
    with mock.patch("energon_dali.assembly.measured_plan.open_measures", return_value=Measures()):
        dataset = ed.get_train_dataset(
            folder,
            worker_config=config,
            batch_size=BATCH_SIZE,
            shuffle_buffer_size=8,
            repeat=plan.repeat,
            global_batch_size=plan.global_batch_size,
            task_encoder=Packed() if plan.packs else Numbers(),
            **packs,
        )
    make: Any = loading.get_savable_loader if plan.megatron else ed.get_savable_loader
    return make(dataset, **plan.options)


def numbers(loader: Any, plan: Plan) -> list[int]:
    """Returns what a loader says of its epochs and steps."""
    if plan.global_batch_size is None:
        return [len(loader)]
    return [len(loader), loader.micro_batches_per_step, loader.consumed_samples]


def numbers_or_none(loader: Any, plan: Plan) -> list[int] | None:
    """Returns the same; None if the loader cannot know them before it has another batch."""
    try:
        return numbers(loader, plan)
    except StateError as error:
        if "after resize it receives its length" not in str(error):
            raise
        return None


def taken(loader: Any, plan: Plan, rank: int | None = None) -> list[list[Any]]:
    """Returns [digest of the batch, digest of the state after it, numbers] for each; "end" at the end of an epoch."""
    seen: list[list[Any]] = []
    kept = []
    batches = iter(loader)
    if plan.state is not None:
        seen.append(["restored", *numbers(loader, plan)])
    if rank is not None and rank == plan.interrupted:
        loader.worker_config.delivery = Interrupted()
    if rank is not None and rank == plan.closed:
        close_in_next(loader)
    while len(seen) < plan.batches:
        resized = None
        for after, method, arguments in plan.calls:
            if after == len(seen):
                more = {"stop": arguments["stop"] + 1} if plan.differ and rank == 1 else {}
                pause = 1.0 if method == "close" and rank is not None and rank == plan.late else 0.0
                time.sleep(pause)
                with interrupting(loader if method == "close" and rank == plan.interrupted_close else None):
                    getattr(loader, method)(**{**arguments, **more})
                time.sleep(pause)
                if method == "resize":
                    resized = numbers_or_none(loader, plan)
        if rank is not None:
            time.sleep(plan.pause_seconds * rank)
            if plan.fails == [rank, len(seen)]:
                raise RuntimeError("the trainer's step failed")
            if plan.kill.get("after") == len(seen):
                threading.Timer(plan.kill.get("delay", 0), kill, (plan, rank)).start()
        try:
            batch = next(batches)
        except StopIteration:
            seen.append(["end", digest(loader.save_state_rank()), *numbers(loader, plan)])
            batches = iter(loader)
            continue
        except (KeyboardInterrupt, WorkerError) as error:
            if isinstance(error, WorkerError) and "The loader was closed" not in str(error):
                raise
            batches = iter(loader)
            continue
        kept.append((batch, digest(batch)))
        seen.append([digest(batch), digest(loader.save_state_rank()), *numbers(loader, plan)])
        assert resized is None or resized[:2] == seen[-1][2:4], resized
        batch["pixels"].mul_(0).sub_(1)  # no other rank sees that
        if plan.keep:
            kept[-1] = (batch, digest(batch))
        else:
            kept.clear()
    assert all(digest(batch) == was for batch, was in kept)
    return seen


def close_in_next(loader: Any) -> None:
    """Closes a loader within its fourth `next`, after the element was taken and before it is counted."""
    kind, method = (Link, "batch") if type(loader).__name__ == "FollowerLoader" else (PublishingPrefetcher, "_ask")
    original, calls = getattr(kind, method), itertools.count(1)

    def closing(self: Any, *arguments: Any) -> Any:
        found = original(self, *arguments)
        if next(calls) == 4:
            loader.close()
        return found

    setattr(kind, method, closing)


@contextlib.contextmanager
def interrupting(loader: Any) -> Iterator[None]:
    """Context manager in which Ctrl-C comes while the loader waits for the thread of its prefetcher; None for none."""
    if loader is None or loader._prefetcher is None:
        yield
        return
    kind = type(loader._prefetcher)
    original = kind.close

    def interrupted(self: Any) -> None:
        original(self)
        raise KeyboardInterrupt

    with mock.patch.object(kind, "close", interrupted), contextlib.suppress(KeyboardInterrupt):
        yield


def kill(plan: Plan, rank: int) -> None:
    """Kills this process, or one of its workers, if it is meant."""
    if plan.kill.get("rank") == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.kill.get("worker_of") == rank:
        for child in multiprocessing.active_children() or _children():
            os.kill(child if isinstance(child, int) else child.pid, signal.SIGKILL)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def parallel_state(mesh: Any) -> Any:
    """Returns the functions of `megatron.core.parallel_state` that are asked, for a mesh of dp and tp."""
    return SimpleNamespace(
        get_data_parallel_group=lambda: mesh.get_group("dp"),
        get_tensor_model_parallel_group=lambda: mesh.get_group("tp"),
        get_context_parallel_group=lambda: None,
        get_pipeline_model_parallel_group=lambda: None,
    )


def be_rank(rank: int, folder: Path, out: Path, plan: Plan) -> None:
    """Runs a rank of the job, and writes what it saw."""
    world = math.prod(plan.mesh.values())
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", tuple(plan.mesh.values()), mesh_dim_names=tuple(plan.mesh))
    cut = None if plan.cut is None else ContextCut(plan.cut)
    options: dict[str, Any] = {"num_workers": plan.workers, "deliver": plan.deliver, "cut": cut}
    options["across_nodes"] = plan.across_nodes
    if plan.nodes is not None:
        node = plan.nodes[rank]
        share_group._node = lambda: node
    config: ed.WorkerConfig
    if plan.pairs:
        half = world // 2
        rows = [dist.new_group([*range(start, start + half)]) for start in (0, half)]
        pairs = [dist.new_group([number, number + half]) for number in range(half)]
        shared = {"pp": pairs[rank % half]}
        config = ed.WorkerConfig.from_groups(rows[rank // half], shared=shared, **options)
    elif plan.megatron:
        config = ed.WorkerConfig.from_megatron(parallel_state(mesh), **options)
    else:
        config = ed.WorkerConfig.from_mesh(mesh, data=plan.data, shared=plan.shared, **options)
    report: dict[str, Any] = {"data_rank": config.rank, "pid": os.getpid(), "began": time.time()}
    try:
        loader = open_loader(folder, config, plan)
        report["kind"] = type(loader).__name__
        if plan.state is not None:
            loader.restore_state_global(json.loads(Path(plan.state).read_text()))
        if rank in plan.absent:
            time.sleep(4)
        elif plan.cut is not None or plan.pairs:
            parts = list(itertools.islice(loader, plan.batches))
            report["fields"] = sorted(parts[0])
            report["tokens"] = [part["tokens"].tolist() for part in parts]
        else:
            with loader:
                report["seen"] = taken(loader, plan, rank)
            if "resize" not in [method for _, method, _ in plan.calls]:  # the process groups are still those before
                report["state"] = loader.save_state_global(global_dst_rank=_first(config))
            report["length"] = len(loader)
        loader.close()
    except Exception as error:
        report["error"] = [type(error).__name__, str(error), traceback.format_exc()]
    report["seconds"] = time.time() - report.pop("began")
    (out / f"rank-{rank}.json").write_text(json.dumps(report))
    os._exit(0)  # without waiting for ranks that were killed


def _first(config: ed.WorkerConfig) -> int:
    if config.data_parallel_group is None:
        return dist.get_rank()
    return dist.get_process_group_ranks(config.data_parallel_group)[0]


def main() -> None:
    folder, out, text = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    plan = Plan(**json.loads(text))
    processes = []
    for rank in range(math.prod(plan.mesh.values())):
        pid = os.fork()
        if not pid:
            be_rank(rank, folder, out, plan)
        processes.append(pid)
    for pid in processes:
        os.waitpid(pid, 0)


def command(python: str, folder: Path, out: Path, plan: Plan) -> list[str]:
    """Returns the command that runs a job."""
    return [python, "-m", "tests.loader.sharing.mesh_job", str(folder), str(out), json.dumps(asdict(plan))]


if __name__ == "__main__":
    main()
