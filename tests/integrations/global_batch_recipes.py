"""Trainings with global batches in the manner of each trainer: a step of the optimizer is a step of the job.

The model does not draw random numbers, so that another number of ranks ends with the same weights but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import accelerate
import lightning
import lightning.fabric
import torch
import torch.distributed.checkpoint as dcp
import transformers
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from energon_dali import EnergonDaliError, GlobalLoaderState, get_savable_loader, get_train_dataset
from energon_dali.integrations.transformers import LoaderTrainerMixin
from energon_dali.tasks import TransformerDataConfig, TransformerDataModule
from tests.integrations.recipes import Killed, Numbers, Run, weights

GLOBAL_BATCH = 12
MICRO_BATCH = 3
"""Two micro-batches per step on two ranks, and four on one."""


class Job:
    """What the recipes share: the loader, and what a rank saw in each step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.accumulated = GLOBAL_BATCH // (run.world * MICRO_BATCH)
        self.step = run.save_at if run.resume else 0
        self._seen: list[int] = []
        self._batches = 0

    def dataset(self, micro_batch: int = MICRO_BATCH) -> Any:
        return get_train_dataset(
            str(self.run.data),
            worker_config=type(self.run.config()).default_worker_config(self.run.workers),
            batch_size=micro_batch,
            global_batch_size=GLOBAL_BATCH,
            shuffle_buffer_size=8,
            task_encoder=Numbers(),
        )

    def loader(self) -> Any:
        return get_savable_loader(self.dataset())

    def sees(self, batch: dict[str, Any]) -> torch.Tensor:
        """Notes a micro-batch, and returns what the model takes."""
        self._seen += [int(number) for number in batch["x"].flatten().tolist()]
        self._batches += 1
        if self._batches == self.accumulated:
            self.run.report["seen"].append(self._seen)
            self._seen, self._batches = [], 0
        return batch["x"] / 100

    def micro_batches(self, loader: Any) -> Iterator[tuple[torch.Tensor, bool]]:
        """Yields what the model takes, with whether it is the last of the step, until the steps of the run are over."""
        for number, batch in enumerate(loader):
            yield self.sees(batch), (number + 1) % self.accumulated == 0
            if self.step == self.run.steps:
                break
        loader.close()

    def took_step(self) -> bool:
        """Counts a step of the optimizer; returns whether a checkpoint is due."""
        self.step += 1
        return self.step == self.run.save_at and not self.run.resume

    def may_die(self) -> None:
        if self.step == self.run.kill_at:
            self.run.write()
            raise Killed


