"""Trains a small model with FSDP2 and tensor parallelism: ranks that share a batch read and decode it once.

    python examples/shared_ranks.py data/captions
    torchrun --nproc-per-node 4 examples/shared_ranks.py data/captions --tensor-parallel 2

Tensor-parallel ranks follow the first of them; data-parallel ranks read different samples.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import energon_dali as ed


class Brightness(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Predicts the brightness of an image from the mean of each channel."""

    decoder = ed.SampleDecoder()

    @ed.stateless
    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        channels = sample.image.float().mean(dim=(1, 2))
        return {"x": channels, "y": (channels * torch.tensor([0.299, 0.587, 0.114])).sum()}

    def batch(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        return {name: torch.stack([one[name] for one in samples]) for name in ("x", "y")}


def main() -> None:
    """Trains for some steps. Each rank prints the class of its loader, and rank 0 the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a prepared dataset of images")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    else:
        store = dist.FileStore(tempfile.NamedTemporaryFile().name, 1)  # noqa: SIM115 - only its name is used
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    sizes = dist.get_world_size() // options.tensor_parallel, options.tensor_parallel
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))

    config = ed.WorkerConfig.from_mesh(mesh, data="dp", shared="tp", num_workers=1)
    dataset = ed.get_train_dataset(options.data, worker_config=config, batch_size=4, task_encoder=Brightness())
    loader = ed.get_savable_loader(dataset)
    print(f"rank {dist.get_rank()}: {type(loader).__name__}", flush=True)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with loader:
        for step, batch in zip(range(options.steps), loader, strict=False):
            loss = (model(batch["x"] / 255).squeeze(1) - batch["y"] / 255).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
