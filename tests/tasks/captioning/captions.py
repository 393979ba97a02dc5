"""Small datasets, encoders and models for the tests of captioning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from energon_dali import DaliDecoder, SampleDecoder, WorkerConfig, get_train_dataset
from energon_dali.datasets.base import SavableDataset
from energon_dali.tasks.captioning.backbone import CaptioningGPT
from energon_dali.tasks.captioning.data_module import blend_of
from energon_dali.tasks.captioning.rows import EncodedCaption
from energon_dali.tasks.captioning.task import CaptioningTransformer
from energon_dali.tasks.captioning.task_encoder import PackedCaptioningTaskEncoder, image_options
from energon_dali.tasks.tokenizers import ByteTokenizer
from energon_dali.tasks.transformers_gpt2 import TransformersGPT2
from tests.loader.dataset_folder import captioning_sample, prepare, write_shards

TOKENIZER = ByteTokenizer()
SIZES = {"patch_size": 12, "shorter_px": 24, "longest_px": 48, "max_caption_tokens": 24}
ROW_LENGTH = 90
NUMBERS = {
    "patch_dim": 3 * 12 * 12,
    "patch_size": 12,
    "max_patches_along": 4,
    "num_positions": 26,
    "begin_token": TOKENIZER.bos_token_id,
    "end_token": TOKENIZER.eos_token_id,
}
BACKBONES = {"gpt": CaptioningGPT, "transformers": TransformersGPT2}


def two_datasets(folder: Path) -> list[str]:
    """Writes and prepares two small datasets; the second one is crude."""
    made = []
    for name, numbers in (("first", range(40)), ("second", range(100, 120))):
        samples = {f"{name}{number:03d}": captioning_sample(number) for number in numbers}
        made.append(prepare(write_shards(folder / name, samples, 2)))
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    (made[1] / ".nv-meta" / "dataset.yaml").write_text(json.dumps(crude))
    return [str(path) for path in made]


def encoder(kind: str = "pil") -> PackedCaptioningTaskEncoder:
    options = image_options(SIZES["shorter_px"])
    decoder = SampleDecoder(**options) if kind == "pil" else DaliDecoder(image_decode_device="cpu", **options)
    return PackedCaptioningTaskEncoder(TOKENIZER, decoder, row_length=ROW_LENGTH, **SIZES)


def packed_dataset(folders: list[str], kind: str = "pil") -> SavableDataset[Any]:
    """Returns batches of 2 packed rows from a blend, in this process."""
    return get_train_dataset(
        blend_of(folders, [3, 1], 0.1),
        task_encoder=encoder(kind),
        batch_size=2,
        packing_buffer_size=12,
        packing_first_buffer_size=6,
        shuffle_buffer_size=8,
        max_samples_per_sequence=5,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=2),
    )


def task_with(backbone: str = "gpt") -> CaptioningTransformer:
    """Returns a task with a small backbone and random weights, the same each time."""
    torch.manual_seed(0)
    model = BACKBONES[backbone](len(TOKENIZER), NUMBERS["num_positions"], embed_dim=16, num_heads=2, num_layers=2)
    task = CaptioningTransformer(model, optimizer={"_target_": "torch.optim.SGD", "lr": 0.1}, **NUMBERS)
    return task.eval()


def encoded(text: str, image: torch.Tensor, tokens: list[int] | None = None) -> EncodedCaption:
    """Returns a sample as it is right before it is laid into a row."""
    patch = SIZES["patch_size"]
    return EncodedCaption(
        __key__=text,
        __restore_key__=(),
        image=image,
        caption=text,
        tokens=np.asarray(TOKENIZER.encode(text) if tokens is None else tokens, np.int64),
        grid=(-(-image.shape[0] // patch), -(-image.shape[1] // patch)),
    )


def cropped(image: torch.Tensor, caption: str) -> torch.Tensor:
    """Returns the image of a sample of `two_datasets` without what fills its last patches.

    Args:
        image: uint8[H, W, 3], as wide as its patches.
        caption: Its number says how wide it was: 64 to 66 pixels where it was 48 high.
    """
    return image[:, : 24 * (64 + int(caption.split()[-1]) % 3) // 48]
