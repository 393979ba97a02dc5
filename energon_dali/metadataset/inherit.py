"""What the levels of a metadataset pass down: split part, subflavors, shuffling and subsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.metadataset.document import Document, Keys
from energon_dali.metadataset.reference import combine_shuffle_over_epochs
from energon_dali.metadataset.schema import OptionsRecord
from energon_dali.metadataset.subset import Subset
from energon_dali.metadataset.tree import Context


def inner_context(
    context: Context, record: OptionsRecord, subflavors: Mapping[str, Any], document: Document, keys: Keys
) -> Context:
    """Returns what holds below a dataset or join.

    Raises:
        DatasetFormatError: An option or subset cannot be.
    """
    multiplier = record.shuffle_over_epochs_multiplier
    if multiplier is not None and multiplier < 1 and multiplier != -1:
        raise document.error(
            (*keys, "shuffle_over_epochs_multiplier"),
            f"{multiplier} cannot be here: give a whole number of at least 1, -1 to draw with replacement, or null for "
            "file order.",
        )
    return replace(
        context,
        split_part=record.split_part or context.split_part,
        subflavors={**subflavors, **context.subflavors},
        shuffle_over_epochs_multiplier=combine_shuffle_over_epochs(context.shuffle_over_epochs_multiplier, multiplier),
        subset=inner_subset(getattr(record, "subset", None), context.subset, document, keys),
    )


def inner_subset(value: Any, outer: Subset | None, document: Document, keys: Keys) -> Subset | None:
    """Returns what a `subset` at a place and those above it say together.

    Args:
        value: What stands there; None is nothing.
        outer: What the levels above say.
        document: The metadataset.
        keys: The way to the mapping that holds the key `subset`.

    Raises:
        DatasetFormatError: It cannot be understood, or does not fit those above.
    """
    if value is None and (outer is None or outer.numbers is None):
        return outer
    try:
        return (Subset() if value is None else Subset.of(value)).within(outer)
    except ConfigError as error:
        raise document.error(keys if value is None else (*keys, "subset"), str(error)) from error
