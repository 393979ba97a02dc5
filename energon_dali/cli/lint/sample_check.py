"""Reads and decodes every sample of a dataset as a loader would, and tells which fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from energon_dali.cli.lint.flaw import Flaw, reason_of
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.worker_border import decode_elements
from energon_dali.decode import Decoder
from energon_dali.errors import DatasetError
from energon_dali.shards import RawSample

BLOCK = 32
"""Samples that are read and decoded together."""


def check_samples(source: SourceDataset, shard: int, numbers: range) -> Iterator[Flaw]:
    """Yields the samples that cannot be read, made or decoded.

    Args:
        source: The dataset, with the decoder of its task encoder.
        shard: Number of a shard.
        numbers: Numbers of samples in it.
    """
    for start in range(numbers.start, numbers.stop, BLOCK):
        block = range(start, min(start + BLOCK, numbers.stop))
        raws: list[RawSample] = []
        samples: list[Any] = []
        for number, raw in zip(block, source.reader.read([shard] * len(block), block), strict=True):
            if isinstance(raw, DatasetError):
                yield Flaw(*source.reader.name(shard, number), reason_of(raw))
                continue
            try:
                index = source.reader.index_of(shard, number)
                (seed,) = source.load.seeds(np.zeros(1, np.int64), np.array([index], np.int64))
                samples.append(source.load(raw, seed))
                raws.append(raw)
            except Exception as error:  # code of the dataset and of codecs may raise anything
                yield Flaw(raw.shard, raw.key, reason_of(error))
        for raw, sample in zip(raws, _decoded(source.load.decoder, samples), strict=True):
            try:
                if isinstance(sample, Exception):
                    raise sample
                _decode_media(sample)
            except Exception as error:
                yield Flaw(raw.shard, raw.key, reason_of(error))


def _decoded(decoder: Decoder | None, samples: list[Any]) -> list[Any]:
    """Returns the samples with the media that a decoder of the rank decodes in blocks."""
    return samples if decoder is None else decode_elements(decoder, samples)


def _decode_media(value: Any) -> None:
    """Decodes sound and video, which otherwise stay closed until a hook asks for frames, whole and once.

    Raises:
        DecodeError: One cannot be opened, or a part of it cannot be decoded.
    """
    from energon_dali.av import AVDecoder

    if isinstance(value, AVDecoder):
        with value:  # closed at once: the decoders of a block of videos would hold their frames together
            if value.has_video_stream():
                value.video.check()
            if value.has_audio_stream():
                value.audio.check()
    elif isinstance(value, dict):
        for inner in value.values():
            _decode_media(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _decode_media(inner)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _decode_media(getattr(value, field.name))
