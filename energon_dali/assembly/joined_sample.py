"""Makes one sample of the samples that a join index joins."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.load_sample import SampleLoader, part_seed
from energon_dali.metadataset.join.joined_reader import JoinedRaw
from energon_dali.samples import Sample
from energon_dali.samples.base import Key, set_restore_key
from energon_dali.shards import RawSample

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.decode.interface import Placement


class JoinedSampleLoader(SampleLoader):
    """Makes the samples of a join: first the sample of each dataset, then one sample of all.

    Args:
        loaders: One per dataset, the primary one first.
        joiner: Makes one sample of theirs; receives None for a dataset without a match.
        names: Names of the joiner's arguments; None passes the samples by position.
        subflavors: Subflavors of the join, by which stages are chosen.
        seed: The job's seed.
        source_number: Number of the join among the sources of the job.
    """

    def __init__(
        self,
        loaders: Sequence[SampleLoader],
        joiner: Callable[..., Any],
        names: Sequence[str] | None,
        *,
        subflavors: dict[str, Any] | None = None,
        seed: int = 0,
        source_number: int = 0,
    ) -> None:
        # A joiner returns a finished sample, never a crude one.
        super().__init__(
            decoder=None,
            sample_type=Sample,
            subflavors=subflavors,
            dataset_path=loaders[0].dataset_path,
            seed=seed,
            source_number=source_number,
        )
        self.loaders = tuple(loaders)
        self.joiner = joiner
        self.names = None if names is None else tuple(names)

    def counting(self, metrics: Metrics) -> SampleLoader:
        twin = copy.copy(self)
        twin.loaders = tuple(load.counting(metrics) for load in self.loaders)
        return twin

    def import_libraries(self, placement: Placement) -> None:
        for load in self.loaders:
            load.import_libraries(placement)

    def __call__(self, raw: RawSample, seed: int, restore_key: Key = ()) -> Any:
        """Returns the sample.

        Args:
            raw: The samples of a row of the join index.
            seed: Seed of its random operations, as `seeds` returns it.
            restore_key: Becomes its `__restore_key__`.

        Raises:
            DecodeError: A part cannot be decoded; the message names the part.
            DatasetFormatError: A field's part is missing.
            Exception: Whatever the joiner raises.
        """
        assert isinstance(raw, JoinedRaw), "a JoinedReader gives them"
        samples: list[Any] = []
        for number, (load, part) in enumerate(zip(self.loaders, raw.columns, strict=True)):
            # Parts of the same name in two datasets get different random operations.
            own_seed = part_seed(seed, f"join/{number}") if number else seed
            samples.append(None if part is None else load(part, own_seed))
        if self.names is None:
            joined = self.joiner(*samples)
        else:
            joined = self.joiner(**dict(zip(self.names, samples, strict=True)))
        return set_restore_key(joined, restore_key) if restore_key else joined
