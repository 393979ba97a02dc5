"""How `dataset.yaml` makes samples of parts, with classes and functions instead of their names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

from energon_dali import samples
from energon_dali.assembly.sample_loaders import SampleFactory, import_factory
from energon_dali.errors import DatasetFormatError
from energon_dali.samples import CrudeSample
from energon_dali.samples.base import BASE_FIELDS
from energon_dali.shards import WebdatasetFolder, is_crude, resolve_part_filter, resolve_sample_loader
from energon_dali.shards.meta.dataset_config import FACTORIES, ORDER_KEYS, STANDARD
from energon_dali.shards.meta.sample_loader import check_code_allowed


@dataclass(frozen=True)
class SampleRecipe:
    """How the samples of one dataset are made of their parts."""

    sample_type: type[Any]
    """Class of the samples; CrudeSample keeps all parts as a dict."""
    field_map: Mapping[str, str] | None = None
    """Parts by field name."""
    sample_loader: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Returns the fields of a sample, given its decoded parts."""
    part_filter: Callable[[str], bool] | None = None
    """Selects the parts that the sample loader or cooker needs; None takes those of the field map, or all."""
    subflavors: dict[str, Any] = field(default_factory=dict)
    """Put into every sample."""
    factory: type[SampleFactory] | None = None
    """A class of the program that makes the samples instead."""
    factory_options: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments in dataset.yaml."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """What dataset.yaml says about the order of the samples: names and values of `ORDER_KEYS`."""


def read_recipe(
    folder: WebdatasetFolder, sample_type: type[Any] | None = None, field_map: Mapping[str, str] | None = None
) -> SampleRecipe:
    """Returns how a dataset makes its samples.

    Args:
        folder: The dataset.
        sample_type: Overrides the class of dataset.yaml.
        field_map: Overrides the field map (or sample loader) of dataset.yaml.

    Raises:
        DatasetFormatError: dataset.yaml is missing or malformed.
        UntrustedCodeError: It names or contains code that the user did not allow.
    """
    if sample_type is not None and field_map is not None:
        check_fields(sample_type, field_map, "field_map=")
        return SampleRecipe(sample_type, field_map)
    config = folder.dataset_config
    order = {name: config[name] for name in sorted(ORDER_KEYS & config.keys())}
    if sample_type is None and field_map is None and config.get("__class__", STANDARD) not in FACTORIES:
        kind = import_factory(config, folder.path)
        own = {name: value for name, value in config.items() if name not in ("__module__", "__class__")}
        for name in ("sample_loader", "part_filter"):  # those of Energon run them without asking
            reference = own.get(name)
            if isinstance(reference, str) and not folder.allow_code:
                reference = reference if ":" in reference else f"{reference}:{name}"
                check_code_allowed(folder.root, reference, allow_code=False)
        return SampleRecipe(kind.__sample_type__, factory=kind, factory_options=own, order=order)
    subflavors = dict(config.get("subflavors") or {})
    if is_crude(config) and sample_type is None:
        return SampleRecipe(CrudeSample, part_filter=resolve_part_filter(folder), subflavors=subflavors, order=order)
    chosen = sample_type or _sample_class(config, folder)
    if field_map is not None or "field_map" in config:
        if field_map is None:
            check_fields(chosen, config["field_map"], f"field_map in dataset.yaml of {folder.path}")
        else:
            check_fields(chosen, field_map, "field_map=")
        return SampleRecipe(chosen, field_map or config["field_map"], subflavors=subflavors, order=order)
    functions = resolve_sample_loader(folder)
    if functions is None:
        raise DatasetFormatError(
            f"dataset.yaml of {folder.path} has neither a field_map nor a sample_loader for {chosen.__name__}. Add a "
            "field_map, or pass field_map={field: part}."
        )
    return SampleRecipe(
        chosen, sample_loader=functions[0], part_filter=functions[1], subflavors=subflavors, order=order
    )


def check_fields(sample_type: type[Any], field_map: Mapping[str, str], where: str) -> None:
    """Checks that a field map has the fields of a dataclass; any other class takes what it is given.

    Args:
        sample_type: The class.
        field_map: Parts by field name.
        where: Where it was given, for the message.

    Raises:
        DatasetFormatError: It has fields that the dataclass lacks, or lacks fields that it needs.
    """
    if not is_dataclass(sample_type):
        return
    known = [item for item in fields(sample_type) if item.init]
    needed = {item.name for item in known if item.default is MISSING and item.default_factory is MISSING}
    unknown = sorted(field_map.keys() - {item.name for item in known})
    missing = sorted(needed - field_map.keys() - set(BASE_FIELDS))
    if unknown or missing:
        raise DatasetFormatError(
            f"{where} does not fit {sample_type.__name__}: it has the unknown fields {unknown} and lacks {missing}. "
            f"The fields are {sorted({item.name for item in known} - set(BASE_FIELDS))}; correct the map, or "
            "choose another sample type."
        )


def _sample_class(config: Mapping[str, Any], folder: WebdatasetFolder) -> type[Any]:
    """Returns the class that `sample_type` names: ours of that name, or any other if the user allows imports."""
    kind = config["sample_type"]
    name = kind["__class__"]
    own = getattr(samples, name, None) if name in samples.__all__ else None
    if own is not None:
        return own  # type: ignore[no-any-return]
    # dataset.yaml was checked when it was read: other names reach this line only with allow_imports=True.
    try:
        found = getattr(importlib.import_module(kind["__module__"]), name)
    except (ImportError, AttributeError, KeyError) as error:
        raise DatasetFormatError(
            f"dataset.yaml of {folder.path} names the sample type {kind.get('__module__')}.{name}, which cannot be "
            f"imported ({error}). Install or correct it, or pass sample_type=."
        ) from error
    return found  # type: ignore[no-any-return]
