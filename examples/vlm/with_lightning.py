"""Trains a multimodal model with Lightning.

    torchrun --nproc-per-node=2 examples/vlm/with_lightning.py --model models/qwen2_vl --data data/captions --packed

Run it again, and it continues after the last checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import lightning
import torch
from conversations import ConversationEncoder, read_options
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModelForMultimodalLM

from energon_dali.tasks import TransformerDataConfig, TransformerDataModule


class Conversations(TransformerDataModule):
    """The data, with its position in each checkpoint."""

    def __init__(self, options: Any) -> None:
        super().__init__(
            TransformerDataConfig(
                train=options.data,
                batch_size=1 if options.packed else options.batch_size,
                packing_buffer_size=64 if options.packed else None,
                shuffle_buffer_size=100,
                num_workers=options.workers,
                num_streams=4,
                virtual_epoch_length=0,
            )
        )
        self.options = options

    def task_encoder(self, split: str) -> ConversationEncoder:
        """Returns the encoder of a split."""
        options = self.options
        return ConversationEncoder(options.model, decoder=options.decoder, row_length=options.row_length)


class Module(lightning.LightningModule):
    """A model of transformers, and its optimizer."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.model = AutoModelForMultimodalLM.from_pretrained(options.model)
        self.learning_rate = options.learning_rate
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Returns the loss of a batch."""
        loss: torch.Tensor = self.model(**batch).loss
        self.losses.append(float(loss))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Runs the command line; returns the losses of this rank's steps."""
    options = read_options(__doc__, arguments)
    model = Module(options)
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    trainer = lightning.Trainer(
        max_steps=options.steps,
        devices=devices,
        num_nodes=int(os.environ.get("WORLD_SIZE", 1)) // devices,
        # LLaVA-OneVision does not use the last layer of its vision tower.
        strategy="ddp_find_unused_parameters_true" if "WORLD_SIZE" in os.environ else "auto",
        callbacks=[ModelCheckpoint(options.out, filename="last", every_n_train_steps=options.save_steps)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = options.out / "last.ckpt"
    trainer.fit(model, datamodule=Conversations(options), ckpt_path=last if last.exists() else None)
    if trainer.is_global_zero:
        model.model.save_pretrained(options.out / "final")
    return model.losses


if __name__ == "__main__":
    main()
