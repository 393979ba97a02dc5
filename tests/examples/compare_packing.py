"""Compares the logits of a pack with those of its samples, each alone with the positions that the model computes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMultimodalLM

from energon_dali import WorkerConfig, get_loader, get_train_dataset


def main(arguments: list[str]) -> list[float]:
    """Returns [number of samples, largest difference, largest logit].

    Args:
        arguments: Folder of the model, and of the data.
    """
    model, data = Path(arguments[0]), arguments[1]
    encoder_class: Any = importlib.import_module("conversations").ConversationEncoder

    class Both(encoder_class):  # type: ignore[misc]
        def pack_selected_samples(self, samples: list[Any]) -> dict[str, Any]:
            return {"pack": super().pack_selected_samples(samples), "alone": [self.batch([one]) for one in samples]}

    dataset = get_train_dataset(
        data,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=1,
        packing_buffer_size=32,
        task_encoder=Both(model),
    )
    network = AutoModelForMultimodalLM.from_pretrained(model).eval()
    with get_loader(dataset) as loader, torch.no_grad():
        made = next(iter(loader))
        packed = network(**made["pack"]).logits
        alone = torch.cat([network(**one).logits for one in made["alone"]], dim=1)
    return [len(made["alone"]), float((packed - alone).abs().max()), float(alone.abs().max())]
