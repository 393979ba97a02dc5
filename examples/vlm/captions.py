"""Images with captions as a vision-language model takes them, packed or not: what the recipes in this folder share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from energon_dali import (
    CaptioningSample,
    DaliDecoder,
    FrontEnd,
    MultimodalRope,
    Sample,
    SampleDecoder,
    SequencePacker,
    TaskEncoder,
    WorkerConfig,
    batch_vision,
    edataclass,
    get_train_dataset,
    pack_sequences,
    stateless,
)

IGNORED = -100


@edataclass
class Conversation(Sample):
    """An image and the tokens around it."""

    image: Any
    """A handle before decoding; a VisionInput after it."""
    input_ids: list[int]
    """Placeholders of the image, the question, the caption, the end."""
    labels: list[int]
    """The tokens of caption and end; -100 for the others."""


class CaptionEncoder(TaskEncoder[CaptioningSample, Conversation, Any, dict[str, Any]]):
    """Tokenises, counts and packs before decoding; makes the arguments of the model's forward.

    Args:
        model: Folder of the model: its tokenizer and the configuration of its image processor are read.
        decoder: "pil" (SampleDecoder), or "dali" (DaliDecoder).
        row_length: Tokens of a pack.
    """

    def __init__(self, model: Path, *, decoder: str = "pil", row_length: int = 512) -> None:
        self.front_end = FrontEnd.from_processor(model)
        self.decoder = (
            SampleDecoder(front_end=self.front_end) if decoder == "pil" else DaliDecoder(front_end=self.front_end)
        )
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.packer = SequencePacker(row_length)
        self.rope = MultimodalRope.from_config(model) if self.front_end.family == "qwen2_vl" else None

    @stateless
    def preencode_sample(self, sample: CaptioningSample) -> Conversation:
        """Returns the tokens of a sample. Its image is a handle, whose layout follows from the header."""
        question = self.front_end.expand_text(f"{self.front_end.image_token}What is this? ", [sample.image.layout])
        prompt = self.tokenizer.encode(question, add_special_tokens=False)
        answer = self.tokenizer.encode(sample.caption + self.tokenizer.eos_token, add_special_tokens=False)
        return Conversation.derive_from(
            sample, image=sample.image, input_ids=prompt + answer, labels=[IGNORED] * len(prompt) + answer
        )

    @stateless
    def postencode_sample(self, sample: Conversation) -> Conversation:
        """Returns the sample; its image is decoded here. Only what was chosen for a pack comes here."""
        return sample

    def select_samples_to_pack(self, samples: list[Conversation]) -> Any:
        """Returns which samples share a row, by text and vision tokens (`SequencePacker` counts both)."""
        return self.packer(samples)

    @stateless
    def pack_selected_samples(self, samples: list[Conversation]) -> dict[str, Any]:
        """Returns one row of several samples, with the boundaries that attention needs."""
        pack = pack_sequences(samples, position_ids=self.positions if self.rope else None)
        return {**pack.for_model(), **batch_vision([[sample.image] for sample in samples], for_model=True)}

    def positions(self, sample: Conversation) -> Any:
        """Returns Qwen-VL's positions of a sample in time, height and width: int64[3, tokens]."""
        return self.rope.positions(sample.input_ids, image_grid_thw=[sample.image.layout.grid])[0]

    @stateless
    def batch(self, samples: list[Any]) -> dict[str, Any]:
        """Returns a pack as it is, or samples in rows that are padded to the longest."""
        if isinstance(samples[0], dict):
            if len(samples) > 1:
                raise ValueError("A batch is one pack: choose row_length, not batch_size.")
            return samples[0]
        padding = {"input_ids": self.tokenizer.pad_token_id, "labels": IGNORED, "attention_mask": 0}
        rows = [
            {"input_ids": one.input_ids, "labels": one.labels, "attention_mask": [1] * len(one.labels)}
            for one in samples
        ]
        longest = max(len(row["labels"]) for row in rows)
        batch: dict[str, Any] = {
            name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])
            for name, value in padding.items()
        }
        if self.rope:  # from these the model computes the multimodal positions
            batch["mm_token_type_ids"] = self.rope.token_types(batch["input_ids"])
        return {**batch, **batch_vision([[sample.image] for sample in samples], for_model=True)}


def read_options(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options that all recipes have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a model, such as tiny_model.py writes")
    parser.add_argument("--data", default="demo/captions", help="a prepared dataset of images with captions")
    parser.add_argument("--out", type=Path, default=Path("runs/vlm"), help="folder of checkpoints")
    parser.add_argument("--packed", action="store_true", help="pack samples into rows instead of padding them")
    parser.add_argument("--row-length", type=int, default=512, help="tokens of a pack")
    parser.add_argument("--batch-size", type=int, default=8, help="samples of a batch that is not packed")
    parser.add_argument("--decoder", choices=("pil", "dali"), default="pil")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of each rank")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    return parser.parse_args(arguments)


def make_dataset(options: argparse.Namespace, config: WorkerConfig | None = None) -> Any:
    """Returns the training dataset that the options ask for.

    Args:
        options: From `read_options`.
        config: The rank's; by default that of torch.distributed. Four streams: 1, 2 or 4 ranks x workers.
    """
    return get_train_dataset(
        options.data,
        worker_config=config or WorkerConfig.default_worker_config(options.workers, num_streams=4),
        batch_size=1 if options.packed else options.batch_size,
        packing_buffer_size=64 if options.packed else None,
        shuffle_buffer_size=100,
        task_encoder=CaptionEncoder(options.model, decoder=options.decoder, row_length=options.row_length),
    )
