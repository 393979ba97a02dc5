"""Trains a tiny vision-language model on packs that were planned from measures, and dealt so that no rank waits.

    python examples/balanced_packs.py data --prepare
    torchrun --nproc-per-node 4 examples/balanced_packs.py data --checkpoint step.pt --steps 4
    torchrun --nproc-per-node 2 examples/balanced_packs.py data --checkpoint step.pt --steps 8

Every step has the same packs, and so the same loss, on 1, 2, 4 or 8 processes. The program prints the loss, and the
planned cost of each rank, relative to the mean. With --checkpoint, it continues at the step of that file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import energon_dali as ed
from energon_dali.diagnosis.planned_loads import plan_loads

MAX_LENGTH, PACKS_PER_STEP = 512, 16
IMAGE, END, VOCABULARY = 256, 257, 258  # the other tokens are bytes
PROCESSOR = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 56 * 56, "max_pixels": 168 * 168}
VISION, HIDDEN = 16, 32
PACKS = ed.PlannedPacks(MAX_LENGTH, window=200)
COST = ed.TransformerCost(HIDDEN, 1, vision_hidden_size=VISION, vision_layers=1)


@ed.edataclass
class Example(ed.Sample):
    """Text, perhaps with an image before it."""

    image: Any
    """A handle before decoding, and a VisionInput after it; None for documents."""
    input_ids: list[int]
    labels: list[int]


@dataclass
class Batch:
    """A micro-batch of n packs of T tokens; the loader adds step, micro_batch, is_last_of_step and num_units."""

    input_ids: torch.Tensor
    """int64[n, T]."""
    labels: torch.Tensor
    """int64[n, T]: -100 where nothing is predicted."""
    segments: torch.Tensor
    """int64[n, T]: number of the sample in its pack."""
    patches: torch.Tensor
    """float64[m, 1176], of all images."""
    images: torch.Tensor
    """int64[m]: number of the image."""


@ed.stateless
def cook_document(sample: ed.CrudeSample) -> ed.TextSample:
    """Makes a sample from a line of documents.jsonl."""
    return ed.TextSample(**ed.basic_sample_keys(sample), text=sample["json"]["text"])


class Encoder(ed.TaskEncoder[Any, Example, dict[str, Any], Batch]):
    """Counts tokens before decoding, and puts the samples of a pack one after the other."""

    cookers = (ed.Cooker(cook_document),)
    front_end = ed.FrontEnd.from_processor(PROCESSOR, image_token_id=IMAGE)
    decoder = ed.SampleDecoder(front_end=front_end)

    @ed.stateless
    def preencode_sample(self, sample: Any) -> Example:
        """Returns the tokens of a sample. Its image is a handle, whose number of tokens follows from the header."""
        image = getattr(sample, "image", None)
        prompt = [] if image is None else [IMAGE] * image.layout.num_tokens
        answer = [*(sample.text if image is None else sample.caption).encode(), END]
        labels = [-100] * len(prompt) + answer
        return Example.derive_from(sample, image=image, input_ids=prompt + answer, labels=labels)

    @ed.stateless
    def postencode_sample(self, sample: Example) -> Example:
        """Returns the sample, whose image has been decoded."""
        return sample

    @ed.stateless
    def pack_selected_samples(self, samples: list[Example]) -> dict[str, Any]:
        """Returns one row: the samples that the plan puts into one pack."""
        pack = ed.pack_sequences(samples, row_length=MAX_LENGTH)
        lengths = pack.cu_seqlens.diff()
        segments = torch.arange(len(lengths)).repeat_interleave(lengths)[None]
        return {**pack.fields, "segments": segments, "images": [one.image for one in samples if one.image is not None]}

    @ed.stateless
    def batch(self, packs: list[dict[str, Any]]) -> Batch:
        """Returns a micro-batch."""
        rows = {name: torch.cat([pack[name] for pack in packs]) for name in ("input_ids", "labels", "segments")}
        values = [torch.as_tensor(image.values).double() for pack in packs for image in pack["images"]]
        numbers = [torch.full((len(one),), number) for number, one in enumerate(values)]
        empty = torch.zeros(0, 1176, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        return Batch(**rows, patches=torch.cat([*values, empty[0]]), images=torch.cat([*numbers, empty[1]]))


class Layer(nn.Module):
    """A layer of a transformer, whose tokens attend only to their own segment.

    Args:
        size: Width.
        causal: Whether they attend only to the tokens before them.
    """

    def __init__(self, size: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.to_attention, self.from_attention = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
        )
        self.norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """Returns float64[n, T, size] for tokens float64[n, T, size] and segments int64[n, T]."""
        mask = segments[:, :, None] == segments[:, None]
        queries, keys, values = self.to_attention(self.norm(x)).chunk(3, dim=-1)
        mask = mask.tril() if self.causal else mask
        x = x + self.from_attention(functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask))
        return x + self.feed_forward(x)


class Model(nn.Module):
    """A vision encoder and a language model, of one layer each."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.vision = nn.Linear(1176, VISION), Layer(VISION, causal=False)
        self.connect = nn.Linear(4 * VISION, HIDDEN)
        self.tokens, self.language = nn.Embedding(VOCABULARY, HIDDEN), Layer(HIDDEN, causal=True)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, int]:
        """Returns (the sum of the losses, the number of tokens that were predicted)."""
        x = self.tokens(batch.input_ids)
        seen = self.vision(self.patches(batch.patches)[None], batch.images[None])[0]
        features = self.connect(seen.reshape(-1, 4 * VISION))  # four patches are one token
        x = x.masked_scatter((batch.input_ids == IMAGE)[..., None], features)
        logits = self.head(self.language(x, batch.segments))[:, :-1]
        labels = batch.labels[:, 1:]
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), int(
            (labels >= 0).sum()
        )


