"""Trainings in the manner of each trainer's own documentation, with a loader of this package, on one or two ranks."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import accelerate
import lightning.fabric
import torch
import torch.distributed.checkpoint as dcp
import transformers
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from torchdata.nodes import Loader, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader

from energon_dali import (
    DefaultTaskEncoder,
    EnergonDaliError,
    GlobalLoaderState,
    LoaderIterableDataset,
    TextSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_dali.integrations.torchdata import LoaderNode
from energon_dali.integrations.transformers import LoaderTrainerMixin

BATCH = 4


class Killed(BaseException):
    """Ends a recipe at a step, without a word to anything that it has open."""


@dataclass
class Run:
    """One rank's part of a training, from the beginning or from a checkpoint, to its end or its death."""

    data: Path
    folder: Path
    """Where checkpoints go."""
    rank: int
    world: int
    steps: int
    save_at: int
    """The step after which the checkpoint is written."""
    resume: bool = False
    kill_at: int | None = None
    """The batch after which the process ends."""
    by_signal: bool = True
    """Whether it kills itself then, or raises Killed, so that it can go on with the next recipe."""
    workers: int = 0
    report: dict[str, Any] = field(default_factory=lambda: {"seen": []})

    def sees(self, batch: dict[str, Any]) -> torch.Tensor:
        """Notes the numbers of the samples of a batch, and returns what the model takes."""
        self.report["seen"].append([int(number) for number in batch["x"].flatten().tolist()])
        return batch["x"] / 100

    def took_step(self) -> None:
        if self.kill_at is not None and len(self.report["seen"]) == self.kill_at:
            self.write()
            if self.by_signal:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Killed

    def write(self) -> None:
        """Writes the report, also of a process that is killed next."""
        name = "resumed" if self.resume else "killed" if self.kill_at else "whole"
        (self.folder / f"{name}-{self.world}-{self.rank}.json").write_text(json.dumps(self.report))

    def config(self) -> WorkerConfig:
        return WorkerConfig.default_worker_config(self.workers, num_streams=4)

    def dataset(self, *, epoch_batches: int = 0) -> Any:
        return get_train_dataset(
            str(self.data),
            worker_config=self.config(),
            batch_size=BATCH,
            shuffle_buffer_size=8,
            virtual_epoch_length=epoch_batches,
            task_encoder=Numbers(),
        )

    def loader(self, **options: Any) -> Any:
        return get_savable_loader(self.dataset(**options))


class Numbers(DefaultTaskEncoder):
    """Samples of text that end in a number become that number."""

    @stateless
    def encode_sample(self, sample: TextSample) -> dict[str, Any]:
        number = float(sample.text.rsplit(" ", 1)[1])
        return {"__key__": sample.__key__, "x": torch.tensor([number]), "labels": torch.tensor([number % 3])}


