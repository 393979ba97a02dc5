from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy

from energon_dali.errors import ConfigError
from energon_dali.tasks import callbacks
from energon_dali.tasks.callbacks import BLOCKED, SPEED, LoaderProgress, count_samples
from energon_dali.tasks.task import first_rank_can_run
from tests.tasks.core.tiny_run import numbers_dataset, train


def test_speed_and_blocked_share_hold_for_the_batches_since_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight seconds for the workers to start, then two per batch of four samples of which half a one is waiting."""
    clock = SimpleNamespace(now=0.0, blocked=0.0)
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock.now)
    loader = SimpleNamespace(stats=lambda: SimpleNamespace(blocked_seconds=clock.blocked))
    # Twelve ranks, of which groups of four read the same.
    strategy = SimpleNamespace(distributed_sampler_kwargs={"rank": 0, "num_replicas": 3})
    trainer: Any = SimpleNamespace(train_dataloader=loader, world_size=12, strategy=strategy, log_every_n_steps=50)
    logged: list[dict[str, float]] = []
    module: Any = SimpleNamespace(log_dict=lambda values, **_: logged.append(dict(values)))
    callback = LoaderProgress(every_n_batches=2)
    callback.on_train_start(trainer, module)
    for batch in range(7):
        clock.now += 2.0 if batch else 8.0
        clock.blocked += 0.5 if batch else 0.0
        callback.on_train_batch_end(trainer, module, None, {"__key__": list("abcd")}, batch)
        if batch == 3:
            callback.on_validation_start(trainer, module)
            clock.now += 100.0
            callback.on_validation_end(trainer, module)
    assert logged == [{SPEED: 4 * 3 / 2.0, BLOCKED: 0.25}] * 5


def test_one_rank_draws_only_where_it_has_all_weights() -> None:
    def can_run(strategy: Any) -> bool:
        return first_rank_can_run(SimpleNamespace(strategy=strategy))  # type: ignore[arg-type]

    assert can_run(DDPStrategy())
    assert can_run(SimpleNamespace(zero_stage_3=False))
    for strategy in (FSDPStrategy(), ModelParallelStrategy(), SimpleNamespace(zero_stage_3=True)):
        with pytest.warns(UserWarning, match="spreads the weights over the ranks, so no samples are drawn"):
            assert not can_run(strategy)


def test_figures_reach_the_logger(tmp_path: Path) -> None:
    folder = numbers_dataset(tmp_path / "data")
    logger = CSVLogger(tmp_path, name="", version="")
    run = train(
        folder,
        callbacks=[LoaderProgress(2)],
        logger=logger,
        log_every_n_steps=2,
        max_steps=6,
        enable_checkpointing=False,
    )
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert {SPEED, BLOCKED} <= set(header.split(","))
    assert rows
    assert run.trainer.progress_bar_metrics[SPEED] > 0
    assert 0 <= run.trainer.progress_bar_metrics[BLOCKED] <= 1


def test_samples_are_counted_by_keys_or_by_rows() -> None:
    assert count_samples(SimpleNamespace(__key__=["a", "b"])) == 2
    assert count_samples({"x": torch.zeros(5, 2)}) == 5
    assert count_samples([torch.zeros(3), torch.zeros(3)]) == 3
    assert count_samples(torch.zeros(4)) == 4
    assert count_samples(object()) == 1
    with pytest.raises(ConfigError, match="at least 1"):
        LoaderProgress(0)