def prepare(folder: Path) -> None:
    """Writes images with captions, documents of very different lengths and a mixture of both, and measures them."""
    from energon_dali.cli.main import main as energon_dali
    from energon_dali.shards import prepare_jsonl

    energon_dali(["demo-data", str(folder), "--samples", "96"], standalone_mode=False)
    draw = random.Random(0)
    lengths = [int(min(20 * draw.paretovariate(0.7), 500)) for _ in range(400)]
    lines = [json.dumps({"text": "".join(draw.choices("abc de", k=length))}) for length in lengths]
    (folder / "documents.jsonl").write_text("\n".join(lines))
    prepare_jsonl(folder / "documents.jsonl")
    blend = [{"weight": 1, "path": "captions"}, {"weight": 1, "path": "documents.jsonl"}]
    mixture = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
    (folder / "mixture.yaml").write_text(json.dumps(mixture))
    for result in ed.measure_datasets(folder / "mixture.yaml", Encoder()):
        print(f"{result.path}: {result.num_measured} samples measured")


def train(options: argparse.Namespace) -> None:
    """Trains for some steps, and prints the loss and the planned costs of each on rank 0."""
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    dataset = ed.get_train_dataset(
        options.data / "mixture.yaml",
        worker_config=ed.WorkerConfig.default_worker_config(num_workers=1),
        global_batch_size=PACKS_PER_STEP,
        batch_size=2,  # packs of a micro-batch
        packs=PACKS,
        balance=ed.Balance(COST, per="step"),
        blend_by="tokens",  # half of the tokens belong to captions, with their images
        shuffle_buffer_size=1000,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
    )
    loader = ed.get_savable_loader(dataset)
    torch.manual_seed(0)
    model = Model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if options.checkpoint is not None and options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        loader.restore_state_rank(saved["loader"])
        model.load_state_dict(saved["model"])

    total = torch.zeros(2, dtype=torch.float64)  # the sum of the losses, and the number of predicted tokens
    with loader:
        for batch in loader:
            if batch.num_units:  # otherwise it holds a pack that is not part of the step
                loss, tokens = model(batch)
                loss.backward()
                total += torch.tensor([loss.detach(), tokens], dtype=torch.float64)
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
            if not dist.is_initialized() or dist.get_rank() == 0:
                (planned,) = plan_loads(dataset, range(batch.step, batch.step + 1))
                costs = planned.sums.sum((1, 2))  # of each rank
                line = {"step": batch.step, "loss": float(total[0] / total[1]), "tokens": int(total[1])}
                print(json.dumps({**line, "costs": (costs / costs.mean()).round(2).tolist()}))
                if options.checkpoint is not None:
                    torch.save({"loader": loader.save_state_rank(), "model": model.state_dict()}, options.checkpoint)
            total.zero_()
            if batch.step + 1 >= options.steps:
                break
    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    """Prepares the data, or trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the data, which --prepare makes")
    parser.add_argument("--prepare", action="store_true", help="make and measure the data, and end")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--checkpoint", type=Path, help="file of the last step")
    options = parser.parse_args()
    if options.prepare:
        prepare(options.data)
    else:
        train(options)


if __name__ == "__main__":
    main()