class Line(torch.nn.Module):
    """A line through points, with dropout, so that the random numbers of a resumed training matter."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y = torch.nn.functional.dropout(self.line(x), 0.25, self.training)
        return {"loss": ((y - (0 if labels is None else labels)) ** 2).mean(), "logits": y}


def weights(model: torch.nn.Module) -> list[float]:
    """Returns the weights of a model, whole also where they are sharded."""
    whole = (getattr(one, "full_tensor", lambda one=one: one)() for one in model.state_dict().values())
    return [float(one) for one in whole]


def plain_ddp(run: Run) -> None:
    torch.manual_seed(run.rank)
    model = DistributedDataParallel(Line())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader, step, path = run.loader(), 0, run.folder / f"ddp-{run.rank}.pt"
    if run.resume:
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    for batch in loader:
        model(run.sees(batch))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == run.save_at and not run.resume:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save({**state, "random": torch.get_rng_state(), "step": step}, path)
        run.took_step()
        if step == run.steps:
            break
    loader.close()
    run.report["weights"] = weights(model.module)


def with_accelerate(run: Run) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    set_seed(7 + run.rank)
    module = Line()
    model, optimizer, loader = accelerator.prepare(module, torch.optim.AdamW(module.parameters(), lr=0.1), run.loader())
    accelerator.register_for_checkpointing(GlobalLoaderState(loader))
    step = 0
    if run.resume:
        accelerator.load_state(str(run.folder / "accelerate"))
        step = run.save_at
    for batch in loader:
        loss = model(run.sees(batch).to(accelerator.device))["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == run.save_at and not run.resume:
            accelerator.save_state(str(run.folder / "accelerate"))
            accelerator.wait_for_everyone()
        run.took_step()
        if step == run.steps:
            break
    loader.close()
    run.report["weights"] = weights(accelerator.unwrap_model(model))


def with_fabric(run: Run) -> None:
    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=run.world, strategy="ddp")
    fabric.launch()
    torch.manual_seed(run.rank)
    module = Line()
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=0.1))
    loader = run.loader()
    state = {"model": model, "optimizer": optimizer, "loader": GlobalLoaderState(loader), "step": 0}
    path = run.folder / "fabric.ckpt"
    if run.resume:
        fabric.load(path, state)
    for batch in loader:
        batch = fabric.to_device(batch)
        fabric.backward(model(run.sees(batch))["loss"])
        optimizer.step()
        optimizer.zero_grad()
        state["step"] += 1
        if state["step"] == run.save_at and not run.resume:
            fabric.save(path, state)
            fabric.barrier()
        run.took_step()
        if state["step"] == run.steps:
            break
    loader.close()


def fsdp2_and_dcp(run: Run) -> None:
    torch.manual_seed(1)
    model = Line().eval()  # ranks of another number draw other random numbers
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = run.loader()
    position = GlobalLoaderState(loader)
    step, path = 0, run.folder / "dcp"
    if run.resume:
        weights_, moments = get_state_dict(model, optimizer)
        saved = {"model": weights_, "optimizer": moments, "loader": position}
        dcp.load(saved, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        step = run.save_at
    for batch in loader:
        model(run.sees(batch))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == run.save_at and not run.resume:
            weights_, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights_, "optimizer": moments, "loader": position}, checkpoint_id=path)
        run.took_step()
        if step == run.steps:
            break
    loader.close()
    run.report["weights"] = weights(model)


def torch_stateful_dataloader(run: Run) -> None:
    batches = StatefulDataLoader(LoaderIterableDataset(run.loader()), batch_size=None)
    step, path = 0, run.folder / f"stateful-{run.rank}.pt"
    if run.resume:
        batches.load_state_dict(torch.load(path, weights_only=True))
        step = run.save_at
    for batch in batches:
        run.sees(batch)
        step += 1
        if step == run.save_at and not run.resume:
            torch.save(batches.state_dict(), path)
        run.took_step()
        if step == run.steps:
            break
    batches.dataset.loader.close()


def torchdata_nodes(run: Run) -> None:
    node = LoaderNode(run.dataset())
    batches: Any = Loader(Prefetcher(node, prefetch_factor=2))
    step, path = 0, run.folder / f"nodes-{run.rank}.pt"
    if run.resume:
        batches.load_state_dict(torch.load(path, weights_only=True))
        step = run.save_at
    for batch in batches:
        run.sees(batch)
        step += 1
        if step == run.save_at and not run.resume:
            torch.save(batches.state_dict(), path)
        run.took_step()
        if step == run.steps:
            break


class _Trainer(LoaderTrainerMixin, transformers.Trainer):
    run: Run

    def training_step(self, model: Any, inputs: Any, *args: Any) -> Any:
        return super().training_step(model, {**inputs, "x": self.run.sees(inputs)}, *args)


class _AfterStep(transformers.TrainerCallback):
    def __init__(self, run: Run) -> None:
        self.run = run

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.run.took_step()


def transformers_trainer(run: Run, **options: Any) -> None:
    torch.manual_seed(1)
    arguments = transformers.TrainingArguments(
        output_dir=str(run.folder / "trainer"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="steps",
        save_steps=run.save_at,
        seed=5,
        ddp_find_unused_parameters=False,
        **(options or {"max_steps": run.steps}),
    )
    # Few samples, of which the ranks have different numbers of batches.
    few = str(run.data.parent / "few")
    evaluated = get_val_dataset(few, worker_config=run.config(), batch_size=BATCH, task_encoder=Numbers())
    trainer = _Trainer(
        model=Line(),
        args=arguments,
        train_dataset=run.dataset(),
        eval_dataset=evaluated,
        compute_metrics=lambda all_of: {"labels": sorted(all_of.label_ids.flatten().tolist())},
        callbacks=[_AfterStep(run)],
    )
    trainer.run = run
    checkpoint = str(run.folder / "trainer" / f"checkpoint-{run.save_at}")
    trainer.train(resume_from_checkpoint=checkpoint if run.resume else None)
    run.report["weights"] = weights(trainer.model)
    if not run.resume:
        run.report["evaluated"] = trainer.evaluate()


def transformers_epochs(run: Run) -> None:
    """Accumulates 4 batches of a training of epochs with 6: the last step of an epoch has 2."""
    transformers_trainer(run, num_train_epochs=2, gradient_accumulation_steps=4)


class Around(IterableDataset[Any]):
    """What programs place between a loader and a torch DataLoader."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        yield from self.batches


