"""Trains a small model on any number of processes: every step has the same samples, and so the same loss.

    python examples/global_batches.py data/captions
    torchrun --nproc-per-node 2 examples/global_batches.py data/captions
    torchrun --nproc-per-node 4 examples/global_batches.py data/captions --checkpoint step.json

With --checkpoint, the program saves after each step. It continues at the step of that file, on any number of processes.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import energon_dali as ed

GLOBAL_BATCH = 16


class Brightness(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Predicts the brightness of an image from the mean of each channel."""

    decoder = ed.SampleDecoder()

    @ed.stateless
    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        channels = sample.image.double().mean(dim=(1, 2))
        weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
        return {"x": channels, "y": (channels * weights).sum()}

    def batch(self, samples: list[Any]) -> Any:
        return Batch(torch.stack([one["x"] for one in samples]), torch.stack([one["y"] for one in samples]))


@dataclass
class Batch:
    """A micro-batch; the loader adds step, micro_batch, is_last_of_step and num_units."""

    x: torch.Tensor
    """float64[n, 3]."""
    y: torch.Tensor
    """float64[n]."""


def main() -> None:
    """Trains for some steps, and prints the loss of each on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a prepared dataset of images")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--checkpoint", type=Path, help="file of the last step")
    options = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    world_size = dist.get_world_size() if dist.is_initialized() else 1

    loader = ed.get_savable_loader(
        ed.get_train_dataset(
            options.data,
            worker_config=ed.WorkerConfig.default_worker_config(num_workers=1),
            batch_size=GLOBAL_BATCH // world_size // 2,  # two micro-batches per step and rank
            global_batch_size=GLOBAL_BATCH,
            shuffle_buffer_size=1000,
            max_samples_per_sequence=None,
            task_encoder=Brightness(),
        )
    )
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if options.checkpoint is not None and options.checkpoint.exists():
        saved = json.loads(options.checkpoint.read_text())
        loader.restore_state_rank(saved["loader"])
        parts = {name: torch.tensor(value, dtype=torch.float64) for name, value in saved["model"].items()}
        model.load_state_dict(parts)

    total = torch.zeros(2, dtype=torch.float64)  # the sum of the losses, and the number of samples
    with loader:
        for batch in loader:
            if batch.num_units:  # otherwise it holds a sample that is not part of the step
                losses = (model(batch.x).squeeze(1) - batch.y) ** 2
                losses.sum().backward()
                total += torch.stack([losses.sum().detach(), torch.tensor(batch.num_units, dtype=torch.float64)])
            if not batch.is_last_of_step:
                continue
            gradients = [parameter.grad for parameter in model.parameters()]
            for value in [total, *gradients]:
                if dist.is_initialized():
                    dist.all_reduce(value)
            for gradient in gradients:
                gradient /= total[1]
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            if is_first:
                print(json.dumps({"step": batch.step, "loss": float(total[0] / total[1]), "samples": int(total[1])}))
                if options.checkpoint is not None:
                    parts = {name: value.tolist() for name, value in model.state_dict().items()}
                    options.checkpoint.write_text(json.dumps({"loader": loader.save_state_rank(), "model": parts}))
            total.zero_()
            if batch.step + 1 >= options.steps:
                break
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
