"""Cuts batches for context parallelism, in which the ranks of a group compute parts of the same sequences.

With causal attention a token attends to all tokens before it, so the end of a sequence costs most. "zigzag" cuts each
sequence into twice as many chunks as there are ranks, and gives rank r the chunks r and 2 x size - 1 - r, as Megatron
and Transformer Engine do. In a pack, each document is cut separately.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.samples.transfer import attributes_of

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

Layout = Literal["zigzag", "contiguous"]
LAYOUTS: tuple[Layout, ...] = ("zigzag", "contiguous")


def padding_multiple(
    context_parallel_size: int,
    tensor_parallel_size: int = 1,
    *,
    sequence_parallel: bool = False,
    also: int = 1,
) -> int:
    """Returns the number of which the lengths of sequences must be multiples, so that they can be cut.

    That is 2 x context_parallel_size for the zig-zag. With sequence parallelism each rank's part must also be divisible
    by tensor_parallel_size, as in Megatron-LM. Without context parallelism it is tensor_parallel_size or 1.

    Args:
        context_parallel_size: Ranks that share a sequence.
        tensor_parallel_size: Tensor-parallel ranks.
        sequence_parallel: Whether the tensor-parallel ranks divide the sequence too.
        also: Another number that must divide the length, such as 16 for FP8 or 32 for MXFP8.
    """
    chunks = 2 * context_parallel_size if context_parallel_size > 1 else 1
    return math.lcm(chunks * (tensor_parallel_size if sequence_parallel else 1), also)


def pad_lengths(lengths: Iterable[int], multiple: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Returns where the documents of a pack begin if each is padded to a multiple: `cu_seqlens_padded`.

    Args:
        lengths: Tokens of each document.
        multiple: What `padding_multiple` returns.

    Returns:
        int32 (n + 1,), from 0 to the length of the padded pack.
    """
    padded = -(-np.asarray(list(lengths), dtype=np.int64) // multiple) * multiple
    return np.concatenate([[0], np.cumsum(padded)]).astype(np.int32)


def positions_of_rank(
    starts: Sequence[int] | np.ndarray[Any, Any], rank: int, size: int, *, layout: Layout = "zigzag"
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the positions of a sequence, or of a pack of documents, that a rank computes.

    Equal to Transformer Engine's `thd_get_partitioned_indices` for "zigzag".

    Args:
        starts: Where the documents begin, and where the last ends: `cu_seqlens_padded`. [0, length] for one sequence.
        rank: Context-parallel rank.
        size: Number of context-parallel ranks.
        layout: "zigzag" cuts each document; "contiguous" cuts the whole into `size` equal parts.

    Returns:
        int64 (length / size,), ascending.

    Raises:
        ConfigError: A length is not divisible, or `layout` is unknown.
    """
    edges = np.asarray(starts, dtype=np.int64)
    if layout not in LAYOUTS:
        raise ConfigError(f'layout={layout!r} is unknown: give "zigzag" or "contiguous".')
    if layout == "contiguous":
        length = int(edges[-1])
        if length % size:
            raise ConfigError(f"A sequence of {length} tokens cannot be cut into {size} equal parts. Pad it.")
        return np.arange(rank * (length // size), (rank + 1) * (length // size))
    lengths = np.diff(edges)
    wrong = np.flatnonzero(lengths % (2 * size))
    if len(wrong):
        raise ConfigError(
            f"Document {wrong[0]} has {lengths[wrong[0]]} tokens, which is not a multiple of {2 * size} (twice the "
            f"{size} context-parallel ranks). Pad each document to a multiple of padding_multiple({size})."
        )
    chunk = lengths // (2 * size)
    first = np.stack([edges[:-1] + rank * chunk, edges[:-1] + (2 * size - 1 - rank) * chunk], axis=1).ravel()
    counts = np.repeat(chunk, 2)
    offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    positions: np.ndarray[Any, np.dtype[np.int64]] = np.repeat(first, counts) + offsets
    return positions


def items_of_rank(count: int, rank: int, size: int) -> range:
    """Returns which of `count` whole items, such as images, a rank computes.

    They are neighbours, and the counts of the ranks differ by at most 1.

    Args:
        count: Number of items.
        rank: Context-parallel rank.
        size: Number of context-parallel ranks.
    """
    return range(rank * count // size, (rank + 1) * count // size)


def cut_sequence(
    tensor: torch.Tensor,
    rank: int,
    size: int,
    *,
    dim: int = 1,
    starts: Sequence[int] | np.ndarray[Any, Any] | None = None,
    layout: Layout = "zigzag",
) -> torch.Tensor:
    """Returns the part of a tensor that a context-parallel rank computes.

    Args:
        tensor: Any tensor with a dimension of tokens.
        rank: Context-parallel rank.
        size: Number of context-parallel ranks.
        dim: The dimension of tokens.
        starts: Where the documents of a pack begin, and where the last ends; None if sequences are not packs.
        layout: As in `positions_of_rank`.

    Returns:
        A copy with 1 / `size` of the length along `dim`.

    Raises:
        ConfigError: A length is not divisible, or `starts` does not end where the tensor does.
    """
    import torch

    length = tensor.shape[dim]
    edges = [0, length] if starts is None else starts
    if int(edges[-1]) != length:
        raise ConfigError(
            f"The documents of a pack end at token {int(edges[-1])}, and dimension {dim} of the tensor has {length}. "
            "Pass starts that count the padding of documents and of the pack (cu_seqlens_padded)."
        )
    positions = torch.from_numpy(positions_of_rank(edges, rank, size, layout=layout))
    return tensor.index_select(dim, positions.to(tensor.device))


@explain_call
@dataclass(frozen=True)
class ContextCut:
    """Which fields of a batch context-parallel ranks divide, and how; the other fields stay whole.

    Args:
        sequences: The dimension of tokens of each field, such as {"tokens": 1, "labels": 1}.
        items: Fields that hold one item per image or the like, which stay whole and are divided among the ranks:
            lists, or tensors with the items along their first dimension.
        starts: Field with the starts of the documents of a pack (`cu_seqlens_padded`, int (n + 1,) or (1, n + 1)); it
            stays whole. None if there are no packs, or where a batch does not have the field.
        layout: "zigzag", or "contiguous".
    """

    sequences: Mapping[str, int] = field(default_factory=dict)
    items: Sequence[str] = ()
    starts: str | None = None
    layout: Layout = "zigzag"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(f'layout={self.layout!r} is unknown: give "zigzag" or "contiguous".')

    def of(self, batch: T, rank: int, size: int) -> T:
        """Returns the part of a batch that a rank computes; the batch itself with one rank.

        Args:
            batch: A dict or a dataclass.
            rank: Context-parallel rank.
            size: Number of context-parallel ranks.

        Raises:
            ConfigError: A length is not divisible.
        """
        if size == 1:
            return batch
        values = fields_of(batch)
        starts = values.get(self.starts) if self.starts is not None else None
        edges = None if starts is None else np.asarray(starts).reshape(-1)
        changed: dict[str, Any] = {}
        for name, dim in self.sequences.items():
            if values.get(name) is not None:
                changed[name] = cut_sequence(values[name], rank, size, dim=dim, starts=edges, layout=self.layout)
        for name in self.items:
            if values.get(name) is not None:
                own = items_of_rank(len(values[name]), rank, size)
                changed[name] = values[name][own.start : own.stop]
        return with_fields(batch, changed)


def fields_of(batch: Any) -> Mapping[str, Any]:
    """Returns the fields of a batch by name.

    Raises:
        ConfigError: The batch is neither a dict nor a dataclass.
    """
    if isinstance(batch, Mapping):
        return batch
    if hasattr(batch, "__dataclass_fields__"):
        return attributes_of(batch)
    raise ConfigError(
        f"A batch is a {type(batch).__name__}; fields can be left out or cut only in dicts and dataclasses. "
        "Return one of these from encode_batch."
    )


def with_fields(batch: T, changed: Mapping[str, Any], without: Iterable[str] = ()) -> T:
    """Returns a shallow copy of a batch in which some fields have new values and others are left out.

    Args:
        batch: A dict or a dataclass.
        changed: New values, by name.
        without: Fields to leave out: absent from a dict, None in a dataclass.
    """
    twin: Any = copy.copy(batch)
    if isinstance(twin, dict):
        twin.update(changed)
        for name in without:
            twin.pop(name, None)
    else:
        for name, value in {**changed, **dict.fromkeys(without)}.items():
            object.__setattr__(twin, name, value)
    return twin  # type: ignore[no-any-return]
