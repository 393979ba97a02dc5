"""Trains a small model on all GPUs of a host with DDP or FSDP2: each rank decodes on its own GPU.

    torchrun --standalone --nproc-per-node 8 examples/eight_gpus/train.py data/captions
    torchrun --standalone --nproc-per-node 2 examples/eight_gpus/train.py data/captions --device cpu

compose.yaml and train.slurm, next to this file, start it in a container and under Slurm.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import energon_dali as ed

PIXELS = 64


def make_encoder(device: str) -> ed.DefaultTaskEncoder[Any, Any, Any, Any]:
    """Returns a task encoder of crops, whose batches are in channels_last without a copy."""

    class Brightness(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = ed.DaliDecoder(
            image_decode="torchrgb8",
            image_decode_device=device,
            image_layout="HWC",
            operations=(ed.RandomResizedCrop(PIXELS), ed.HorizontalFlip()),
        )

        @ed.stateless
        def encode_sample(self, sample: Any) -> dict[str, Any]:
            return {"image": sample.image, "key": sample.__key__}

        def batch(self, samples: list[Any]) -> dict[str, Any]:
            images = ed.batch_stack([one["image"] for one in samples])
            return {"image": images.permute(0, 3, 1, 2), "key": [one["key"] for one in samples]}

    return Brightness()


def make_model() -> nn.Sequential:
    """Returns a model that predicts one number from an image."""
    channels = (3, 32, 64, 64)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(channels):
        layers += [nn.Conv2d(inputs, outputs, 4, 4), nn.GELU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1], 1))


def main() -> None:
    """Trains for some steps. Each rank prints one line of JSON about itself, and rank 0 the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a prepared dataset of images")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: gloo in place of NCCL")
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--compile", choices=("no", "default", "reduce-overhead"), default="no")
    parser.add_argument("--decode-process", action="store_true", help="decode in a process of its own")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4, help="processes that read, per rank")
    options = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if options.device == "gpu":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)  # before anything else touches CUDA
    dist.init_process_group("nccl" if options.device == "gpu" else "gloo")

    # A tensor of DALI that is freed during the capture of a CUDA graph breaks it: docs/cuda-graphs.md.
    apart = options.decode_process or options.compile == "reduce-overhead"
    dataset = ed.get_train_dataset(
        options.data,
        worker_config=ed.WorkerConfig.default_worker_config(options.workers),
        batch_size=options.batch_size,
        shuffle_buffer_size=1000,
        task_encoder=make_encoder(options.device),
    )
    torch.manual_seed(0)
    model = make_model().to(device)
    wrapped: nn.Module = model
    if options.strategy == "fsdp":
        fully_shard(model)  # it refuses weights in channels_last; batches may have that layout
    else:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        wrapped = nn.parallel.DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [local_rank])
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-3)
    run = wrapped if options.compile == "no" else torch.compile(wrapped, mode=options.compile)

    keys: list[str] = []
    began = time.perf_counter()
    with ed.get_savable_loader(dataset, decode_process=apart) as loader:
        for step, batch in zip(range(options.steps), loader, strict=False):
            image = batch["image"].to(device, non_blocking=True)  # no copy if it was decoded there
            if not image.is_contiguous(memory_format=torch.channels_last):
                raise AssertionError(f"{image.stride() = }: the batch is not channels_last")
            pixels = image.float() / 255
            loss = (run(pixels).squeeze(1) - pixels.mean((1, 2, 3))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            keys += batch["key"]
            if dist.get_rank() == 0 and step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
        seconds = time.perf_counter() - began
        stats = loader.stats()
    seen = {
        "rank": dist.get_rank(),
        "device": str(batch["image"].device),
        "keys": len(set(keys)),
        "images_per_second": round(len(keys) / seconds, 1),
        "routes": stats.routes,
        "blocked_share": round(stats.blocked_share, 3),
    }
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, seen)
    if dist.get_rank() == 0:
        for one in everybody:
            print(json.dumps(one), flush=True)
    dist.barrier()  # else gloo may hang at its end, after all_gather_object (PyTorch 2.13)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
