"""Makes one model input of what front ends made of several images and videos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from energon_dali.errors import ConfigError


def batch_vision(inputs: Iterable[Any], *, for_model: bool = False) -> dict[str, Any]:
    """Returns several images or videos as a processor returns them: its keys, shapes and dtypes.

    Args:
        inputs: What the decoder gave for each image, in the order of the text's placeholders; or one list of these per
            sample, which may be empty. Some families keep samples apart (Idefics3, Mllama): to them, as to their
            processors, images without such lists are one sample.
        for_model: Keeps only what the model's `forward` takes.

    Returns:
        A dict such as {"pixel_values": ..., "image_grid_thw": ...}; empty without inputs.

    Raises:
        ConfigError: Something else was given, or the inputs come from different front ends.
    """
    samples: list[Sequence[Any]] = []
    given = list(inputs)
    nested = bool(given) and all(isinstance(entry, (list, tuple)) for entry in given)
    samples = given if nested else [given]
    batch: dict[str, Any] = {}
    kinds: dict[type, list[list[Any]]] = {}
    for number, sample in enumerate(samples):
        for entry in sample:
            if not hasattr(entry, "front_end"):
                raise ConfigError(
                    f"batch_vision was given a {type(entry).__name__}. It takes what a decoder with front_end=... made "
                    "of images and videos. Give the decoder a front end, or stack plain tensors yourself."
                )
            rows = kinds.setdefault(type(entry), [[] for _ in samples])
            rows[number].append(entry)
    for rows in kinds.values():
        entries = [entry for row in rows for entry in row]
        front_end = entries[0].front_end
        for entry in entries:
            if entry.front_end is not front_end and not front_end.batches_with(entry.front_end):
                raise ConfigError(
                    f"batch_vision was given inputs of different front ends: {front_end!r} and {entry.front_end!r}. A "
                    "model takes those of one. Use the same front end for all datasets of a blend."
                )
        made: Mapping[str, Any] = front_end.collate(rows)
        chosen = {key: made[key] for key in front_end.model_keys if key in made} if for_model else dict(made)
        _merge(batch, chosen, samples)
    return batch


def _merge(batch: dict[str, Any], made: dict[str, Any], samples: Sequence[Sequence[Any]]) -> None:
    """Adds what one kind of inputs became; values that images and videos share are put in the order of the text."""
    shared = batch.keys() & made.keys()
    if "pixel_values" in shared:
        import torch

        made["pixel_values"] = torch.cat([entry.values for sample in samples for entry in sample])
    batch.update(made)
