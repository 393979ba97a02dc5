"""Training of a diffusion model on precomputed latents, which are pickled parts of a crude dataset."""

import sys
from dataclasses import dataclass

import torch
from megatron.energon import DefaultTaskEncoder, Sample, WorkerConfig, get_savable_loader, get_train_dataset
from megatron.energon.flavors.crude import CrudeSample
from megatron.energon.task_encoder.base import stateless
from megatron.energon.task_encoder.cooking import Cooker, basic_sample_keys
from training_loop import digest, parse, run


@dataclass
class DiffusionSample(Sample):
    latents: torch.Tensor
    prompt: str
    ratio: float


@stateless
def cook(sample: CrudeSample) -> DiffusionSample:
    content = sample["pickle"]
    assert content["prompt"] == sample["txt"]
    latents = torch.from_numpy(content["latents"]).to(torch.bfloat16)
    return DiffusionSample(
        **basic_sample_keys(sample),
        latents=latents,
        prompt=content["prompt"],
        ratio=latents.shape[-1] / latents.shape[-2],
    )


class LatentEncoder(DefaultTaskEncoder[DiffusionSample, DiffusionSample, DiffusionSample, DiffusionSample]):
    cookers = [Cooker(cook, has_subflavors={"kind": "latents"})]


def describe(batch):
    latents = batch.latents.float()
    rows = [[key, digest(one), prompt] for key, one, prompt in zip(batch.__key__, latents, batch.prompt)]
    return rows, {"latents": batch.latents, "ratio": torch.as_tensor(batch.ratio)}


def main(argv):
    args = parse(argv)
    dataset = get_train_dataset(
        f"{args.data}/latents",
        batch_size=4,
        task_encoder=LatentEncoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=args.num_workers),
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        repeat=False,
    )
    run(get_savable_loader(dataset), args, describe)


if __name__ == "__main__":
    main(sys.argv[1:])
