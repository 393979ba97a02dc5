"""Puts the datasets of a metadataset together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_dali.build.options import LeafOptions, check_path
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.blend import BlendSourceDataset
from energon_dali.datasets.mixing.concat import ConcatSourceDataset
from energon_dali.datasets.mixing.epochized_blend import EpochizedBlendDataset
from energon_dali.errors import ConfigError
from energon_dali.metadataset.reference import ResolvedBlend
from energon_dali.metadataset.tree import YAML_SUFFIXES, resolve


def resolve_path(path: object, split_part: str, options: LeafOptions, multiplier: int | None) -> ResolvedBlend:
    """Returns the datasets that the path of a call stands for.

    Args:
        path: As the user gave it.
        split_part: Part of the split.
        options: Of the call.
        multiplier: `shuffle_over_epochs_multiplier` of the call.

    Raises:
        ConfigError: It is no path, has no such split, or an option is not for metadatasets.
        DatasetFormatError: A metadataset cannot be understood; the message names file, line and key.
        StorageError: A file cannot be read.
    """
    checked = check_path(path)
    blend = resolve(
        checked,
        split_part,
        subflavors=options.subflavors,
        shuffle_over_epochs_multiplier=multiplier,
        subset=options.subset,
    )
    given = {"dataset_config": options.dataset_config, "split_config": options.split_config}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return blend
    if isinstance(checked, Mapping) or checked.endswith(YAML_SUFFIXES):
        raise ConfigError(
            f"{', '.join(given)} was given for a metadataset, which says that at each of its datasets. Write it into "
            "the file."
        )
    return replace(blend, leaves=tuple(replace(leaf, **given) for leaf in blend.leaves))  # type: ignore[arg-type]


def is_epochized(blend: ResolvedBlend) -> bool:
    """Returns whether epochs of several datasets, or with repetitions, have to be put together."""
    return blend.mode == "repetitions" and (len(blend.leaves) > 1 or blend.leaves[0].repetitions != 1)


def blend_leaves(blend: ResolvedBlend, feeds: Sequence[SavableDataset[Any]], *, repeat: bool) -> SavableDataset[Any]:
    """Returns the training source over the leaves of a metadataset: they are drawn from by weight, or epoch by epoch.

    Args:
        blend: The leaves, with weights or repetitions.
        feeds: The leaves, opened, in their order.
        repeat: Whether epochs follow each other without an end.

    Raises:
        ConfigError: Datasets are blended by weight, which has no epochs, and `repeat` is False.
    """
    if blend.mode == "weights" and not repeat:
        raise ConfigError(
            "repeat=False asks for epochs, and datasets that are blended by weight repeat for ever, each at its own "
            "pace. Leave it out, or use blend_epochized in the metadataset."
        )
    if len(feeds) == 1 and not is_epochized(blend):
        return feeds[0]
    if blend.mode == "weights":
        return BlendSourceDataset(feeds, [leaf.weight or 0.0 for leaf in blend.leaves])
    return EpochizedBlendDataset(feeds, [leaf.repetitions or 0.0 for leaf in blend.leaves], repeat=repeat)


def chain_leaves(feeds: Sequence[SavableDataset[Any]]) -> SavableDataset[Any]:
    """Returns the validation source over the leaves of a metadataset: one after the other.

    Args:
        feeds: The leaves, opened, in their order.
    """
    return feeds[0] if len(feeds) == 1 else ConcatSourceDataset(feeds)
