"""What `dataset.yaml` makes of a sample, with classes in place of names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from energon_dali import samples
from energon_dali.errors import DatasetFormatError
from energon_dali.samples import CrudeSample
from energon_dali.shards import WebdatasetFolder, is_crude, resolve_sample_loader


@dataclass(frozen=True)
class SampleRecipe:
    """How the samples of one dataset are made of their parts."""

    sample_type: type[Any]
    """Class of the samples; CrudeSample keeps all parts as a dict."""
    field_map: Mapping[str, str] | None = None
    """Field to part."""
    sample_loader: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Makes the fields of the decoded parts."""
    part_filter: Callable[[str], bool] | None = None
    """Which parts the sample loader wants; None leaves it to the field map."""
    subflavors: dict[str, Any] = field(default_factory=dict)
    """Put into every sample."""


def read_recipe(
    folder: WebdatasetFolder, sample_type: type[Any] | None = None, field_map: Mapping[str, str] | None = None
) -> SampleRecipe:
    """Returns how a dataset makes its samples.

    Args:
        folder: The dataset.
        sample_type: Overrides the class of dataset.yaml.
        field_map: Overrides the field map (or sample loader) of dataset.yaml.

    Raises:
        DatasetFormatError: dataset.yaml is missing or cannot be understood.
        UntrustedCodeError: It names code that the user did not allow to run.
    """
    if sample_type is not None and field_map is not None:
        return SampleRecipe(sample_type, field_map)
    config = folder.dataset_config
    subflavors = dict(config.get("subflavors") or {})
    if is_crude(config) and sample_type is None:
        return SampleRecipe(CrudeSample, subflavors=subflavors)
    chosen = sample_type or _sample_class(config, folder)
    if field_map is not None or "field_map" in config:
        return SampleRecipe(chosen, field_map or config["field_map"], subflavors=subflavors)
    functions = resolve_sample_loader(folder)
    if functions is None:
        raise DatasetFormatError(
            f"dataset.yaml of {folder.path} has neither a field_map nor a sample_loader for {chosen.__name__}. Add a "
            f"field_map, or pass "
            "field_map={field: part}."
        )
    return SampleRecipe(chosen, sample_loader=functions[0], part_filter=functions[1], subflavors=subflavors)


def _sample_class(config: Mapping[str, Any], folder: WebdatasetFolder) -> type[Any]:
    """Returns the class that `sample_type` names: ours of that name, or, where the dataset is trusted, any other."""
    kind = config["sample_type"]
    name = kind["__class__"]
    own = getattr(samples, name, None) if name in samples.__all__ else None
    if own is not None:
        return own  # type: ignore[no-any-return]
    # dataset.yaml was checked when it was read: other names get here only with trust_dataset_code=True.
    try:
        found = getattr(importlib.import_module(kind["__module__"]), name)
    except (ImportError, AttributeError, KeyError) as error:
        raise DatasetFormatError(
            f"dataset.yaml of {folder.path} names the sample type {kind.get('__module__')}.{name}, which cannot be "
            f"imported ({error}). Install or "
            "correct it, or pass sample_type=."
        ) from error
    return found  # type: ignore[no-any-return]
