"""Task encoders for the tests of the encoder view, named there as `tests.view.encoders:CLASS`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from energon_dali import (
    CaptioningSample,
    DefaultTaskEncoder,
    Normalize,
    Resize,
    Sample,
    SampleDecoder,
    SkipSample,
    edataclass,
    stateless,
)


class Words:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode()


@edataclass
class EncodedCaption(Sample):
    image: torch.Tensor
    tokens: torch.Tensor
    labels: torch.Tensor


@edataclass
class PackedCaption(Sample):
    tokens: torch.Tensor
    cu_seqlens: torch.Tensor
    position_ids: torch.Tensor
    loss_mask: torch.Tensor


class Captions(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Tokens and normalised images; skips k0001, fails for k0002, and makes two samples of k0003."""

    decoder = SampleDecoder(operations=(Resize((32, 48)), Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))))
    tokenizer = Words()

    @stateless
    def encode_sample(self, sample: CaptioningSample) -> EncodedCaption:
        print("encoders may print", sample.__key__)
        if sample.__key__ == "k0001":
            raise SkipSample
        if sample.__key__ == "k0002":
            raise ValueError("no <b>words</b> for this")
        tokens = torch.tensor(self.tokenizer.encode(sample.caption))
        labels = tokens.clone()
        labels[:3] = -100
        return EncodedCaption.derive_from(sample, image=sample.image, tokens=tokens, labels=labels)

    def select_samples_to_pack(self, samples: list[EncodedCaption]) -> list[list[EncodedCaption]]:
        return [samples[start : start + 3] for start in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[EncodedCaption]) -> PackedCaption:
        lengths = [len(sample.tokens) for sample in samples]
        return PackedCaption.derive_from(
            samples[0],
            tokens=torch.cat([sample.tokens for sample in samples]),
            cu_seqlens=torch.tensor([0, *lengths]).cumsum(0),
            position_ids=torch.cat([torch.arange(length) for length in lengths]),
            loss_mask=torch.cat([(sample.labels >= 0).float() for sample in samples]),
        )


class Hangs(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Never ends for k0001, and ends its process for k0002."""

    @stateless
    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        if sample.__key__ == "k0001":
            time.sleep(1000)
        if sample.__key__ == "k0002":
            os.kill(os.getpid(), 9)
        return sample


class Unmakable(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Needs an argument."""

    def __init__(self, name: str) -> None:
        super().__init__()


def leave() -> None:
    """Ends Python instead of making an encoder."""
    sys.exit(3)


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Changes nothing."""