def refusals(run: Run) -> None:
    """Notes the messages about what would lose or repeat samples, or the position."""
    accelerator = accelerate.Accelerator(cpu=True)
    messages: dict[str, str] = {}
    run.report["messages"] = messages

    def note(name: str, action: Callable[[], Any]) -> None:
        try:
            action()
            messages[name] = "nothing was refused"
        except EnergonDaliError as error:
            messages[name] = str(error)

    def prepared(batches: Any, **options: Any) -> Any:
        accelerator.dataloader_config = DataLoaderConfiguration(**options)
        return iter(accelerator.prepare(DataLoader(Around(batches), batch_size=2)))

    whole = [number for batch in run.loader(epoch_batches=6) for number in run.sees(batch)]
    assert len(whole) == 24
    if run.rank == 0:  # where it dispatches, only rank 0 asks: the other rank would wait for it
        note("dispatched", lambda: next(prepared(run.loader())))
        note("dispatched iterator", lambda: next(prepared(iter(run.loader()))))
        note("sharded", lambda: next(prepared(run.loader(), dispatch_batches=False)))
        note("split", lambda: next(prepared(run.loader(), dispatch_batches=False, split_batches=True)))
        # After an error of any dataset torch waits as long for each worker, then ends it. The error refers to the
        # iterator, so the collector finalizes its queues first, and what should end the workers is never sent.
        torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5
        workers = DataLoader(LoaderIterableDataset(run.loader()), batch_size=None, num_workers=2)
        note("worker processes", lambda: next(iter(workers)))
    accelerator.register_for_checkpointing(run.loader())
    note("accelerate checkpoint", lambda: accelerator.save_state(str(run.folder / "accelerate")))
    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=run.world, strategy="ddp")
    fabric.launch()
    note("fabric checkpoint", lambda: fabric.save(run.folder / "fabric.ckpt", {"loader": run.loader()}))
    note("distributed checkpoint", lambda: dcp.save({"loader": run.loader()}, checkpoint_id=run.folder / "dcp"))
    alone = run.config()
    alone.rank, alone.world_size, alone.num_streams = 0, 1, 4
    early = get_train_dataset(str(run.data), worker_config=alone, batch_size=BATCH, task_encoder=Numbers())
    note("too early", lambda: next(iter(get_savable_loader(early))))
    states: list[Any] = [None, None]
    torch.distributed.all_gather_object(states, run.loader().state_dict())
    note("restored elsewhere", lambda: run.loader().load_state_dict(states[0]))
    _trainer_refusals(run, note, messages)


def _trainer_refusals(run: Run, note: Callable[..., None], messages: dict[str, str]) -> None:
    def trainer(kind: Any, given: Any, **options: Any) -> Any:
        arguments = transformers.TrainingArguments(
            str(run.folder / "t"), max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True, **options
        )
        return kind(model=Line(), args=arguments, train_dataset=given)

    folder = run.folder / f"bare{run.rank}"  # one per rank: a rank must not read what the other is writing
    folder.mkdir()
    state = transformers.TrainerState(max_steps=1)
    state.save_to_json(str(folder / "trainer_state.json"))
    bare = str(folder)
    note("trainer without mixin", lambda: trainer(transformers.Trainer, run.dataset()).train())
    note("trainer with a loader", lambda: trainer(_Trainer, run.loader()))
    note("trainer skips", lambda: trainer(_Trainer, run.dataset(), ignore_data_skip=True).train(bare))
    note("trainer finds a batch size", lambda: trainer(_Trainer, run.dataset(), auto_find_batch_size=True).train())
    torch.save(Line().state_dict(), folder / "pytorch_model.bin")
    note("trainer without position", lambda: trainer(_Trainer, run.dataset()).train(bare))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ignoring = trainer(_Trainer, run.dataset(), dataloader_num_workers=3, save_strategy="no")
        ignoring.run = run
        ignoring.train()
    messages["trainer ignores"] = "".join(str(one.message) for one in caught)


RECIPES: dict[str, Callable[[Run], None]] = {
    "ddp": plain_ddp,
    "accelerate": with_accelerate,
    "fabric": with_fabric,
    "fsdp2": fsdp2_and_dcp,
    "stateful": torch_stateful_dataloader,
    "nodes": torchdata_nodes,
    "trainer": transformers_trainer,
    "trainer_epochs": transformers_epochs,
    "refusals": refusals,
}
