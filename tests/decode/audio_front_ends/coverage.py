"""Which model types of transformers with audio have audio front ends: a column of the page docs/model-types.md.

A type is covered if a front end stands for its feature extractor, and cases of the tests compare that extractor, or the
processor around it, with transformers. `python -m tests.decode.front_ends.coverage` writes the page.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from energon_dali.decode.audio_front_ends.registry import AUDIO_FAMILIES
from tests.decode.audio_front_ends import speech_cases
from tests.decode.audio_front_ends.family_cases import FAMILIES

_MISSING = "no front end yet"
_TORCHAUDIO = "computes features with torchaudio, which the tests do not install"
REASONS = {
    "FunAsrNanoFeatureExtractor": _TORCHAUDIO,
    "GraniteSpeech5FeatureExtractor": _TORCHAUDIO,
    "MusicgenMelodyFeatureExtractor": "computes features with torchaudio, of what Demucs separated",
    "NeuCodecFeatureExtractor": _TORCHAUDIO,
    "PocketTTSFeatureExtractor": "cuts off silence at the end, so that lengths depend on the audio itself",
    "Pop2PianoFeatureExtractor": "finds beats with essentia, so that lengths depend on the audio itself",
    "Xcodec2FeatureExtractor": _TORCHAUDIO,
}
"""Why an extractor has no front end, where it is not that nobody has written one yet."""
UNMAPPED = {
    "diffusion_gemma": "Gemma4AudioFeatureExtractor",
    "higgs_audio_v2": "DacFeatureExtractor",
    "musicflamingo": "WhisperFeatureExtractor",
    "nemotron_h_omni": "ParakeetFeatureExtractor",
}
"""The extractors in processors of types that are not in transformers' mapping of feature extractors."""
COMPARED_TEXTS = frozenset(
    {"Gemma3nProcessor", "Gemma4Processor", "Gemma4UnifiedProcessor"}
    | {"Dots3NoteProcessor", "GraniteSpeechProcessor", "Phi4MultimodalProcessor"}
)
"""Processors whose texts other tests compare, or the extractors' counts of tokens from which they make texts."""


def audio_outcomes() -> dict[str, str]:
    """Returns the outcome by model type, for each type that has a feature extractor or a processor with one."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    extractors: dict[str, str] = {**FEATURE_EXTRACTOR_MAPPING_NAMES, **UNMAPPED}
    covered = {kind for family in AUDIO_FAMILIES for kind in family.processors}
    compared, around = _compared()
    owners, texts = _owners(), _kinds_with_text()
    outcomes = {}
    for name, kind in extractors.items():
        processor = PROCESSOR_MAPPING_NAMES.get(name, "")
        if kind not in covered:
            outcomes[name] = f"{kind}: {REASONS.get(kind, _MISSING)}"
        elif kind not in compared:
            outcomes[name] = f"{kind}: has a front end that no test compares"
        elif processor in around:
            outcomes[name] = "equal"
        elif processor in texts:
            outcomes[name] = f"{kind}: features are covered, {processor}'s text is not"
        elif owners[kind] == model_type_to_module_name(name):
            outcomes[name] = "equal"
        else:
            first = next((other for other in extractors if model_type_to_module_name(other) == owners[kind]), "")
            outcomes[name] = f"equal through {first or owners[kind]}"
    for name, processor in PROCESSOR_MAPPING_NAMES.items():
        if name not in outcomes and processor in around:
            outcomes[name] = "equal"
    return outcomes


def _compared() -> tuple[frozenset[str], frozenset[str]]:
    """Returns the extractors, and the processors around them, that tests compare."""
    extractors, around = set(FAMILIES), set(COMPARED_TEXTS)
    for case in speech_cases.CASES:
        made: Any = case.make(None)
        inner = getattr(made, "feature_extractor", None) or getattr(made, "audio_processor", None)
        extractors.add(type(inner or made).__name__)
        if inner is not None:
            around.add(type(made).__name__)
    return frozenset(extractors), frozenset(around)


def _models() -> Path:
    import transformers.models

    return Path(transformers.models.__path__[0])


@cache
def _owners() -> dict[str, str]:
    """Returns the folder of transformers.models that defines each feature extractor."""
    return {
        name: file.parent.name
        for file in sorted(_models().glob("*/feature_extraction_*.py"))
        for name in re.findall(r"^class (\w+FeatureExtractor)\(", file.read_text(), re.MULTILINE)
    }


@cache
def _kinds_with_text() -> frozenset[str]:
    """Returns the processors that put tokens of audio into a text."""
    found = set()
    for file in sorted(_models().glob("*/processing_*.py")):
        text = file.read_text()
        if "replace_audio_token" in text or "audio_token_id" in text:
            found.update(re.findall(r"^class (\w+Processor)\(", text, re.MULTILINE))
    return frozenset(found)
