"""Makes one model input of what audio front ends made of several recordings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from energon_dali.decode.audio_front_ends.audio_front_end import AudioInput
from energon_dali.decode.audio_front_ends.audio_handle import AudioHandle
from energon_dali.errors import ConfigError


def batch_audio(inputs: Iterable[Any], *, for_model: bool = False) -> dict[str, Any]:
    """Returns several recordings as a processor returns them: its keys, shapes, dtypes and masks.

    Args:
        inputs: What the decoder gave for each recording, in the order of the text's placeholders; or one list of these
            per sample, which may be empty.
        for_model: Keeps only what the model's `forward` takes.

    Returns:
        A dict such as {"input_features": ..., "feature_attention_mask": ...}; empty without inputs.

    Raises:
        ConfigError: Something else was given, or the inputs come from different front ends.
    """
    if inputs is None or isinstance(inputs, AudioInput):
        raise ConfigError(
            f"batch_audio was given one {type(inputs).__name__}. It takes a list: of what the decoder gave for each "
            "recording, or of one such list per sample."
        )
    given = list(inputs)
    nested = bool(given) and all(isinstance(entry, (list, tuple)) for entry in given)
    samples: list[Sequence[Any]] = given if nested else [given]
    recordings = [entry for sample in samples for entry in sample]
    for entry in recordings:
        if not hasattr(entry, "front_end") or not hasattr(entry, "features"):
            raise ConfigError(_describe_wrong(entry))
    if not recordings:
        return {}
    front_end = recordings[0].front_end
    for entry in recordings:
        if entry.front_end is not front_end and not front_end.batches_with(entry.front_end):
            raise ConfigError(
                f"batch_audio was given inputs of different front ends: {front_end!r} and {entry.front_end!r}. A "
                "model takes those of one. Use the same front end for all datasets of a blend."
            )
    made = front_end.collate(samples)
    return {key: made[key] for key in front_end.model_keys if key in made} if for_model else made


def _describe_wrong(entry: object) -> str:
    name = type(entry).__name__
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    said = (
        f"batch_audio was given {article} {name}. It takes what a decoder with audio_front_end=... made of recordings. "
    )
    if entry is None:
        return said + "A video without audio gives None: leave it out."
    if isinstance(entry, (list, tuple)):
        return said + "Give either recordings, or a list of them for each sample, not both in one call."
    if isinstance(entry, AudioHandle):
        return said + "It is not decoded yet: batch recordings in a hook after decoding, or call its decode()."
    return said + "Give the decoder an audio front end, or stack plain tensors yourself."
