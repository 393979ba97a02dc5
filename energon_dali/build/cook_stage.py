"""The cook stage, which makes samples of crude samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from energon_dali.build.options import DatasetOptions
from energon_dali.cache import FileStore, JsonlFileStore, WebdatasetFileStore
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.source import SourceDataset
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


def cook(
    source: SourceDataset, options: DatasetOptions, subflavors: Mapping[str, Any], aux: Mapping[str, FileStore[Any]]
) -> SavableDataset[Any]:
    """Returns the cook stage of a source of crude samples.

    Files of the stores are decoded by the encoder's decoder: at once if it runs in the workers, or later, as media
    handles, if it runs in the rank.

    Args:
        source: Yields crude samples.
        options: The first cooker of the task encoder that matches the subflavors is chosen, once for the dataset.
        subflavors: Subflavors of the dataset.
        aux: Undecoded stores that the cooker is called with, by name.

    Raises:
        ConfigError: No cooker matches, or its arguments do not match the stores of the dataset.
    """
    encoder, dataset = options.encoder, source.name
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
        options.decoder,
    )
    if not overrides:  # otherwise the user's own hook calls the function
        auxiliaries.check_arguments(dataset)
    return MapDataset(
        source,
        functools.partial(cook_each if auxiliaries.is_generator else cook_one, auxiliaries),
        stateless_map_fn=is_stateless(cooker.cook) and (not overrides or is_stateless(encoder.cook_crude_sample)),
        failure_tolerance=failure_tolerance(cooker.cook, encoder.__default_failure_tolerance__),
        map_fn_config=_config(encoder, cooker, stores),
        stage="cook_crude_sample",
        samples_per_batch=options.batch_size or 1,
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


def primary_store(source: SourceDataset) -> FileStore[Any] | None:
    """Returns random access to the files of a source by name; None if it has none."""
    reader = source.reader
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
