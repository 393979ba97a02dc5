"""Puts the token sequences of a pack one after the other, with the boundaries that attention kernels need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError, DatasetError

if TYPE_CHECKING:
    import torch

LABELS = "labels"
IGNORED = -100
"""Label of a token that nothing predicts, as in torch's cross entropy."""


@dataclass(slots=True, eq=False)
class PackedSequences:
    """Samples in one row of T tokens. `pack_sequences` makes it; `for_model` returns what a model's forward takes."""

    fields: dict[str, torch.Tensor]
    """int64[1, T] for each packed field, such as input_ids and labels."""
    position_ids: torch.Tensor
    """int64[1, T], from 0 in each sample. With multimodal positions of R rows, int64[1 + R, 1, T]: those from 0 first,
    from which transformers finds where a sample ends. float32 if the positions have fractions (Qwen3-Omni)."""
    cu_seqlens: torch.Tensor
    """int32[m + 1]: where each sample begins, and the end. Padding of the row is a segment of its own, the last.
    That of samples to a multiple belongs to them, as in Transformer Engine's `cu_seqlens_padded`."""
    max_seqlen: int
    """Tokens of the longest segment."""
    num_samples: int
    """Samples in the pack; one less than the segments if the row is padded."""
    lengths: list[int]
    """Tokens of each sample, without padding."""

    def for_model(self) -> dict[str, Any]:
        """Returns the fields, position_ids, and the boundaries under transformers' names (FlashAttentionKwargs).

        With them `attn_implementation="flash_attention_2"` calls the kernels of variable length. Other implementations
        find the boundaries where the position ids start again, unless there is an attention_mask or a cache. So
        `use_cache` is False: by default, models have one, and samples would attend to those before them.
        """
        return {
            **self.fields,
            "position_ids": self.position_ids,
            "cu_seq_lens_q": self.cu_seqlens,
            "cu_seq_lens_k": self.cu_seqlens,
            "max_length_q": self.max_seqlen,
            "max_length_k": self.max_seqlen,
            "use_cache": False,
        }

    def __repr__(self) -> str:
        return f"PackedSequences({self.num_samples} samples, {', '.join(self.fields)}, {self.cu_seqlens[-1]} tokens)"


def pack_sequences(
    samples: Sequence[Any],
    *,
    fields: Sequence[str] = ("input_ids", LABELS),
    position_ids: Callable[[Any], torch.Tensor] | None = None,
    row_length: int | None = None,
    multiple: int = 1,
    padding: Mapping[str, int] | None = None,
) -> PackedSequences:
    """Returns the samples of a pack as one row. Call it in `pack_selected_samples`.

    The label of each sample's first token becomes -100: the last token of the sample before it must not predict it.

    Args:
        samples: At least one; dicts or objects with the fields.
        fields: Names of the fields that are packed: tensors, arrays or lists of one length per sample.
        position_ids: Returns the positions of a sample's tokens: integers or floats [n], or [R, n] for multimodal
            rotary positions. By default 0, 1, 2, ...
        row_length: Tokens of the row, which is padded to it; None is the sum of the samples.
        multiple: Each sample is padded to a multiple of this, so that context-parallel ranks can cut it
            (`padding_multiple`). Plan packs with the same `PlannedPacks(multiple=...)`.
        padding: Value of each field in the padding; by default -100 for labels and 0 for others.

    Raises:
        ConfigError: There are no samples, a row_length that is too short, or a multiple below 1.
        DatasetError: A sample lacks a field, or its fields or positions have different lengths.
    """
    import torch

    if not samples:
        raise ConfigError("pack_sequences was given no samples. Give the samples of one pack.")
    if multiple < 1:
        raise ConfigError(f"multiple={multiple} is invalid: give a whole number of at least 1.")
    columns: dict[str, list[torch.Tensor]] = {name: [] for name in fields}
    text_positions: list[torch.Tensor] = []
    positions: list[torch.Tensor] = []
    starts = [0]
    lengths: list[int] = []
    for number, sample in enumerate(samples):
        length = None
        for name in fields:
            value = sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)
            if value is None:
                raise DatasetError(f"Sample {number} of a pack has no {name!r}, which pack_sequences was to pack.")
            tensor = torch.as_tensor(value, dtype=torch.int64).reshape(-1)
            if length not in (None, len(tensor)):
                raise DatasetError(f"Sample {number} of a pack has {length} {fields[0]} and {len(tensor)} {name}.")
            length = len(tensor)
            if name == LABELS and length:
                tensor = tensor.clone()
                tensor[0] = IGNORED
            columns[name].append(tensor)
        assert length is not None
        text_positions.append(torch.arange(length))
        if position_ids is not None:
            made = torch.as_tensor(position_ids(sample))
            made = made.to(torch.float32 if made.is_floating_point() else torch.int64)
            if made.shape[-1] != length:
                raise DatasetError(f"Sample {number} of a pack has {length} tokens and {made.shape[-1]} positions.")
            positions.append(made.reshape(-1, length) if made.ndim > 1 else made)
        lengths.append(length)
        missing = -length % multiple
        if missing:
            _pad(columns, text_positions, positions, missing, padding or {}, begin=length)
        starts.append(starts[-1] + length + missing)
    if row_length is not None and row_length != starts[-1]:
        _pad(columns, text_positions, positions, row_length - starts[-1], padding or {})
        starts.append(row_length)
    row = torch.cat(text_positions)[None]
    if positions:
        joined = torch.cat(positions, dim=-1)
        row = joined[None] if joined.ndim == 1 else torch.cat([row, joined])[:, None]
    cu_seqlens = torch.tensor(starts, dtype=torch.int32)
    return PackedSequences(
        {name: torch.cat(column)[None] for name, column in columns.items()},
        row,
        cu_seqlens,
        int(cu_seqlens.diff().max()),
        len(samples),
        lengths,
    )


def _pad(
    columns: dict[str, list[torch.Tensor]],
    text_positions: list[torch.Tensor],
    positions: list[torch.Tensor],
    missing: int,
    padding: Mapping[str, int],
    begin: int = 0,
) -> None:
    """Adds padding: as if it were one more sample, or to the last one, whose positions it continues from `begin` on.

    Raises:
        ConfigError: The samples are longer than the row.
    """
    import torch

    if missing < 0:
        raise ConfigError(
            f"The samples of a pack have {-missing} tokens more than row_length. Give SequencePacker a max_length of "
            "at most row_length, and too_long='refuse'."
        )
    for name, column in columns.items():
        column.append(torch.full((missing,), padding.get(name, IGNORED if name == LABELS else 0)))
    text_positions.append(torch.arange(begin, begin + missing))
    if positions:
        positions.append(torch.arange(begin, begin + missing).expand(*positions[0].shape[:-1], missing))
