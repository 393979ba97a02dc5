"""Writes the folder of a tiny multimodal model with random weights, as if it had been downloaded.

    python examples/vlm/tiny_model.py qwen2_vl models/qwen2_vl

The folder has the files that `from_pretrained` reads: config, weights, tokenizer with a chat template, and the
configurations of the processors of images, videos and audio. The recipes in this folder train it on a laptop. They
take the folder of a published model just as well.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForMultimodalLM, PretrainedConfig, PreTrainedTokenizerFast

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
MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 64,
    "out_hidden_size": TEXT["hidden_size"],
    "fullatt_block_indexes": [1],
}
HEARING = {"num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32}
PIXELS = {"min_pixels": 4 * 28 * 28, "max_pixels": 24 * 28 * 28}
VIDEOS = {"video_processor_type": "Qwen2VLVideoProcessor", "do_sample_frames": True, "fps": 2.0, **PIXELS}
SECONDS = 4
AUDIO = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "chunk_length": SECONDS}
IMAGES, OUTER, VIDEO = "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"
Sizes = tuple[PretrainedConfig, dict[str, dict[str, Any]]]
"""Configuration of the model, and those of its processors by the name of their file."""


def make_tokenizer(special: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of bytes, which needs no training.

    Args:
        special: Tokens that are never split, apart from padding and end.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PADDING, eos_token=END, extra_special_tokens=list(special)
    )


def vocabulary(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Returns the entries that a language model's configuration has about its tokenizer."""
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return {"vocab_size": len(tokenizer), **ids}


def qwen2_vl(tokenizer: PreTrainedTokenizerFast) -> Sizes:
    """Returns the configurations for images at their own size."""
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    starts = {name: tokenizer.convert_tokens_to_ids(f"<|vision_{name}|>") for name in ("start", "end")}
    config = AutoConfig.for_model(
        "qwen2_vl",
        text_config={
            **TEXT,
            **vocabulary(tokenizer),
            "rope_parameters": MROPE,
        },
        vision_config={"depth": 2, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "hidden_size": TEXT["hidden_size"]},
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=starts["start"],
        vision_end_token_id=starts["end"],
    )
    images = {"image_processor_type": "Qwen2VLImageProcessor", **PIXELS}
    return config, {IMAGES: images, OUTER: {"processor_class": "Qwen2VLProcessor"}}


def qwen2_5_vl(tokenizer: PreTrainedTokenizerFast) -> Sizes:
    """Returns the configurations for videos of two frames per second, whose positions count seconds."""
    config = AutoConfig.for_model(
        "qwen2_5_vl",
        text_config={**TEXT, **vocabulary(tokenizer), "rope_parameters": MROPE},
        vision_config={**VISION, "tokens_per_second": 2},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    images = {"image_processor_type": "Qwen2VLImageProcessor", **PIXELS}
    return config, {IMAGES: images, VIDEO: VIDEOS, OUTER: {"processor_class": "Qwen2_5_VLProcessor"}}


def qwen2_audio(tokenizer: PreTrainedTokenizerFast) -> Sizes:
    """Returns the configurations for recordings of up to `SECONDS`, with 25 tokens per second."""
    config = AutoConfig.for_model(
        "qwen2_audio",
        text_config={"model_type": "qwen2", **TEXT, **vocabulary(tokenizer)},
        audio_config={**HEARING, "max_source_positions": 50 * SECONDS},
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    return config, {IMAGES: AUDIO, OUTER: {"processor_class": "Qwen2AudioProcessor"}}


def qwen2_5_omni(tokenizer: PreTrainedTokenizerFast) -> Sizes:
    """Returns the configurations of the part of Qwen2.5-Omni that reads images, videos and audio and writes text."""
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("IMAGE", "VIDEO", "AUDIO")}
    ends = {
        f"{kind}_{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{kind}_{token}|>")
        for kind in ("vision", "audio")
        for name, token in (("start", "bos"), ("end", "eos"))
    }
    config = AutoConfig.for_model(
        "qwen2_5_omni_thinker",
        text_config={**TEXT, **vocabulary(tokenizer), "rope_parameters": MROPE},
        vision_config=VISION,
        audio_config={**HEARING, "output_dim": TEXT["hidden_size"], "max_source_positions": 50 * SECONDS},
        image_token_index=ids["IMAGE"],
        video_token_index=ids["VIDEO"],
        audio_token_index=ids["AUDIO"],
        **ends,
    )
    tokens = {f"{name.lower()}_token": f"<|{name}|>" for name in ids}
    files = {
        IMAGES: {"image_processor_type": "Qwen2VLImageProcessor", **PIXELS, **AUDIO},
        VIDEO: VIDEOS,
        OUTER: {"processor_class": "Qwen2_5OmniProcessor", **tokens},
    }
    return config, files


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
    return config, {IMAGES: images, OUTER: {"processor_class": "InternVLProcessor", "image_seq_length": 4}}


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
    return config, {IMAGES: images, OUTER: outer}


def bounded(token: str, start: str, end: str) -> str:
    """Returns what the template of a family writes for an image, video or audio."""
    return f"<|{start}|><|{token}|><|{end}|>"


FAMILIES: dict[str, tuple[Callable[[PreTrainedTokenizerFast], Sizes], dict[str, str]]] = {
    "qwen2_vl": (qwen2_vl, {kind: bounded(f"{kind}_pad", "vision_start", "vision_end") for kind in ("image", "video")}),
    "qwen2_5_vl": (
        qwen2_5_vl,
        {kind: bounded(f"{kind}_pad", "vision_start", "vision_end") for kind in ("image", "video")},
    ),
    "internvl": (internvl, {"image": "<IMG_CONTEXT>"}),
    "llava_onevision": (llava_onevision, {"image": "<image>", "video": "<video>"}),
    "qwen2_audio": (qwen2_audio, {"audio": bounded("AUDIO", "audio_bos", "audio_eos")}),
    "qwen2_5_omni": (
        qwen2_5_omni,
        {
            "image": bounded("IMAGE", "vision_bos", "vision_eos"),
            "video": bounded("VIDEO", "vision_bos", "vision_eos"),
            "audio": bounded("AUDIO", "audio_bos", "audio_eos"),
        },
    ),
}
"""How to configure each family, and what its chat template writes for each kind of media."""
ALSO = {"internvl": ("<img>", "</img>")}
"""Special tokens of a family that its template does not write."""


def chat_template(media: dict[str, str]) -> str:
    """Returns a chat template that marks what the assistant says, with its end token.

    Args:
        media: What it writes for each kind of media.
    """
    others = "".join(f"{{% elif block.type == '{kind}' %}}{text}" for kind, text in media.items())
    return (
        "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
        + END
        + "{% endgeneration %}{% else %}{% for block in message.content %}"
        "{% if block.type == 'text' %}{{ block.text }}" + others + "{% endif %}{% endfor %}{% endif %}{% endfor %}"
    )


def write_tiny_model(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Writes the folder of a tiny model and returns it.

    Args:
        family: One of `FAMILIES`.
        folder: Made if it does not exist.
        seed: Seed of the weights.
    """
    configure, media = FAMILIES[family]
    special = [*re.findall(r"<[^<>]+>", "".join(media.values())), *ALSO.get(family, ())]
    tokenizer = make_tokenizer(list(dict.fromkeys(special)))
    tokenizer.chat_template = chat_template(media)
    config, files = configure(tokenizer)
    torch.manual_seed(seed)
    AutoModelForMultimodalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, indent=2))
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
