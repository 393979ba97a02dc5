from __future__ import annotations

import csv
import json
import warnings
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from energon_dali import ConfigError, LoaderLog, get_savable_loader
from energon_dali.integrations import LoaderScalars
from energon_dali.integrations.transformers import LoaderTrainerMixin
from tests.integrations.observed import full_loader, numbers_loader


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    loader = numbers_loader()
    with SummaryWriter(str(tmp_path)) as writer:
        log = LoaderLog(loader, to=writer, every_steps=5)
        for step, _ in enumerate(islice(loader, 20), 1):
            log.step(step)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {"loader/blocked_share", "loader/batches_per_second", "loader/stage_seconds_per_second/rank"} <= set(tags)
    assert [event.step for event in events.Scalars("loader/batches_per_second")] == [5, 10, 15, 20]
    assert all(event.value > 0 for event in events.Scalars("loader/batches_per_second"))
    assert all(0 <= event.value <= 1 for event in events.Scalars("loader/blocked_share"))
    made = [event.value for event in events.Scalars("loader/events/made")]
    assert made == sorted(made)
    assert made[-1] == loader.stats().counts["made"]


def wandb_records(data: bytes) -> list[bytes]:
    """Returns the records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    assert data.startswith(b":W&B")
    records, place = [b""], 7
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        records[-1] += data[place + 7 : place + 7 + size]
        if kind in (1, 4):  # whole, or the last part
            records.append(b"")
        place += 7 + size
    return records[:-1]


@pytest.mark.sweep  # it starts a process of its own, and imports much; the function below samples it
def test_weights_and_biases_reads_back_what_was_written_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of its dependencies
        import wandb
        from wandb.proto import wandb_internal_pb2

        loader = numbers_loader()
        settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off")
        with wandb.init(mode="offline", project="test", dir=tmp_path, settings=settings) as run:
            log = LoaderLog(loader, to=run, every_steps=5)
            for step, _ in enumerate(islice(loader, 20), 1):
                run.log({"loss": 1.0 / step}, step=step)
                log.step(step)
        wandb.teardown()  # ends its process, which then has written everything
        (path,) = tmp_path.rglob("run-*.wandb")
        rows = []
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses == [1.0 / step for step in range(1, 21)]  # the training's own rows are as they were
    written = [row for row in rows if "loader/step" in row]
    assert [row["loader/step"] for row in written] == [5, 10, 15, 20]
    assert all(row["loader/batches_per_second"] > 0 for row in written)


def test_a_function_gets_rates_of_the_time_between_and_totals_since_the_start() -> None:
    rows: list[tuple[dict[str, float], int]] = []
    loader = full_loader()
    log = LoaderLog({"train": loader}, to=lambda scalars, step: rows.append((scalars, step)))
    log.step(49)
    assert not rows
    log.step(50)
    log.step(100)  # no batch since
    ((scalars, step),) = rows
    assert step == 50
    assert scalars["loader_train/blocked_share"] == 0.05
    assert scalars["loader_train/batches_per_second"] == pytest.approx(21 / 12.5)
    assert scalars["loader_train/stage_seconds_per_second/load"] == pytest.approx(4 / 12.5)
    assert scalars["loader_train/read_bytes_per_second"] == 400_000
    assert scalars["loader_train/samples_failed/decode"] == 3
    assert scalars["loader_train/stage_cpu_seconds_per_second/load"] == pytest.approx(3.5 / 12.5)


def test_the_callback_of_lightning_writes_once_per_step() -> None:
    from energon_dali.integrations.lightning import LoaderLogCallback

    written: list[int] = []
    logger = SimpleNamespace(log_metrics=lambda scalars, step: written.append(step))
    trainer = SimpleNamespace(loggers=[logger], log_every_n_steps=2, global_step=0)
    loader = numbers_loader()
    callback = LoaderLogCallback(loader)
    for batch, _ in enumerate(islice(loader, 12)):
        trainer.global_step = batch // 2  # two batches per step
        callback.on_train_batch_end(trainer)
    assert written == [2, 4]
    trainer.log_every_n_steps = 0
    callback.on_train_batch_end(trainer)
    assert written == [2, 4]


def test_a_checkpoint_of_transformers_keeps_no_position_of_ranks_that_are_gone(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"loader_state_{rank}.json").write_text("of an earlier run with three ranks")
    loader = get_savable_loader(numbers_loader().dataset)
    trainer: Any = SimpleNamespace(
        _parent=SimpleNamespace(_save_rng_state=lambda folder: None), _training=SimpleNamespace(loader=loader)
    )
    LoaderTrainerMixin._save_rng_state(trainer, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["loader_state_0.json"]


def test_lightning_gives_the_statistics_to_its_loggers(tmp_path: Path) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    from energon_dali.integrations.lightning import LoaderLogCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = numbers_loader()
    logger = CSVLogger(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_steps=10,
            logger=logger,
            callbacks=[LoaderLogCallback(loader)],
            accelerator="cpu",
            log_every_n_steps=5,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(Module(), loader)
    with open(Path(logger.log_dir) / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["loader/blocked_share"]]
    assert [row["step"] for row in rows] == ["5", "10"]
    assert all(float(row["loader/batches_per_second"]) > 0 for row in rows)


def test_what_the_transformers_trainer_logs_with_the_loss_gets_the_numbers(tmp_path: Path) -> None:
    logged: list[dict[str, float]] = []

    class Parent:
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            logged.append(logs)

    class LoaderTrainer(LoaderTrainerMixin, Parent):
        train_dataset = eval_dataset = None

    silent, trainer = LoaderTrainer(), LoaderTrainer(log_loader=True)
    loader = full_loader()
    trainer._scalars = LoaderScalars(loader)
    silent.log({"loss": 1.0}, 0.0)
    trainer.log({"eval_loss": 1.0})
    trainer.log({"loss": 1.0}, start_time=0.0)
    assert logged[:2] == [{"loss": 1.0}, {"eval_loss": 1.0}]
    assert logged[2]["loss"] == 1.0
    assert logged[2]["loader/blocked_share"] == 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": 3}, "to=3 cannot be written to. Give a SummaryWriter"),
        ({"to": print, "every_steps": 0}, "every_steps=0 is invalid"),
    ],
)
def test_arguments_that_cannot_work(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoaderLog(numbers_loader(), **options)
