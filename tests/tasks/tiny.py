"""A task small enough to train in a moment: next numbers of sequences that are made, not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningDataModule
from torch import nn
from torch.nn.functional import cross_entropy

from energon_dali.tasks import TaskTransformer


@dataclass
class TinyConfig:
    """What the data are."""

    batches: int = 4
    batch_size: int = 2
    num_vocab: int = 5
    seed: int = 0


class Batches:
    """What gives batches in order; a list would be several loaders to Lightning."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.batches)


class TinyData(LightningDataModule):
    """Batches of random numbers."""

    def __init__(self, cfg: TinyConfig, *, tokenizer: Any = None, decoder: Any = None) -> None:
        super().__init__()
        self.cfg, self.tokenizer, self.decoder = cfg, tokenizer, decoder
        self.prepared = 0

    def prepare_data(self) -> None:
        self.prepared += 1

    @property
    def model_data_kwargs(self) -> dict[str, Any]:
        return {"num_vocab": self.cfg.num_vocab, "num_positions": 8}

    def train_dataloader(self) -> Batches:
        return self._batches(self.cfg.batches, self.cfg.seed)

    def val_dataloader(self) -> Batches:
        return self._batches(2, self.cfg.seed + 1)

    def test_dataloader(self) -> Batches:
        return self._batches(1, self.cfg.seed + 2)

    def _batches(self, count: int, seed: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        shape = (self.cfg.batch_size, 8)
        return Batches([torch.randint(0, self.cfg.num_vocab, shape, generator=generator) for _ in range(count)])


class TinyBackbone(nn.Module):
    """Predicts the next number from this one."""

    def __init__(self, num_vocab: int = 3, width: int = 4) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(num_vocab, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.embeddings(tokens)))
        return logits


class TinyTask(TaskTransformer):
    """Trains on the next number."""

    def __init__(self, *args: Any, smoothing: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.smoothing = smoothing

    def common_step(self, prefix: Any, batch: torch.Tensor) -> torch.Tensor:
        logits = self.backbone(batch[:, :-1])
        return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), label_smoothing=self.smoothing)
