"""Makes one sample of joined ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from energon_dali.datasets.load_sample import SampleLoader, part_seed
from energon_dali.metadataset.join.reader import JoinedRaw
from energon_dali.samples import Sample
from energon_dali.shards import RawSample


class JoinedSampleLoader(SampleLoader):
    """Makes the samples of a join: each dataset's own first, then one of them all.

    Args:
        loaders: One per dataset, the primary one first.
        joiner: Makes one sample of theirs; None stands for a dataset without a match.
        names: Arguments of the joiner; None passes the samples by position.
        subflavors: Of the join, for choosing stages.
        seed: The job's seed.
        leaf: Number of this leaf in the job.
    """

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
        # What a joiner makes is a finished sample, never one to be cooked.
        super().__init__(
            decoder=None,
            sample_type=Sample,
            subflavors=subflavors,
            dataset_path=loaders[0].dataset_path,
            seed=seed,
            leaf=leaf,
        )
        self.loaders = tuple(loaders)
        self.joiner = joiner
        self.names = None if names is None else tuple(names)

    def __call__(self, raw: RawSample, seed: int) -> Any:
        """Returns the sample.

        Args:
            raw: What was read.
            seed: Seed of its random operations, as `seeds` gives it.

        Raises:
            DecodeError: A part cannot be decoded; the message names the part.
            DatasetFormatError: A field's part is missing.
            Exception: Whatever the joiner raises.
        """
        assert isinstance(raw, JoinedRaw), "a JoinedReader gives them"
        samples: list[Any] = []
        for number, (load, part) in enumerate(zip(self.loaders, raw.columns, strict=True)):
            # Two datasets may have parts of one name, which want random operations of their own.
            own_seed = part_seed(seed, f"join/{number}") if number else seed
            samples.append(None if part is None else load(part, own_seed))
            for route, count in load.take_routes().items():
                self.count_route(route, count)
        if self.names is None:
            return self.joiner(*samples)
        return self.joiner(**dict(zip(self.names, samples, strict=True)))
