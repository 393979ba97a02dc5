"""The cook stage, which makes samples of crude samples."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_dali.assembly.options import DatasetOptions
from energon_dali.cache import FileStore, JsonlFileStore, WebdatasetFileStore
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.source import source_number
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.errors import ConfigError
from energon_dali.samples import CrudeSample
from energon_dali.shards import JsonlReader, ShardReader
from energon_dali.task_encoder.auxiliary import PRIMARY, Auxiliaries, cook_each, cook_one
from energon_dali.task_encoder.cooking import Cooker, choose_cooker
from energon_dali.task_encoder.encoder import TaskEncoder, function_name, hook_names, overridden
from energon_dali.task_encoder.stateless import failure_tolerance, is_stateless


@dataclass(frozen=True)
class CookStage:
    """How the crude samples of one source are cooked."""

    function: Callable[[CrudeSample], Any]
    """Makes a sample of a crude sample; a generator function makes several."""
    is_generator: bool
    is_stateless: bool
    failure_tolerance: int
    config: dict[str, Any]
    """Plain values that describe it."""


def cook_stage(
    source: Source, options: DatasetOptions, subflavors: Mapping[str, Any], aux: Mapping[str, FileStore[Any]]
) -> CookStage:
    """Returns how the samples of a source of crude samples are cooked.

    Files of the stores are decoded by the encoder's decoder: at once if it runs in the workers, or later, as media
    handles, if it runs in the rank.

    Args:
        source: Yields crude samples.
        options: The first cooker of the task encoder that matches the subflavors is chosen, once for the source. A
            `cook_crude_sample` of the user that does not ask for a cooker needs none.
        subflavors: Subflavors of the source.
        aux: Undecoded stores that the cooker is called with, by name.

    Raises:
        ConfigError: No cooker matches, its arguments do not match the stores of the source, or it makes several samples
            of one, and there are global batches.
    """
    encoder, dataset = options.encoder, source.name
    override = OverriddenCook(encoder.cook_crude_sample) if overridden(encoder, "cook_crude_sample") else None
    if override is not None and override.needs_no_cooker(encoder.cookers):
        cooker: Cooker[Any] = Cooker(encoder.cook_crude_sample)
    else:
        cooker = choose_cooker(encoder.cookers, subflavors, dataset)
        if override is not None:
            override.cooker = cooker
    stores = dict(aux)
    if cooker.need_primary and PRIMARY not in stores:
        primary = primary_store(source)
        if primary is not None:
            stores[PRIMARY] = primary
    auxiliaries = Auxiliaries(
        cooker,
        override or PlainCook(cooker.cook),
        stores,
        options.decoder,
    )
    if auxiliaries.is_generator and options.global_batch_size is not None:
        raise ConfigError(
            f"global_batch_size={options.global_batch_size} cannot be combined with the cooker "
            f"{function_name(cooker.cook)}, a generator function that makes several samples of one. Let it return one "
            "sample, and raise SkipSample where there is none, or leave global_batch_size out."
        )
    if override is None:  # otherwise the user's own hook calls the function
        auxiliaries.check_arguments(dataset)
    return CookStage(
        functools.partial(cook_each if auxiliaries.is_generator else cook_one, auxiliaries),
        auxiliaries.is_generator,
        is_stateless(cooker.cook) and is_stateless(encoder.cook_crude_sample),
        failure_tolerance(
            encoder.cook_crude_sample, failure_tolerance(cooker.cook, encoder.__default_failure_tolerance__)
        ),
        _config(encoder, cooker, stores),
    )


def cook(
    dataset: SavableDataset[Any], stages: Sequence[CookStage | None], options: DatasetOptions
) -> SavableDataset[Any]:
    """Returns the cook stage above a dataset; the dataset itself if no source is crude.

    Args:
        dataset: Reads the sources.
        stages: For each source how its samples are cooked; None leaves them as they are.
        options: Options of the call.
    """
    known = [stage for stage in stages if stage is not None]
    if not known:
        return dataset
    is_generator = any(stage.is_generator for stage in known)
    if len(stages) == 1:
        function: Callable[[Any], Any] = known[0].function
    else:
        of_sources = tuple(None if stage is None else (stage.function, stage.is_generator) for stage in stages)
        function = functools.partial(_cook_each_of if is_generator else _cook_one_of, of_sources)
    configs = list({json.dumps(stage.config, sort_keys=True): stage.config for stage in known}.values())
    return MapDataset(
        dataset,
        function,
        stateless_map_fn=all(stage.is_stateless for stage in known),
        failure_tolerance=min((stage.failure_tolerance for stage in known if stage.failure_tolerance), default=0),
        map_fn_config=configs[0] if len(configs) == 1 else {"cookers": configs},
        stage="cook_crude_sample",
        samples_per_batch=options.batch_size or 1,
    )


_OfSource = tuple[Callable[[Any], Any], bool] | None


def _cook_one_of(of_sources: Sequence[_OfSource], sample: Any) -> Any:
    """Returns the sample that the cooker of its source makes of a crude sample; other samples as they are."""
    stage = of_sources[source_number(sample)]
    return sample if stage is None else stage[0](sample)


def _cook_each_of(of_sources: Sequence[_OfSource], sample: Any) -> Iterator[Any]:
    """Yields the samples that the cooker of its source makes of a crude sample; other samples as they are."""
    stage = of_sources[source_number(sample)]
    if stage is None:
        yield sample
    elif stage[1]:
        yield from stage[0](sample)
    else:
        yield stage[0](sample)


class PlainCook:
    """Calls a cooker's function with its stores as keyword arguments; picklable.

    Args:
        function: The function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, sample: Any, aux: Mapping[str, Any]) -> Any:
        return self.function(sample, **aux)


class OverriddenCook:
    """Calls a task encoder's own `cook_crude_sample` with what it asks for: the sample alone, its cooker, the stores.

    Energon's guide names the sample alone; its code passes all three. Picklable.

    Args:
        function: The hook.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.cooker: Cooker[Any] | None = None
        """The cooker that was chosen; None if the hook is called without one."""
        known = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        self._takes_aux = takes_all or "aux" in known
        self._takes_cooker = takes_all or "cooker" in known
        self._asks_for_cooker = "cooker" in known and known["cooker"].default is inspect.Parameter.empty

    def needs_no_cooker(self, cookers: Sequence[Cooker[Any]]) -> bool:
        """Returns whether the hook can cook by itself.

        Args:
            cookers: Those of the task encoder.
        """
        return not self._takes_cooker or not (self._asks_for_cooker or cookers)

    def __call__(self, sample: Any, aux: Mapping[str, Any]) -> Any:
        arguments: dict[str, Any] = {"cooker": self.cooker} if self.cooker is not None else {}
        if self._takes_aux:
            arguments["aux"] = aux
        return self.function(sample, **arguments)


def primary_store(source: Source) -> FileStore[Any] | None:
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
