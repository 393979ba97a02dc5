"""Hooks that seed the global generators leave the trainer's alone, wherever they run."""

from __future__ import annotations

import logging
import random
import secrets
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import energon_dali as ed
from energon_dali.share_group import Member, ShareGroup
from tests.loader.dataset_folder import captioning_dataset


def drawn() -> tuple[float, float, float]:
    return torch.rand(1).item(), float(np.random.random()), random.random()


class Encoder(ed.DefaultTaskEncoder):
    decoder = ed.DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")

    @ed.stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        before = drawn()
        for _ in range(50):  # calls that let the trainer's thread run
            torch.sort(torch.rand(20_000))
        sample.image = torch.tensor([*before, *drawn()], dtype=torch.float64)
        return sample


def run(folder: Path, *, num_workers: int, trains: bool) -> tuple[list[Any], list[Any]]:
    """Returns (what the hooks drew for some batches, what the trainer drew between them)."""
    dataset = ed.get_train_dataset(
        captioning_dataset(folder),
        worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=1),
        batch_size=2,
        task_encoder=Encoder(),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    hooks, trainer = [], []
    with ed.get_loader(dataset, start_method="fork") as loader:
        for _, batch in zip(range(6), loader, strict=False):
            hooks.append(batch.image.tolist())
            if trains:
                trainer.append([drawn() for _ in range(2000)])
    return hooks, trainer


def test_the_draws_of_hooks_and_trainer_do_not_mix(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone, _ = run(tmp_path / "data", num_workers=0, trains=False)
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = [[drawn() for _ in range(2000)] for _ in range(6)]
    with caplog.at_level(logging.WARNING):
        hooks, trainer = run(tmp_path / "data", num_workers=1, trains=True)
    assert hooks == alone
    assert trainer == expected
    assert "decode_process=True" in caplog.text


class Unseeded(ed.DefaultTaskEncoder):
    decoder = ed.SampleDecoder(image_decode="torchrgb8")

    @ed.stateless
    def encode_sample(self, sample: Any) -> Any:
        sample.image = torch.tensor(drawn(), dtype=torch.float64)
        return sample


def unseeded_loader(folder: Path) -> Any:
    dataset = ed.get_train_dataset(
        folder,
        worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=1),
        batch_size=2,
        task_encoder=Unseeded(),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    return ed.get_savable_loader(dataset, start_method="fork")


def draws_of(loader: Any, count: int) -> list[Any]:
    return [tuple(row) for _, batch in zip(range(count), loader, strict=False) for row in batch.image.tolist()]


def test_hooks_that_do_not_seed_draw_something_else_after_a_restart(tmp_path: Path) -> None:
    folder = captioning_dataset(tmp_path / "data")
    with unseeded_loader(folder) as loader:
        first = draws_of(loader, 3)
        state = loader.save_state_rank()
        loader.skip_steps(3, 4)  # starts the workers again
        skipped = draws_of(loader, 3)
    assert len({*first, *skipped}) == len(first) + len(skipped)
    restored = []
    for _ in range(2):
        with unseeded_loader(folder) as loader:
            loader.restore_state_rank(state)
            restored.append(draws_of(loader, 3))
    assert restored[0] == restored[1]
    assert len({*first, *restored[0]}) == len(first) + len(restored[0])


def test_ranks_that_share_batches_need_a_decode_process(tmp_path: Path) -> None:
    addresses = [f"seeded-hooks-{secrets.token_hex(8)}" for _ in range(2)]
    members = [Member(rank, "node", address) for rank, address in enumerate(addresses)]
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0" + addresses[0])
    server.listen()
    group = ShareGroup(members[0], members, (), (server,))
    dataset = ed.get_train_dataset(
        captioning_dataset(tmp_path / "data"),
        worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=0, share_group=group),
        batch_size=2,
        task_encoder=Encoder(),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    try:
        with pytest.raises(ed.ConfigError, match="Give decode_process=True"):
            ed.get_loader(dataset)
        ed.get_loader(dataset, decode_process=True).close()
    finally:
        group.close()
