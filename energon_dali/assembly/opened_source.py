"""Opens one dataset or join, and puts its samples into an order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from energon_dali.assembly.identities import Identities, SourceConfig
from energon_dali.assembly.measures import filter_ranges
from energon_dali.assembly.named_samples import filter_by_keys
from energon_dali.assembly.options import DatasetOptions, check_number
from energon_dali.assembly.sample_loaders import (
    FactoryLoader,
    JoinedSampleLoader,
    SampleFactory,
    SampleRecipe,
    read_recipe,
)
from energon_dali.datasets.chosen_media import media_chooser
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.row_sources import RawReader, Source
from energon_dali.decode import SampleDecoder
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.metadataset.document import located
from energon_dali.metadataset.files import is_local, read_folder_files, read_join_files
from energon_dali.metadataset.join.columns import ColumnFolder, JoinIndexFile
from energon_dali.metadataset.join.declaration import load_joiner
from energon_dali.metadataset.join.joined_reader import JoinedReader
from energon_dali.metadataset.reference import SourceReference, Subset, take_subset
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from energon_dali.samples.base import CrudeSample, Sample
from energon_dali.shards import ShardReader, WebdatasetFolder
from energon_dali.shards.documents.opening import Opening, opening_files
from energon_dali.shards.jsonl import JsonlFile, JsonlReader

MAX_SLICES = 10_000_000
"""Most slices that are shuffled together, over all epochs of `shuffle_over_epochs_multiplier`; each takes 16 bytes."""


@dataclass(frozen=True)
class OpenedSource:
    """A dataset, before its samples are put into an order."""

    ranges: Slices
    """The samples of each shard that belong to the split part."""
    reader: RawReader
    """Reads their bytes."""
    load: SampleLoader
    """Makes samples of them."""
    uuid: str | Callable[[], str]
    """Identity of the data."""
    sample_type: str
    """Name of the class of the samples."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """How `dataset.yaml` says that its samples are shuffled: names and values of `ORDER_KEYS`."""


def start_reading(reference: SourceReference, options: DatasetOptions, opening: Opening) -> Callable[[], Any]:
    """Returns a function that returns the files of a dataset or join; those of a remote one are read by a thread.

    Args:
        reference: The dataset or join.
        options: Options of the call.
        opening: Reads files.
    """
    chosen = options.source
    allowed = {"allow_imports": chosen.allow_imports, "allow_code": chosen.allow_code}
    read: Callable[[], Any]
    if reference.join is not None:
        read = partial(read_join_files, reference, **allowed)
    elif reference.is_jsonl:
        read = partial(JsonlFile, reference.path)
    else:
        read = partial(read_folder_files, reference, **allowed)
    return opening.later(read, is_local=is_local(reference))


def open_source(
    reference: SourceReference,
    number: int,
    options: DatasetOptions,
    repeat: bool,
    files: Callable[[], Any] | None = None,
    identities: Identities | None = None,
    factory: SampleFactory | None = None,
) -> Source:
    """Returns the source of one dataset or join.

    Args:
        reference: The dataset or join.
        number: Its number among the sources of the job, so that two sources of one path have different orders.
        options: Options of the call.
        repeat: Start again after each epoch.
        files: From `start_reading`; None reads them here.
        identities: Identities of the job's datasets; None if this is the only one.
        factory: Makes the samples of a folder; None does what its dataset.yaml says.

    Raises:
        ConfigError: An option is invalid for it.
        DatasetError: It cannot be read.
        UntrustedCodeError: It names or contains code that the user did not allow.
        StorageError: A file cannot be read.
    """
    if files is None:
        with opening_files() as opening:
            read = start_reading(reference, options, opening)
            return open_source(reference, number, options, repeat, read, identities, factory)
    identities = identities or Identities()
    with located(reference.location):
        if reference.join is not None:
            opened = _open_join(reference, number, options, files)
        elif reference.is_jsonl:
            opened = _open_jsonl(reference, number, options, files)
        else:
            opened = _open_folder(reference, number, options, files, identities, factory)
        ranges = filter_by_keys(opened.ranges, opened.reader, reference)
        ranges = filter_ranges(ranges, opened.reader, opened.load, reference, options)
        opened = replace(opened, ranges=ranges)
        reference, options = _with_order(opened.order, reference, options)
    return order_samples(opened, reference, number, options, repeat)


def _with_order(
    order: Mapping[str, Any], reference: SourceReference, options: DatasetOptions
) -> tuple[SourceReference, DatasetOptions]:
    """Returns the reference and the options with what `dataset.yaml` says about the order.

    Raises:
        DatasetFormatError: A value is not a number in its range.
    """
    names = {"shuffle_over_epochs": "shuffle_over_epochs_multiplier"}
    for name, value in order.items():
        try:
            check_number(names.get(name, name), value)
        except ConfigError as error:
            raise DatasetFormatError(f"dataset.yaml of {reference.path}: {error}") from error
    if "shuffle_over_epochs" in order:
        reference = replace(reference, shuffle_over_epochs_multiplier=order["shuffle_over_epochs"])
    if "max_samples_per_sequence" in order:
        options = replace(options, max_samples_per_sequence=order["max_samples_per_sequence"])
    if "parallel_shard_iters" in order:
        options = replace(options, source=replace(options.source, parallel_shard_iters=order["parallel_shard_iters"]))
    return reference, options


def order_samples(
    opened: OpenedSource, reference: SourceReference, number: int, options: DatasetOptions, repeat: bool
) -> Source:
    """Returns the source of what was opened: its samples, in the order of the job.

    Args:
        opened: The dataset or join.
        reference: Names it, and says how it is shuffled.
        number: Its number among the sources of the job.
        options: Options of the call.
        repeat: Start again after each epoch.

    Raises:
        ConfigError: An option is invalid for it.
    """
    order, config = options.order(reference), options.worker_config
    plan = SourcePlan(
        base=opened.ranges,
        num_streams=1 if options.global_batch_size is not None else config.layout.num_streams,
        seed=config.seed_offset,
        source=number,
        repeat=repeat,
        **order,
    )
    with located(reference.location):
        _check_slices(plan)
    return Source(
        plan,
        opened.reader,
        opened.load,
        name=reference.path,
        config=SourceConfig(
            opened.uuid,
            {
                "split_part": reference.split_part,
                "ranges": _fingerprint(opened.ranges),
                "training": options.training,
                "seed": config.seed_offset,
                "order": order,
                "sample_type": opened.sample_type,
                **({} if reference.subset is None else {"subset": _subset_config(reference.subset)}),
                **({"leaf": number} if number else {}),
            },
        ),
    )


def _subset_config(subset: Subset) -> list[Any]:
    # Which samples a file of keys names is in "ranges": the file may move.
    return [subset.share, subset.numbers, *([] if subset.where is None else [str(subset.where)])]


def _fingerprint(ranges: Slices) -> str:
    """Returns the number of samples and a digest of their ranges: a split may change while the index does not."""
    columns = ((ranges.shard, "<i4"), (ranges.start, "<i8"), (ranges.stop, "<i8"))
    digest = hashlib.blake2b(b"".join(column.astype(kind).tobytes() for column, kind in columns), digest_size=6)
    return f"{ranges.num_samples}-{digest.hexdigest()}"


def _check_slices(plan: SourcePlan) -> None:
    count = len(plan.slices)
    if count * plan.passes_per_epoch > MAX_SLICES and plan.passes_per_epoch > 1:
        raise ConfigError(
            f"shuffle_over_epochs_multiplier={plan.shuffle_over_epochs} would shuffle {count} slices that many "
            f"times at once, and at most {MAX_SLICES} fit into memory. Give a smaller number, or -1 to draw with "
            "replacement."
        )


def _open_folder(
    reference: SourceReference,
    number: int,
    options: DatasetOptions,
    files: Callable[[], tuple[WebdatasetFolder, Slices]],
    identities: Identities,
    factory: SampleFactory | None,
) -> OpenedSource:
    if reference.path.endswith(".tar"):
        what = "is a pattern of shards" if any(mark in reference.path for mark in "{*?[") else "is a single shard"
        raise ConfigError(
            f"{reference.path} {what}. Give the folder that holds the shards: `energon-dali prepare FOLDER` makes a "
            "dataset of it, and split parts choose some of its shards."
        )
    folder, ranges = files()
    load: SampleLoader | FactoryLoader
    recipe: SampleRecipe | None = None
    if factory is None:
        recipe = read_recipe(folder, options.source.sample_type, options.source.field_map)
        if recipe.factory is not None:
            factory = _make_factory(recipe, reference, folder, options)
    if factory is not None:
        load = FactoryLoader(
            factory, dataset_path=folder.path, seed=options.worker_config.seed_offset, source_number=number
        )
        reader = ShardReader(folder, options.source.part_filter or factory.part_filter)
        sample_type = load.sample_type.__name__
    else:
        assert recipe is not None
        load = _loader(recipe, reference.subflavors, folder, number, options)
        reader = _reader(folder, recipe, load, options)
        sample_type = recipe.sample_type.__name__
    ranges = take_subset(ranges, folder.shard_counts, reference.subset)
    order = {} if recipe is None else recipe.order
    return OpenedSource(ranges, reader, load, identities.of(folder), sample_type, order)


def _make_factory(
    recipe: SampleRecipe, reference: SourceReference, folder: WebdatasetFolder, options: DatasetOptions
) -> SampleFactory:
    """Returns the factory that dataset.yaml names, with the arguments that Energon would give."""
    assert recipe.factory is not None
    given = {
        "split_part": reference.split_part,
        "split_config": reference.split_config,
        "training": options.training,
        "worker_config": options.worker_config,
        "shuffle_over_epochs": reference.shuffle_over_epochs_multiplier,
        "max_samples_per_sequence": options.max_samples_per_sequence,
        "decoder": options.decoder,
    }
    if options.source.parallel_shard_iters is not None:
        given["parallel_shard_iters"] = options.source.parallel_shard_iters
    factory = recipe.factory.open_folder(folder.path, {**given, **recipe.factory_options})
    factory.subflavors.update(reference.subflavors)
    return factory


def _open_jsonl(
    reference: SourceReference, number: int, options: DatasetOptions, files: Callable[[], JsonlFile]
) -> OpenedSource:
    chosen = options.source.sample_type
    if chosen is not None and chosen is not CrudeSample:
        raise ConfigError(
            f"{reference.path} is a JSONL file, whose samples are crude, and sample_type={chosen.__name__} was given. "
            "Leave it out, and make samples of that type in a cooker of the task encoder."
        )
    if options.source.field_map is not None:
        raise ConfigError(
            f"{reference.path} is a JSONL file, whose samples are crude, and field_map="
            f"{dict(options.source.field_map)!r} was given. Leave it out, take the fields from `json` in a cooker of "
            "the task encoder, and write field_map in dataset.yaml of other datasets that need it."
        )
    file = files()
    load = SampleLoader(
        decoder=options.encoder.decoder or SampleDecoder(),  # lines are parsed even if media stay bytes
        sample_type=CrudeSample,
        subflavors=dict(reference.subflavors),
        dataset_path=file.path,
        seed=options.worker_config.seed_offset,
        source_number=number,
    )
    ranges = take_subset(file.split_ranges(reference.split_part), [file.num_samples], reference.subset)
    return OpenedSource(ranges, JsonlReader(file), load, file.uuid, CrudeSample.__name__)


def _open_join(
    reference: SourceReference,
    number: int,
    options: DatasetOptions,
    files: Callable[[], tuple[list[ColumnFolder], JoinIndexFile]],
) -> OpenedSource:
    join = reference.join
    assert join is not None, "open_source calls it for joins"
    for name in ("sample_type", "field_map"):
        if getattr(options.source, name) is not None:
            raise ConfigError(
                f"{name}= applies to one dataset, and a join reads several, each with a dataset.yaml. Leave it out."
            )
    joiner = load_joiner(join.joiner, allow_imports=options.source.allow_imports)
    names = [column.name for column in join.columns if column.name is not None]
    if names and getattr(joiner, "__func__", None) is Sample.from_joined.__func__:  # type: ignore[attr-defined]
        raise ConfigError(
            f"{join.joiner.name} takes joined samples by position, and the join names them {', '.join(names)}. Write "
            "the join as a list, give the class a from_joined with these arguments, or join by a function."
        )
    columns, index = files()
    recipes = [read_recipe(column.folder) for column in columns]
    for column, recipe in zip(columns, recipes, strict=True):
        if recipe.factory is not None:
            raise ConfigError(
                f"{column.folder.path} names the class {recipe.factory.__name__} in dataset.yaml, which a join cannot "
                "use. Give it a sample_type and a field_map, or join by a function."
            )
        if recipe.sample_type is CrudeSample and not join.joiner.is_function:
            raise ConfigError(
                f"{column.folder.path} is crude, and from_joined of {join.joiner.name} takes samples with fields. Give "
                "it a sample_type and a field_map in dataset.yaml, or join by a function (`__function__`)."
            )
    loaders = [
        _loader(recipe, column.column.subflavors, column.folder, number, options)
        for column, recipe in zip(columns, recipes, strict=True)
    ]
    readers = [
        _reader(column.folder, recipe, load, options)
        for column, recipe, load in zip(columns, recipes, loaders, strict=True)
    ]
    reader = JoinedReader(index, readers, [column.shards for column in columns])
    load = JoinedSampleLoader(
        loaders,
        joiner,
        names or None,
        subflavors=dict(reference.subflavors),
        seed=options.worker_config.seed_offset,
        source_number=number,
    )
    uuid = "+".join(column.folder.uuid for column in columns)
    return OpenedSource(reader.ranges(reference.subset), reader, load, uuid, join.joiner.name)


def _reader(folder: WebdatasetFolder, recipe: SampleRecipe, load: SampleLoader, options: DatasetOptions) -> ShardReader:
    part_filter = options.source.part_filter or recipe.part_filter or load.part_filter()
    return ShardReader(folder, part_filter, chooser=media_chooser(folder, load.decoder))


def _loader(
    recipe: SampleRecipe, subflavors: Any, folder: WebdatasetFolder, number: int, options: DatasetOptions
) -> SampleLoader:
    return SampleLoader(
        decoder=options.decoder,
        sample_type=recipe.sample_type,
        field_map=recipe.field_map,
        sample_loader=recipe.sample_loader,
        subflavors={**recipe.subflavors, **subflavors},
        dataset_path=folder.path,
        seed=options.worker_config.seed_offset,
        source_number=number,
    )
