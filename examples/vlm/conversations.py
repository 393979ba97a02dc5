"""Conversations as a multimodal model takes them, packed or not. The recipes in this folder share this module.

It takes two kinds of datasets: images with captions, such as `energon-dali demo-data` writes, and crude samples with a
conversation in JSON next to its images, videos and audio, such as small_data.py writes. The model's folder says which
media the model takes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from energon_dali import (
    AudioFrontEnd,
    CaptioningSample,
    ChatEncoder,
    Cooker,
    DaliDecoder,
    FrontEnd,
    MultimodalRope,
    Sample,
    SampleDecoder,
    SequencePacker,
    TaskEncoder,
    VideoClips,
    VideoFrontEnd,
    WorkerConfig,
    basic_sample_keys,
    batch_audio,
    batch_vision,
    edataclass,
    get_train_dataset,
    pack_sequences,
    stateless,
)

IGNORED = -100
KINDS = ("image", "video", "audio")


@edataclass
class Conversation(Sample):
    """A conversation and its media, in the order in which they are in the text."""

    messages: list[dict[str, Any]]
    """Messages with a role and a content, as chat templates take them."""
    media: dict[str, list[Any]]
    """Images, videos and audio by kind: handles before decoding, and what the front ends made of them after it."""


@edataclass
class EncodedConversation(Sample):
    """The tokens of a conversation, and its media."""

    media: dict[str, list[Any]]
    """As in Conversation."""
    input_ids: list[int]
    """All tokens, with a placeholder for each feature of an image, video or audio."""
    labels: list[int]
    """The tokens of the assistant; -100 for the others."""
    position_ids: Any
    """Positions in time, height and width, [3, tokens]; None if the model has no multimodal positions."""


@stateless
def cook_conversation(sample: dict[str, Any]) -> Conversation:
    """Makes a conversation from a crude sample, with the parts that its blocks name as media, in order."""
    messages = sample["json"]["messages"]
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    media = {kind: [sample[block["part"]] for block in blocks if block["type"] == kind] for kind in KINDS}
    return Conversation(**basic_sample_keys(sample), messages=messages, media=media)


class ConversationEncoder(TaskEncoder[Any, EncodedConversation, Any, dict[str, Any]]):
    """Tokenises, counts and packs before decoding, and makes the arguments of the model's `forward`.

    Args:
        model: Folder of the model: its tokenizer and the configurations of its processors are read.
        decoder: "pil" (SampleDecoder), or "dali" (DaliDecoder).
        row_length: Tokens of a pack.
    """

    cookers = (Cooker(cook_conversation),)

    def __init__(self, model: Path, *, decoder: str = "pil", row_length: int = 512) -> None:
        image, video, audio = read_front_ends(model)
        make = SampleDecoder if decoder == "pil" else DaliDecoder
        clips = {"av_decode": VideoClips(front_end=video)} if video else {}
        self.decoder = make(front_end=image, audio_front_end=audio, **clips)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.packer = SequencePacker(row_length)
        self.several_images = {"several_images": True} if hasattr(image, "several_images") else {}
        has_rope = "mrope_section" in (model / "config.json").read_text()
        self.rope = MultimodalRope.from_config(model) if has_rope else None
        self.encoder = ChatEncoder(self.tokenizer, image=image, video=video, audio=audio, rope=self.rope)

    @stateless
    def preencode_sample(self, sample: CaptioningSample | Conversation) -> EncodedConversation:
        """Returns the tokens of a sample. Its media are handles, whose layouts follow from their headers."""
        if isinstance(sample, CaptioningSample):
            question = [{"type": "image"}, {"type": "text", "text": "What is this? "}]
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": sample.caption}]
            media: dict[str, list[Any]] = {"image": [sample.image], "video": [], "audio": []}
        else:
            messages, media = sample.messages, sample.media
        images = media["image"]
        if self.several_images and len(images) > 1:  # LLaVA-OneVision cuts an image into tiles only if it is alone
            images = [one.with_front_end(one.spec.front_end.with_fields(**self.several_images)) for one in images]
            media = {**media, "image": images}
        chat = self.encoder(messages, images=images, videos=media["video"], audio=media["audio"])
        return EncodedConversation.derive_from(
            sample, media=media, input_ids=chat.input_ids, labels=chat.labels, position_ids=chat.position_ids
        )

    @stateless
    def postencode_sample(self, sample: EncodedConversation) -> EncodedConversation:
        """Returns the sample, whose media have been decoded. Only samples that were chosen for a pack get here."""
        return sample

    def select_samples_to_pack(self, samples: list[EncodedConversation]) -> Any:
        """Chooses the samples that share a row, by the tokens of text and media (`SequencePacker` counts both)."""
        return self.packer(samples)

    @stateless
    def pack_selected_samples(self, samples: list[EncodedConversation]) -> dict[str, Any]:
        """Returns one row of several samples, with the boundaries that attention needs."""
        pack = pack_sequences(samples, position_ids=(lambda one: one.position_ids) if self.rope else None)
        return {**pack.for_model(), **self.batch_media(samples)}

    def batch_media(self, samples: Sequence[EncodedConversation]) -> dict[str, Any]:
        """Returns images, videos and audio as the model takes them."""
        seen = batch_vision([[*one.media["image"], *one.media["video"]] for one in samples], for_model=True)
        return {**seen, **batch_audio([one.media["audio"] for one in samples], for_model=True)}

    @stateless
    def batch(self, samples: list[Any]) -> dict[str, Any]:
        """Returns a pack as it is, or samples as rows padded to the longest."""
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
        media = self.batch_media(samples)
        if self.rope is not None:  # the model computes multimodal positions from these
            if self.rope.clock is None:
                batch["mm_token_type_ids"] = self.rope.token_types(batch["input_ids"])
            elif "second_per_grid_ts" in media:
                media["video_second_per_grid"] = media.pop("second_per_grid_ts")
        return {**batch, **media}


def read_front_ends(model: Path) -> tuple[FrontEnd | None, VideoFrontEnd | None, AudioFrontEnd | None]:
    """Returns the front ends of images, videos and audio of a model's folder; None for what the model does not take."""
    values = json.loads((model / "preprocessor_config.json").read_text())
    has_videos = (model / "video_preprocessor_config.json").exists()
    return (
        FrontEnd.from_processor(model) if "image_processor_type" in values else None,
        VideoFrontEnd.from_processor(model) if has_videos else None,
        AudioFrontEnd.from_processor(model) if "feature_extractor_type" in values else None,
    )


def read_options(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options that all recipes have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a model, such as tiny_model.py writes")
    parser.add_argument("--data", default="demo/captions", help="a prepared dataset, see conversations.py")
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
        config: That of the rank; by default torch.distributed's, with four streams: 1, 2 or 4 ranks x workers.
    """
    return get_train_dataset(
        options.data,
        worker_config=config or WorkerConfig.default_worker_config(options.workers, num_streams=4),
        batch_size=1 if options.packed else options.batch_size,
        packing_buffer_size=64 if options.packed else None,
        shuffle_buffer_size=100,
        task_encoder=ConversationEncoder(options.model, decoder=options.decoder, row_length=options.row_length),
    )
