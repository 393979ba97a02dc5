"""Numbers that are known of each sample before it is read, such as its tokens: what packing and balancing ask for."""

from __future__ import annotations

from typing import Protocol

from energon_dali.plan.rng import Int64Array

TEXT_TOKENS, VISION_TOKENS = "text_tokens", "vision_tokens"
VISION_PATCHES, VISION_SQUARES = "vision_patches", "vision_squares"
BUILT_IN = (TEXT_TOKENS, VISION_TOKENS, VISION_PATCHES, VISION_SQUARES)
"""The values that every measured dataset has."""
TOKENS = "tokens"
"""Name of the sum of text and vision tokens, the length of a sample in the language model."""
NOT_MEASURED = -1
"""The value of a sample that could not be measured."""


class SampleValues(Protocol):
    """Integers of each sample of a dataset, by name.

    Implementations are compared and hashed by `identity`, and picklable at a low cost: they are opened again, and
    checked, in the other process.
    """

    @property
    def identity(self) -> str:
        """Digest of the dataset, of what measured it, and of the values."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values, those of `BUILT_IN` first."""

    @property
    def num_samples(self) -> int:
        """Samples of the whole dataset, whatever its split."""

    def take(self, name: str, numbers: Int64Array) -> Int64Array:
        """Returns a value of samples: int64[n], `NOT_MEASURED` where there is none.

        Args:
            name: One of `names`, or `TOKENS`.
            numbers: int64[n]: numbers of the samples in the dataset, over all its shards.

        Raises:
            ConfigError: There is no such name, or no such sample.
            DatasetError: The file is damaged.
            StorageError: It cannot be read.
        """


def smallest_width(largest: int) -> int:
    """Returns the bytes of the smallest signed integer that holds a value and `NOT_MEASURED`: 1, 2, 4 or 8.

    Args:
        largest: The largest value, below 2**63.
    """
    return next(width for width in (1, 2, 4, 8) if largest < 1 << (8 * width - 1))
