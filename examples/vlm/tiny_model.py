"""Writes the folder of a tiny vision-language model with random weights, as if it had been downloaded.

    python examples/vlm/tiny_model.py qwen2_vl models/qwen2_vl

The folder has the files that `from_pretrained` reads: config, weights, tokenizer, and the configuration of the image
processor. The recipes in this folder train it on a laptop; they take the folder of a published model in its place.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

PADDING, END = "<|padding|>", "<|end|>"
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
}
Sizes = tuple[PretrainedConfig, dict[str, Any], dict[str, Any]]


def make_tokenizer(special: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of bytes, which needs no training.

    Args:
        special: Tokens that are never cut, besides padding and end.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PADDING, eos_token=END, extra_special_tokens=list(special)
    )


def vocabulary(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Returns what the configuration of a language model says about its tokenizer."""
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return {"vocab_size": len(tokenizer), **ids}


def qwen2_vl(tokenizer: PreTrainedTokenizerFast) -> Sizes:
    """Returns the configurations of model, image processor and processor for images at their own size."""
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    starts = {name: tokenizer.convert_tokens_to_ids(f"<|vision_{name}|>") for name in ("start", "end")}
    config = AutoConfig.for_model(
        "qwen2_vl",
        text_config={
            **TEXT,
            **vocabulary(tokenizer),
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
        },
        vision_config={"depth": 2, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "hidden_size": TEXT["hidden_size"]},
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=starts["start"],
        vision_end_token_id=starts["end"],
    )
    images = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 4 * 28 * 28, "max_pixels": 24 * 28 * 28}
    return config, images, {"processor_class": "Qwen2VLProcessor"}


def internvl(tokenizer: PreTrainedTokenizerFast) -> Sizes:
    """Returns the configurations for tiles of 56 pixels with 4 tokens each, and a thumbnail."""
    config = AutoConfig.for_model(
        "internvl",
        text_config={"model_type": "qwen2", **TEXT, **vocabulary(tokenizer)},
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": [56, 56],
            "patch_size": [14, 14],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    images = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": 56, "width": 56},
        "crop_to_patches": True,
        "max_patches": 4,
    }
    return config, images, {"processor_class": "InternVLProcessor", "image_seq_length": 4}


def llava_onevision(tokenizer: PreTrainedTokenizerFast) -> Sizes:
    """Returns the configurations for up to 4 tiles of 56 pixels with 16 tokens each, and the whole image."""
    grids = [[56, 56], [56, 112], [112, 56], [112, 112]]
    config = AutoConfig.for_model(
        "llava_onevision",
        text_config={"model_type": "qwen2", **TEXT, **vocabulary(tokenizer)},
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 56,
            "patch_size": 14,
            "vision_use_head": False,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=grids,
        vision_aspect_ratio="anyres_max_9",
    )
    images = {
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "size": {"height": 56, "width": 56},
        "image_grid_pinpoints": grids,
    }
    outer = {
        "processor_class": "LlavaOnevisionProcessor",
        "num_image_tokens": 16,
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": "anyres_max_9",
        "image_token": "<image>",
    }
    return config, images, outer


FAMILIES: dict[str, tuple[Callable[[PreTrainedTokenizerFast], Sizes], tuple[str, ...]]] = {
    "qwen2_vl": (qwen2_vl, ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")),
    "internvl": (internvl, ("<img>", "</img>", "<IMG_CONTEXT>")),
    "llava_onevision": (llava_onevision, ("<image>", "<video>")),
}
"""How to configure each family, and its special tokens."""


def write_tiny_model(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Writes the folder of a tiny model and returns it.

    Args:
        family: One of `FAMILIES`.
        folder: Made if it does not exist.
        seed: Of the weights.
    """
    configure, special = FAMILIES[family]
    tokenizer = make_tokenizer(special)
    config, images, outer = configure(tokenizer)
    torch.manual_seed(seed)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(images, indent=2))
    (folder / "processor_config.json").write_text(json.dumps(outer, indent=2))
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    print(write_tiny_model(options.family, options.folder))


if __name__ == "__main__":
    main()
