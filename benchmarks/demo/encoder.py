"""The task encoders of the demo: images of one size, or clips of videos, with captions."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import torch

from energon_dali import (
    CaptioningSample,
    Cooker,
    DaliDecoder,
    Decoder,
    DefaultTaskEncoder,
    HorizontalFlip,
    MediaHandle,
    RandomResizedCrop,
    SampleDecoder,
    SkipSample,
    basic_sample_keys,
    batch_stack,
    stateless,
)
from energon_dali.decode.clips import VideoClips

PICTURE_PIXELS = 224
OPERATIONS = (RandomResizedCrop(PICTURE_PIXELS, scale=(0.4, 1.0)), HorizontalFlip())
CLIPS = VideoClips(num_clips=2, frames_per_clip=6, clip_duration_seconds=1.0, size=(224, 126))
CAPTION_PARTS = ("txt", "caption", "text", "json")

DECODERS = {"DaliDecoder on gpu": "gpu", "DaliDecoder on cpu": "cpu", "SampleDecoder": ""}
"""Every decoder, and the device of DALI."""


def decoders_of_this_machine() -> list[str]:
    """Returns the names of the decoders that can run here, the GPU first."""
    has_dali = importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None
    return [
        name
        for name, device in DECODERS.items()
        if not device or (has_dali and (device != "gpu" or torch.cuda.is_available()))
    ]


def make_decoder(name: str) -> Decoder:
    """Returns a decoder of DECODERS."""
    device = DECODERS[name]
    if not device:
        return SampleDecoder(image_decode="torchrgb8", operations=OPERATIONS, av_decode=CLIPS)
    where: Literal["gpu", "cpu"] = "gpu" if device == "gpu" else "cpu"
    return DaliDecoder(
        image_decode="torchrgb8",
        operations=OPERATIONS,
        image_decode_device=where,
        av_decode=CLIPS,
        video_decode_device="auto" if where == "gpu" else "cpu",
    )


@stateless
def cook(sample: dict[str, Any]) -> CaptioningSample:
    """Makes a captioning sample of any sample with an image.

    Raises:
        SkipSample: It has none.
    """
    for value in sample.values():
        if isinstance(value, MediaHandle) or (isinstance(value, torch.Tensor) and value.ndim == 3):
            caption = next((str(sample[part]) for part in CAPTION_PARTS if part in sample), "")
            return CaptioningSample(**basic_sample_keys(sample), image=value, caption=caption)  # type: ignore[arg-type]
    raise SkipSample


class DemoEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Batches as dictionaries: {"image": uint8[N, 3, 224, 224], "caption": list of N}."""

    cookers = (Cooker(cook),)

    def __init__(self, decoder_name: str) -> None:
        super().__init__()
        self.decoder = make_decoder(decoder_name)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample

    def batch(self, samples: list[Any]) -> Any:
        captions = [str(getattr(sample, "caption", "") or "") for sample in samples]
        keys = [sample.__key__ for sample in samples]
        return {"__key__": keys, "image": batch_stack([sample.image for sample in samples]), "caption": captions}

    def encode_batch(self, batch: Any) -> Any:
        return batch


class VideoDemoEncoder(DemoEncoder):
    """Batches as dictionaries: {"clips": uint8[N, 2, 6, 3, 126, 224], "seconds": float64[N, 2, 6], "caption"}."""

    def batch(self, samples: list[Any]) -> Any:
        clips = [sample.video for sample in samples]
        return {
            "__key__": [sample.__key__ for sample in samples],
            "clips": batch_stack([video.frames for video in clips]),
            "seconds": batch_stack([video.timestamps for video in clips]),
            "caption": [sample.context for sample in samples],
        }