class Steady(torch.nn.Module):
    """A line, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.line(x) - 1).square().mean()}


def model_and_optimizer() -> tuple[Steady, Any]:
    model = Steady()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def ddp(run: Run) -> None:
    job, (module, optimizer) = Job(run), model_and_optimizer()
    model = DistributedDataParallel(module)
    loader, path = job.loader(), run.folder / "ddp.pt"
    if run.resume:
        saved = torch.load(path)
        module.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    for x, is_last in job.micro_batches(loader):
        model.require_backward_grad_sync = is_last
        (model(x)["loss"] / job.accumulated).backward()
        if not is_last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if job.took_step() and run.rank == 0:  # the state is the same on all ranks
            torch.save({"model": module.state_dict(), "loader": loader.save_state_rank()}, path)
        job.may_die()
    run.report["weights"] = weights(module)


def fsdp2(run: Run) -> None:
    job, (model, _) = Job(run), model_and_optimizer()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, path = job.loader(), run.folder / "dcp"

    def state() -> dict[str, Any]:
        parameters, moments = get_state_dict(model, optimizer)
        return {"model": parameters, "optimizer": moments, "loader": GlobalLoaderState(loader)}

    if run.resume:
        saved = state()
        dcp.load(saved, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    for x, is_last in job.micro_batches(loader):
        model.set_requires_gradient_sync(is_last)
        (model(x)["loss"] / job.accumulated).backward()
        if not is_last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if job.took_step():
            dcp.save(state(), checkpoint_id=path)
        job.may_die()
    run.report["weights"] = weights(model)


def with_accelerate(run: Run) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    job, (module, plain) = Job(run), model_and_optimizer()
    model, optimizer, loader = accelerator.prepare(module, plain, job.loader())
    accelerator.gradient_accumulation_steps = loader.micro_batches_per_step
    accelerator.register_for_checkpointing(GlobalLoaderState(loader))
    if run.resume:
        accelerator.load_state(str(run.folder / "accelerate"))
        accelerator.step = 0  # it counts the micro-batches of the ranks that saved
    for x, is_last in job.micro_batches(loader):
        with accelerator.accumulate(model):
            assert accelerator.sync_gradients == is_last
            accelerator.backward(model(x)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        if not is_last:
            continue
        if job.took_step():
            accelerator.save_state(str(run.folder / "accelerate"))
            accelerator.wait_for_everyone()
        job.may_die()
    run.report["weights"] = weights(accelerator.unwrap_model(model))


def with_fabric(run: Run) -> None:
    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=run.world, strategy="ddp")
    fabric.launch()
    job, (module, plain) = Job(run), model_and_optimizer()
    model, optimizer = fabric.setup(module, plain)
    loader, path = job.loader(), run.folder / "fabric.ckpt"
    state = {"model": model, "optimizer": optimizer, "loader": GlobalLoaderState(loader)}
    if run.resume:
        fabric.load(path, state)
    for x, is_last in job.micro_batches(loader):
        with fabric.no_backward_sync(model, enabled=not is_last):
            fabric.backward(model(x)["loss"] / job.accumulated)
        if not is_last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if job.took_step():
            fabric.save(path, state)
            fabric.barrier()
        job.may_die()
    run.report["weights"] = weights(module)


class _Trainer(LoaderTrainerMixin, transformers.Trainer):
    job: Job

    def training_step(self, model: Any, inputs: Any, *args: Any) -> Any:
        return super().training_step(model, {"x": self.job.sees(inputs)}, *args)


class _AfterStep(transformers.TrainerCallback):
    def __init__(self, job: Job) -> None:
        self.job = job

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.job.took_step()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.job.may_die()


def _trainer_of(run: Run, job: Job, accumulated: int) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(run.folder / "trainer"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="steps",
        save_steps=run.save_at,
        gradient_accumulation_steps=accumulated,
        max_steps=run.steps,
        max_grad_norm=0.0,
        optim="sgd",
        lr_scheduler_type="constant",
        learning_rate=0.1,
        ddp_find_unused_parameters=False,
    )
    trainer = _Trainer(model=Steady(), args=arguments, train_dataset=job.dataset(), callbacks=[_AfterStep(job)])
    trainer.job = job
    return trainer


def transformers_trainer(run: Run) -> None:
    job = Job(run)
    trainer = _trainer_of(run, job, job.accumulated)
    checkpoint = str(run.folder / "trainer" / f"checkpoint-{run.save_at}")
    trainer.train(resume_from_checkpoint=checkpoint if run.resume else None)
    run.report["weights"] = weights(trainer.model)


class _Data(TransformerDataModule):
    def task_encoder(self, split: Any) -> Any:
        return Numbers()


class _Module(lightning.LightningModule):
    """Trains the line, and notes what it sees."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.model = Steady()

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(self.job.sees(batch))["loss"]
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class _StepOfLightning(lightning.Callback):
    def __init__(self, job: Job, path: Any) -> None:
        self.job, self.path = job, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step > self.job.step:
            if self.job.took_step():
                trainer.save_checkpoint(self.path)
            self.job.may_die()


def _lightning_trainer(run: Run, job: Job, accumulated: int) -> tuple[Any, Any]:
    config = TransformerDataConfig(
        train=str(run.data), batch_size=MICRO_BATCH, global_batch_size=GLOBAL_BATCH, num_workers=run.workers
    )
    config.shuffle_buffer_size, config.max_samples_per_sequence = 8, 100
    trainer = lightning.Trainer(
        max_steps=run.steps,
        accumulate_grad_batches=accumulated,
        accelerator="cpu",
        strategy="ddp" if run.world > 1 else "auto",
        devices=run.world,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[_StepOfLightning(job, run.folder / "lightning.ckpt")],
    )
    return trainer, _Data(config)


def lightning_trainer(run: Run) -> None:
    job = Job(run)
    trainer, data = _lightning_trainer(run, job, job.accumulated)
    module = _Module(job)
    trainer.fit(module, datamodule=data, ckpt_path=run.folder / "lightning.ckpt" if run.resume else None)
    run.report["weights"] = weights(module.model)


def refusals(run: Run) -> None:
    """Notes what trainers that accumulate over other batches are answered."""
    job = Job(run)
    trainer, data = _lightning_trainer(run, job, 1)
    attempts = {
        "trainer": lambda: _trainer_of(run, job, 4).train(),
        "lightning": lambda: trainer.fit(_Module(job), datamodule=data),
    }
    run.report["messages"] = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except EnergonDaliError as error:
            run.report["messages"][name] = str(error)


RECIPES = {
    "global_ddp": ddp,
    "global_fsdp2": fsdp2,
    "global_accelerate": with_accelerate,
    "global_fabric": with_fabric,
    "global_trainer": transformers_trainer,
    "global_lightning": lightning_trainer,
    "global_refusals": refusals,
}
