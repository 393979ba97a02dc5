"""What the levels of a metadataset pass down to the datasets below: split part, subflavors, shuffling and subsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from energon_dali.errors import ConfigError
from energon_dali.metadataset.document import Node
from energon_dali.metadataset.schema import OptionsRecord
from energon_dali.metadataset.subset import Subset


class CallOptions(TypedDict, total=False):
    """What a call says about all datasets of a path."""

    subflavors: Mapping[str, Any] | None
    """Put into every sample; they override all others. None by default."""
    shuffle_over_epochs_multiplier: int | None
    """Combined with those of the files; 1 by default."""
    subset: object
    """Range of all samples, as `Subset.of` takes it; None, the default, is all."""


@dataclass(frozen=True)
class Context:
    """The options that hold at one level."""

    split_part: str
    """Part of the split, unless a level below names another."""
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    """They override those of the levels below."""
    shuffle_over_epochs_multiplier: int | None = 1
    """Product of the levels so far; -1 draws with replacement, None keeps file order."""
    subset: Subset | None = None
    """Share of everything below."""
    chain: tuple[str, ...] = ()
    """The metadataset files that lead here."""

    @classmethod
    def of_call(
        cls,
        split_part: str,
        *,
        chain: tuple[str, ...] = (),
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: object = None,
    ) -> Context:
        """Returns what a call says about all datasets.

        Raises:
            ConfigError: The subset is invalid.
        """
        chosen = None if subset is None else Subset.of(subset)
        return cls(split_part, dict(subflavors or {}), shuffle_over_epochs_multiplier, chosen, chain)

    def below(self, node: Node, record: OptionsRecord, subflavors: Mapping[str, Any]) -> Context:
        """Returns the context below a dataset or join.

        Args:
            node: The dataset or join.
            record: Its options.
            subflavors: Its subflavors.

        Raises:
            DatasetFormatError: An option or subset is invalid.
        """
        multiplier = record.shuffle_over_epochs_multiplier
        if multiplier is not None and multiplier < 1 and multiplier != -1:
            raise node.at("shuffle_over_epochs_multiplier").error(
                f"{multiplier} is invalid here: give a whole number of at least 1, -1 to draw with replacement, or "
                "null for file order."
            )
        inner = replace(
            self,
            split_part=record.split_part or self.split_part,
            subflavors={**subflavors, **self.subflavors},
            shuffle_over_epochs_multiplier=combine_shuffle_over_epochs(self.shuffle_over_epochs_multiplier, multiplier),
        )
        return inner.with_subset(node, getattr(record, "subset", None))

    def with_subset(self, node: Node, value: Any) -> Context:
        """Returns the context with the subset of a level, limited by those above it.

        Args:
            node: The mapping that may have the key `subset`.
            value: Its subset; None if it has none.

        Raises:
            DatasetFormatError: The subset is invalid, or does not fit those above.
        """
        if value is None and (self.subset is None or self.subset.numbers is None):
            return self
        try:
            return replace(self, subset=(Subset() if value is None else Subset.of(value)).within(self.subset))
        except ConfigError as error:
            raise (node if value is None else node.at("subset")).error(str(error)) from error


def combine_shuffle_over_epochs(outer: int | None, inner: int | None) -> int | None:
    """Returns the multiplier of two levels: None (file order) overrides -1 (with replacement), which overrides the
    product.
    """
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner
