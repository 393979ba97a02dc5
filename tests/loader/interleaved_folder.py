"""Interleaved samples of text and 0 to 3 images each, for decoders with a front end; some of the images in a store."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from energon_dali import (
    Cooker,
    DaliDecoder,
    FrontEnd,
    HorizontalFlip,
    MediaHandle,
    PackedSequences,
    RandomResizedCrop,
    SampleDecoder,
    SequencePacker,
    TaskEncoder,
    basic_sample_keys,
    batch_vision,
    edataclass,
    pack_sequences,
    stateless,
)
from energon_dali.samples.base import Sample
from energon_dali.samples.kinds import InterleavedSample
from energon_dali.shards import prepare_dataset
from tests.loader.crude_folder import CRUDE
from tests.loader.dataset_folder import picture, write_shards

COUNT = 20
DAMAGED = 7
"""The sample whose first image ends in the middle, which its header does not tell."""
IMAGE_TOKEN = 7
FRONT_END = FrontEnd.from_processor(
    {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 28 * 28, "max_pixels": 56 * 84},
    image_token_id=IMAGE_TOKEN,
)
OPERATIONS = {"plain": (), "folded": (RandomResizedCrop((60, 80)), HorizontalFlip())}


def sizes_of(number: int) -> list[tuple[int, int]]:
    """Returns (width, height) of the images in the shard for a sample."""
    return [(60 + 17 * (number % 4), 40 + 23 * (image + number % 3)) for image in range(number % 4)]


def interleaved_folder(folder: Path) -> Path:
    """Writes the dataset, and the metadataset that adds a store to it, and returns the latter."""
    store = {f"s{number}": {"jpg": picture(number, size=(90, 50 + 10 * number))} for number in range(4)}
    prepare_dataset(str(write_shards(folder / "store", store, 1)), split_ratio={"train": 1.0})
    samples: dict[str, dict[str, bytes]] = {}
    for number in range(COUNT):
        parts = {f"{index}.jpg": encoded(number, index, size) for index, size in enumerate(sizes_of(number))}
        order: list[str] = [f"text {number}", *parts, "and"]
        if number % 5 == 0:
            order.insert(1, f"store:s{number % 4}.jpg")
        samples[f"k{number:02d}"] = {**parts, "json": json.dumps(order).encode()}
    damaged = samples[f"k{DAMAGED:02d}"]
    damaged["0.jpg"] = damaged["0.jpg"][: len(damaged["0.jpg"]) // 2]
    prepare_dataset(str(write_shards(folder / "shards", samples, 2)), split_ratio={"train": 1.0})
    (folder / "shards" / ".nv-meta" / "dataset.yaml").write_text(json.dumps(CRUDE))
    entry = {"path": "shards", "aux": {"store": "store"}}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": entry}}
    (folder / "mix.yaml").write_text(json.dumps(document))
    return folder / "mix.yaml"


def encoded(number: int, index: int, size: tuple[int, int]) -> bytes:
    """Returns a JPEG; every third one is stored on its side."""
    pixels = picture(number + 7 * index, size=size)
    if (number + index) % 3:
        return pixels
    exif = Image.Exif()
    exif[274] = 6
    file = io.BytesIO()
    Image.open(io.BytesIO(pixels)).save(file, "JPEG", exif=exif, quality=90)
    return file.getvalue()


@stateless
def cook(sample: dict[str, Any], store: Any) -> InterleavedSample:
    sequence = []
    for piece in sample["json"]:
        if piece.startswith("store:"):
            piece = store.get(piece.removeprefix("store:"), sample)
        sequence.append(sample.get(piece, piece) if isinstance(piece, str) else piece)
    return InterleavedSample(**basic_sample_keys(sample), sequence=sequence)


@edataclass
class Sequence(Sample):
    sequence: list[Any]
    """Texts and images, as handles or decoded."""
    input_ids: list[int]


@edataclass
class Pack(Sample):
    row: PackedSequences
    vision: dict[str, Any]
    keys: list[str]


@dataclass
class Options:
    decoder: str = "pil"
    operations: str = "plain"


class Interleaved(TaskEncoder[Any, Any, Any, Any]):
    """Counts and packs before decoding, as a recipe does."""

    cookers = (Cooker(cook),)

    def __init__(self, decoder: str = "pil", operations: str = "plain", row_length: int = 48) -> None:
        options: dict[str, Any] = {"front_end": FRONT_END, "operations": OPERATIONS[operations]}
        self.decoder = (
            SampleDecoder(**options) if decoder == "pil" else DaliDecoder(image_decode_device="cpu", **options)
        )
        self.packer = SequencePacker(row_length, max_padding=0.3)

    @stateless
    def preencode_sample(self, sample: InterleavedSample) -> Sequence:
        assert not any(hasattr(piece, "values") for piece in sample.sequence), "an image is decoded too early"
        ids: list[int] = []
        for piece in sample.sequence:
            images = isinstance(piece, MediaHandle)
            ids += [IMAGE_TOKEN] * piece.num_tokens if images else [100 + byte for byte in piece.encode()]
        return Sequence.derive_from(sample, sequence=sample.sequence, input_ids=ids)

    @stateless
    def postencode_sample(self, sample: Sequence) -> Sequence:
        placeholders = sample.input_ids.count(IMAGE_TOKEN)
        assert placeholders == sum(piece.num_tokens for piece in sample.sequence if not isinstance(piece, str))
        return sample

    def select_samples_to_pack(self, samples: list[Sequence]) -> Any:
        return self.packer(samples)

    @stateless
    def pack_selected_samples(self, samples: list[Sequence]) -> Pack:
        return Pack.derive_from(
            samples[0],
            row=pack_sequences(samples, fields=["input_ids"], row_length=self.packer.max_length),
            vision=batch_vision(images_of(samples)),
            keys=[sample.__key__ for sample in samples],
        )

    def batch(self, samples: list[Any]) -> dict[str, Any]:
        if isinstance(samples[0], Pack):
            return {
                "keys": [pack.keys for pack in samples],
                "cu_seqlens": [pack.row.cu_seqlens for pack in samples],
                "input_ids": [pack.row.fields["input_ids"] for pack in samples],
                "vision": [pack.vision for pack in samples],
            }
        return {
            "keys": [sample.__key__ for sample in samples],
            "input_ids": [sample.input_ids for sample in samples],
            "vision": [batch_vision(images_of(samples))],
        }


def images_of(samples: list[Sequence]) -> list[Any]:
    """Returns the decoded images of some samples."""
    return [piece for sample in samples for piece in sample.sequence if not isinstance(piece, str)]


def view(value: Any) -> Any:
    """Returns a batch in a form that can be compared."""
    if isinstance(value, torch.Tensor):
        return [list(value.shape), float(value.double().sum()), float(value.double().square().sum())]
    if isinstance(value, dict):
        return {name: view(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [view(inner) for inner in value]
    return value
