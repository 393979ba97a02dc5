"""Samples, batches, and where their data was read."""

from __future__ import annotations

from energon_dali.samples.base import Batch, CrudeSample, Sample, SourceInfo, edataclass
from energon_dali.samples.clips import Clips
from energon_dali.samples.kinds import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)

__all__ = [
    "Batch",
    "CaptioningSample",
    "Clips",
    "CrudeSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "MultiChoiceVQASample",
    "OCRSample",
    "Sample",
    "SimilarityInterleavedSample",
    "SourceInfo",
    "TextSample",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "edataclass",
]
