"""Concatenates several batches to one: tensors with padding, lists one after the other."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError, FatalSampleError
from energon_dali.samples.batching import columns_of
from energon_dali.task_encoder.stateless import stateless

if TYPE_CHECKING:
    import torch


def concat_pad(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tensors concatenated along dimension 0, padded with zeros at the end of the other dimensions.

    Args:
        batch: n >= 1 tensors with the same number of dimensions, at least 1.

    Returns:
        A new tensor: dimension 0 is the sum of theirs, each other dimension the longest of theirs.

    Raises:
        ConfigError: There are no tensors, or their numbers of dimensions differ or are 0.
    """
    if not batch or any(tensor.ndim != batch[0].ndim or tensor.ndim == 0 for tensor in batch):
        shapes = ", ".join(dict.fromkeys(str(tuple(tensor.shape)) for tensor in batch)) or "none at all"
        raise ConfigError(
            f"concat_pad was given tensors of the shapes {shapes}; it needs tensors with the same number of "
            "dimensions, the first of which is the batch. Give batches, not single samples: batch_size=1 makes them."
        )
    import torch

    first = batch[0]
    if all(tensor.shape[1:] == first.shape[1:] for tensor in batch):
        return torch.cat(list(batch))
    longest = [max(lengths) for lengths in zip(*(tensor.shape[1:] for tensor in batch), strict=True)]
    dtype = functools.reduce(torch.promote_types, {tensor.dtype for tensor in batch})
    whole = torch.zeros((sum(len(tensor) for tensor in batch), *longest), dtype=dtype, device=first.device)
    row = 0
    for tensor in batch:
        part = (slice(row, row + len(tensor)), *[slice(length) for length in tensor.shape[1:]])
        whole[part] = tensor
        row += len(tensor)
    return whole


def generic_concat(batch: list[Any]) -> Any:
    """Returns batches as one, by their type.

    Tensors go through `concat_pad`. Dicts, dataclasses and named tuples are concatenated field by field. Lists are
    joined (Energon returns a list of lists), and so are `__sources__`. If all values are None, the result is None. All
    others become a list with one value per batch.

    Args:
        batch: n >= 1 batches of one type.

    Raises:
        ConfigError: Dicts have different keys, or tensors different numbers of dimensions.
    """
    first = batch[0]
    torch = sys.modules.get("torch")  # if it was never imported, there are no tensors
    if torch is not None and isinstance(first, torch.Tensor):
        return concat_pad(batch)
    if isinstance(first, dict):
        return {name: _concat_field(name, column) for name, column in columns_of(batch).items()}
    if (is_dataclass(first) and not isinstance(first, type)) or (
        isinstance(first, tuple) and hasattr(first, "_fields")
    ):
        return type(first)(**{name: _concat_field(name, column) for name, column in columns_of(batch).items()})
    if isinstance(first, list):
        return [value for values in batch for value in values]
    return None if all(value is None for value in batch) else list(batch)


def _concat_field(name: str, column: list[Any]) -> Any:
    if name == "__sources__":
        return tuple(source for sources in column for source in sources or ()) or None
    if name == "__restore_key__":
        return tuple(column)
    return generic_concat(column)


@stateless
def homogeneous_concat_mix(samples: list[Any]) -> Any:
    """Returns batches of one type as one batch, with `generic_concat`.

    Args:
        samples: At least one batch.

    Raises:
        FatalSampleError: They are of different types, as the next ones would be.
        ConfigError: Tensors of a field have different numbers of dimensions.
    """
    kinds = list(dict.fromkeys(type(sample) for sample in samples))
    if len(kinds) > 1:
        raise FatalSampleError(
            f"homogeneous_concat_mix was given batches of the types {', '.join(kind.__name__ for kind in kinds)}, and "
            "mixes batches of one type. Let the task encoders of all datasets return one type, or give "
            "MixBatchDataset(batch_mix_fn=...) a function of your own that makes one batch of them (concat_pad helps)."
        )
    return generic_concat(samples)
