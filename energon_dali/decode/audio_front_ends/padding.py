"""How the extractors of transformers pad and cut sequences of a batch: options of `SequenceFeatureExtractor.pad`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import ConfigError

PaddingRule = Literal["longest", "max_length", "none"]
PaddingSide = Literal["right", "left"]


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How long the rows of a batch are; a value.

    Raises:
        ConfigError: A field has an invalid value.
    """

    rule: PaddingRule = "longest"
    """"longest" pads to the longest row of the batch, "max_length" to `max_length`, "none" not at all."""
    max_length: int | None = None
    """Most elements of a row, if `truncation` is set; and what "max_length" pads to."""
    truncation: bool = False
    """Whether rows are cut to `max_length`."""
    multiple: int | None = None
    """Rows are padded to a multiple of this; so is `max_length`."""
    side: PaddingSide = "right"
    """Where the padding is."""
    value: float = 0.0
    """The padding."""

    def __post_init__(self) -> None:
        for name, value, allowed in (("rule", self.rule, PaddingRule), ("side", self.side, PaddingSide)):
            if value not in get_args(allowed):
                raise ConfigError(f"Padding({name}={value!r}) is unknown. Give one of {', '.join(get_args(allowed))}.")
        for name in ("max_length", "multiple"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"Padding({name}={value}) is invalid: it must be at least 1, or None.")
        if self.max_length is None and (self.rule == "max_length" or self.truncation):
            raise ConfigError(f"{self} has no max_length to pad or cut to. Give one, in elements of a row.")

    def kept(self, length: int) -> int:
        """Returns the elements of a row that are kept.

        Args:
            length: Elements of the row.
        """
        if not self.truncation or self.max_length is None:
            return length
        return min(length, self._rounded_up(self.max_length))

    def padded(self, lengths: Sequence[int]) -> int:
        """Returns the elements of each row of a batch.

        Args:
            lengths: Of its rows, at least one, before they are cut.

        Raises:
            ConfigError: The rows would differ in length.
        """
        kept = [self.kept(length) for length in lengths]
        if self.rule == "none":
            padded = set(kept)
        else:
            goal = self.max_length if self.rule == "max_length" else max(kept)
            padded = {max(length, self._rounded_up(goal or 0)) for length in kept}
        if len(padded) > 1:
            raise ConfigError(
                f"Rows of {min(padded)} and {max(padded)} elements form no batch with {self}. Use the rule "
                '"longest", or a max_length with truncation=True.'
            )
        return padded.pop()

    def stack(self, rows: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Returns (batch, mask) of rows.

        Args:
            rows: [elements, ...], at least one, before they are cut.

        Returns:
            The rows, [rows, elements, ...], of the dtype of the first, and int32[rows, elements]: 1 where an element
            is a row's own.

        Raises:
            ConfigError: The rows would differ in length.
        """
        length = self.padded([len(row) for row in rows])
        batch = np.full((len(rows), length, *rows[0].shape[1:]), self.value, dtype=rows[0].dtype)
        mask = np.zeros((len(rows), length), dtype=np.int32)
        for number, row in enumerate(rows):
            kept = self.kept(len(row))
            own = slice(0, kept) if self.side == "right" else slice(length - kept, length)
            batch[number, own] = row[:kept]
            mask[number, own] = 1
        return batch, mask

    def _rounded_up(self, length: int) -> int:
        return length if self.multiple is None else -(-length // self.multiple) * self.multiple
