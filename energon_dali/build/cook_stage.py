"""The stage that makes samples of crude samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from energon_dali.cache import FileStore, JsonlFileStore, WebdatasetFileStore
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.shards import JsonlReader, ShardReader
from energon_dali.task_encoder import (
    Cooker,
    TaskEncoder,
    choose_cooker,
    failure_tolerance,
    function_name,
    hook_names,
    is_stateless,
    overridden,
)
from energon_dali.task_encoder.auxiliary import PRIMARY, Auxiliaries, cook_each, cook_one

NO_STORES: Mapping[str, FileStore[Any]] = {}


def cook(
    source: SavableDataset[Any],
    encoder: TaskEncoder[Any, Any, Any, Any],
    subflavors: Mapping[str, Any],
    dataset: str,
    aux: Mapping[str, FileStore[Any]] = NO_STORES,
    *,
    samples_per_batch: int = 1,
) -> SavableDataset[Any]:
    """Returns a source of crude samples with the stage that makes samples of them.

    What the stores give is decoded as the encoder's decoder says: decoded at once where it works in the workers, and
    as media handles, for the decode stage, where it works in the rank.

    Args:
        source: Gives crude samples.
        encoder: Its first cooker that matches the subflavors is taken, once for the dataset.
        subflavors: Of the dataset.
        dataset: Its path, for messages.
        aux: Stores that the cooker is called with, by name; undecoded.
        samples_per_batch: Of the pipeline, for `current_batch_index` in the cooker.

    Raises:
        ConfigError: No cooker matches, or it asks for what the dataset does not have, or does not take what it has.
    """
    cooker = choose_cooker(encoder.cookers, subflavors, dataset)
    overrides = overridden(encoder, "cook_crude_sample")
    stores = dict(aux)
    if cooker.need_primary and PRIMARY not in stores:
        primary = primary_store(source)
        if primary is not None:
            stores[PRIMARY] = primary
    auxiliaries = Auxiliaries(
        cooker,
        functools.partial(encoder.cook_crude_sample, cooker=cooker) if overrides else PlainCook(cooker.cook),
        stores,
        encoder.decoder,
    )
    if not overrides:  # else what calls the function is the user's own
        auxiliaries.check_arguments(dataset)
    return MapDataset(
        source,
        functools.partial(cook_each if auxiliaries.is_generator else cook_one, auxiliaries),
        stateless_map_fn=is_stateless(cooker.cook) and (not overrides or is_stateless(encoder.cook_crude_sample)),
        failure_tolerance=failure_tolerance(cooker.cook, encoder.__default_failure_tolerance__),
        map_fn_config=_config(encoder, cooker, stores),
        stage="cook_crude_sample",
        samples_per_batch=samples_per_batch,
    )


class PlainCook:
    """Calls a cooker's function with its stores as keyword arguments; picklable.

    Args:
        function: The function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, sample: Any, aux: Mapping[str, Any]) -> Any:
        return self.function(sample, **aux)


def primary_store(source: SavableDataset[Any]) -> FileStore[Any] | None:
    """Returns random access to the files of a source, by name; None where it has none."""
    reader = getattr(source, "reader", None)
    if isinstance(reader, ShardReader):
        return WebdatasetFileStore(reader.folder.root)
    if isinstance(reader, JsonlReader):
        return JsonlFileStore(reader.file.storage_path)
    return None


def _config(
    encoder: TaskEncoder[Any, Any, Any, Any], cooker: Cooker[Any], stores: Mapping[str, FileStore[Any]]
) -> dict[str, Any]:
    config = {"hooks": hook_names(encoder, "cook_crude_sample"), "cooker": function_name(cooker.cook)}
    return {**config, "aux": sorted(stores)} if stores else config
