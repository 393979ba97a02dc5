"""Makes one sample of joined ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from energon_dali.datasets.load_sample import SampleLoader, part_seed
from energon_dali.metadataset.join.reader import JoinedRaw
from energon_dali.plan import sample_seeds
from energon_dali.plan.rng import Int64Array
from energon_dali.samples import Sample


class JoinedSampleLoader:
    """Makes the samples of a join: each dataset's own first, then one of them all.

    Args:
        loaders: One per dataset, the primary one first.
        joiner: Makes one sample of theirs; None stands for a dataset without a match.
        names: Arguments of the joiner; None passes the samples by position.
        subflavors: Of the join, for choosing stages.
        seed: The job's seed.
        leaf: Number of this leaf in the job.
    """

    sample_type: type[Any] = Sample
    """What a joiner makes is a finished sample, never one to be cooked."""

    def __init__(
        self,
        loaders: Sequence[SampleLoader],
        joiner: Callable[..., Any],
        names: Sequence[str] | None,
        *,
        subflavors: dict[str, Any] | None = None,
        seed: int = 0,
        leaf: int = 0,
    ) -> None:
        self.loaders = tuple(loaders)
        self.joiner = joiner
        self.names = None if names is None else tuple(names)
        self.subflavors = dict(subflavors or {})
        self.seed = seed
        self.leaf = leaf
        self.images_decoded = 0
        """Images that were decoded where they were read, by PIL, since the last reset."""

    def seeds(self, epochs: Int64Array, indices: Int64Array) -> list[int]:
        """Returns the seeds of samples, by pass over the data and row of the join."""
        seeds: list[int] = sample_seeds(self.seed, self.leaf, epochs, indices).tolist()
        return seeds

    def __call__(self, raw: JoinedRaw, seed: int) -> Any:
        """Returns the sample.

        Args:
            raw: What was read.
            seed: Seed of its random operations, as `seeds` gives it.

        Raises:
            DecodeError: A part cannot be decoded; the message names the part.
            DatasetFormatError: A field's part is missing.
            Exception: Whatever the joiner raises.
        """
        samples: list[Any] = []
        for number, (load, part) in enumerate(zip(self.loaders, raw.columns, strict=True)):
            # Two datasets may have parts of one name, which want random operations of their own.
            own_seed = part_seed(seed, f"join/{number}") if number else seed
            samples.append(None if part is None else load(part, own_seed))
            self.images_decoded += load.images_decoded
            load.images_decoded = 0
        if self.names is None:
            return self.joiner(*samples)
        return self.joiner(**dict(zip(self.names, samples, strict=True)))
