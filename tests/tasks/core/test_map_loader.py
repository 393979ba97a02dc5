"""Datasets that a data module sets itself: seeded order, ranks, and resuming to the same weights."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

from energon_dali.errors import ConfigError, StateError
from energon_dali.tasks import TransformerDataConfig, TransformerDataModule
from energon_dali.tasks.map_loader import EpochPlan, MapLoader
from tests.tasks.core.tiny_run import quiet_lightning


class Noisy(Dataset[tuple[torch.Tensor, int]]):
    """Samples with a number and noise from each of the three global generators, as random transforms draw it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index / 10, random.random(), np.random.rand(), torch.rand(()).item()]), index


class OwnData(TransformerDataModule):
    """Fills its datasets itself, by a seeded split."""

    def __init__(self, cfg: TransformerDataConfig, count: int = 22) -> None:
        super().__init__(cfg=cfg)
        self.count = count

    def setup(self, stage: str | None = None) -> None:
        whole = Noisy(self.count)
        generator = torch.Generator().manual_seed(1)
        self.dataset_train, self.dataset_val = random_split(whole, [self.count - 4, 4], generator)
        self.dataset_test = Noisy(3)


class Regression(lightning.LightningModule):
    """One linear layer with dropout, and a record of what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[tuple[list[int], float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = torch.nn.functional.dropout(self.layer(batch[0]), 0.3).square().mean()
        self.seen.append((batch[1].tolist(), loss.item()))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        torch.rand(3)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.05)


def config(**options: Any) -> TransformerDataConfig:
    return TransformerDataConfig(**{"batch_size": 4, "num_workers": 0, **options})


def fit(folder: Path, data: dict[str, Any] | None = None, ckpt_path: Path | None = None, **options: Any) -> Regression:
    lightning.seed_everything(1 if ckpt_path is None else 2, verbose=False)
    module = Regression()
    saves = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    ends = ModelCheckpoint(folder, filename="end{step}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True)
    with quiet_lightning():
        trainer = lightning.Trainer(
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[saves, ends],
            **{"max_epochs": 3, **options},
        )
        trainer.fit(module, datamodule=OwnData(config(**(data or {}))), ckpt_path=ckpt_path)
    return module


def indices(loader: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in loader]


def test_the_config_and_the_seed_decide_the_batches() -> None:
    data = OwnData(config(seed=3))
    data.setup("fit")
    loader = data.train_dataloader()
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, len(loader)) == (4, 5)
    first, second = indices(loader), indices(loader)
    assert [len(batch) for batch in first] == [4, 4, 4, 4, 2]
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second))
    again = OwnData(config(seed=3))
    again.setup("fit")
    peeked = again.train_dataloader()
    assert next(iter(peeked))[1].tolist() == first[0]  # a look at a batch changes nothing
    assert [indices(peeked), indices(peeked)] == [first, second]
    other = OwnData(config(seed=4))
    other.setup("fit")
    assert indices(other.train_dataloader()) != first
    assert indices(data.val_dataloader()) == indices(data.val_dataloader())
    assert indices(data.test_dataloader()) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("num_workers", "options"),
    [(0, {}), (1, {}), (0, {"accumulate_grad_batches": 2}), (0, {"limit_train_batches": 3})],
    ids=str,
)
def test_a_resumed_run_continues_with_the_next_batch(tmp_path: Path, num_workers: int, options: dict[str, Any]) -> None:
    data = {"num_workers": num_workers}
    whole = fit(tmp_path / "whole", data, **options)
    # Weights, and the batch that follows: with accumulation a step is two batches, or one at the end of an epoch.
    done_at = {1: 1, 4: 4, 5: 5, 7: 7}
    if "accumulate_grad_batches" in options:
        done_at = {1: 2, 3: 5, 4: 7}
    for step, done in done_at.items():
        (saved,) = (tmp_path / "whole").glob(f"step={step}.ckpt")
        resumed = fit(tmp_path / f"from{step}", data, saved, **options)
        assert resumed.seen == whole.seen[done:]
        assert torch.equal(resumed.layer.weight, whole.layer.weight)
    for saved in (tmp_path / "whole").glob("endstep=*.ckpt"):
        resumed = fit(tmp_path / saved.stem, data, saved, **options)
        assert resumed.seen == whole.seen[len(whole.seen) - len(resumed.seen) :]
        assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_ranks_share_the_batches_of_one_order() -> None:
    whole = [EpochPlan(26, 4, 0, 1, 5, shuffle=True).indices(epoch, 0) for epoch in (0, 1)]
    for epoch, order in enumerate(whole):
        samples = list(order)
        plans = [EpochPlan(26, 4, rank, 3, 5, shuffle=True) for rank in range(3)]
        assert [plan.num_batches for plan in plans] == [2, 2, 2]
        shares = [list(plan.indices(epoch, 0)) for plan in plans]
        rounds = [share[4 * number : 4 * number + 4] for number in (0, 1) for share in shares]
        assert list(chain(*rounds)) == samples[:24]
        assert list(plans[1].indices(epoch, 1)) == samples[16:20]
    validated = [EpochPlan(9, 4, rank, 2, 5, shuffle=False) for rank in (0, 1)]
    assert [list(plan.indices(0, 0)) for plan in validated] == [[0, 1, 2, 3, 8], [4, 5, 6, 7]]
    with pytest.raises(ConfigError, match="is too small for 3 ranks"):
        EpochPlan(8, 4, 0, 3, 5, shuffle=True)
    with pytest.raises(ConfigError, match="gives no batch"):
        EpochPlan(0, 4, 0, 1, 5, shuffle=True)


def train_four_batches(loader: MapLoader) -> Iterator[Any]:
    """Trains on the first four batches, and returns the others."""
    loader.follow()
    batches = iter(loader)
    for _ in range(4):
        next(batches)
        loader.take()
        loader.trained(stepped=True)
    return batches


def test_a_position_holds_on_another_number_of_ranks_and_for_the_same_data_alone() -> None:
    one = MapLoader(Noisy(24), EpochPlan(24, 2, 0, 1, 7, shuffle=True))
    batches = train_four_batches(one)
    state = json.loads(json.dumps(one.save_position()))
    rest = indices(batches)
    shares = []
    for rank in (0, 1):
        loader = MapLoader(Noisy(24), EpochPlan(24, 2, rank, 2, 7, shuffle=True))
        loader.restore_position(state)
        shares.append(indices(loader))
    assert [batch for pair in zip(*shares, strict=True) for batch in pair] == rest
    with pytest.raises(StateError, match="4 batches into its epoch, which 3 ranks cannot divide"):
        MapLoader(Noisy(24), EpochPlan(24, 2, 0, 3, 7, shuffle=True)).restore_position(state)
    with pytest.raises(StateError, match=r"has batch_size=2, and dataset_train has batch_size=3"):
        MapLoader(Noisy(24), EpochPlan(24, 3, 0, 1, 7, shuffle=True)).restore_position(state)


def test_an_epoch_that_is_over_on_more_ranks_is_followed_by_the_next() -> None:
    """Five batches: of two ranks each has two, and the fifth is left out."""
    one = MapLoader(Noisy(10), EpochPlan(10, 2, 0, 1, 7, shuffle=True))
    train_four_batches(one)
    for rank in (0, 1):
        plan = EpochPlan(10, 2, rank, 2, 7, shuffle=True)
        loader = MapLoader(Noisy(10), plan)
        loader.restore_position(one.save_position())
        assert loader.delivered_position() == (1, 0)
        assert [number for batch in indices(loader) for number in batch] == list(plan.indices(1, 0))


def test_overfitting_repeats_the_first_batches(tmp_path: Path) -> None:
    module = fit(tmp_path, overfit_batches=2, max_epochs=2)
    seen = [keys for keys, _ in module.seen]
    assert len(seen) == 4
    assert seen[:2] == seen[2:]


class Stream(IterableDataset[torch.Tensor]):
    """Has no order but its own."""

    def __iter__(self) -> Any:
        return iter(torch.arange(6.0))


def test_a_stream_is_loaded_as_it_is() -> None:
    data = TransformerDataModule(config())
    data.dataset_train = data.dataset_val = Stream()
    for loader in (data.train_dataloader(), data.val_dataloader()):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]


def test_a_checkpoint_of_prepared_data_is_refused(tmp_path: Path) -> None:
    data = TransformerDataModule(config())
    data.dataset_train = TensorDataset(torch.arange(8))
    data._state = {"loader": {}, "random": {}}
    with pytest.raises(StateError, match="training data was a prepared dataset"):
        data.train_dataloader()
