"""Opens one dataset that a path or a metadataset comes down to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from energon_dali.build.dataset_config import SampleRecipe, read_recipe
from energon_dali.build.options import AnyEncoder, LeafOptions
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE
from energon_dali.datasets.load_joined_sample import JoinedSampleLoader
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.native_source import DEFAULT_LANES
from energon_dali.datasets.source import Reader, SourceDataset
from energon_dali.decode import SampleDecoder
from energon_dali.errors import ConfigError, DatasetFormatError, StorageError, UntrustedCodeError
from energon_dali.metadataset.join.columns import ColumnFolder, find_join_index, open_columns
from energon_dali.metadataset.join.joiner import load_joiner
from energon_dali.metadataset.join.reader import JoinedReader
from energon_dali.metadataset.reference import LeafReference
from energon_dali.metadataset.subset import take_subset
from energon_dali.plan import OrderSpec, Slices
from energon_dali.samples import CrudeSample, Sample
from energon_dali.shards import ShardReader, WebdatasetFolder
from energon_dali.shards.jsonl import JsonlFile, JsonlReader
from energon_dali.shards.meta.dataset_config import DEFAULT_NAME
from energon_dali.worker_config import WorkerConfig

MAX_SLICES = 10_000_000
"""Slices that are shuffled together, over all epochs of `shuffle_over_epochs_multiplier`: they take 16 bytes each."""

READ_SIZE = 32
"""Samples that a source asks of its reader at once."""


@dataclass(frozen=True)
class LeafSetting:
    """What all leaves of a job share."""

    encoder: AnyEncoder
    """Its decoder decodes the parts."""
    options: LeafOptions
    """Of the call."""
    worker_config: WorkerConfig
    """The job."""
    training: bool
    """Whether samples are shuffled."""
    repeat: bool
    """Whether each leaf begins again when all its samples came."""
    max_samples_per_sequence: int | None = None
    """Longest run of samples that is read in file order; None is a whole shard."""
    shuffle_buffer_size: int | None = None
    """Window of the sample shuffle."""

    def order(self, leaf: LeafReference) -> dict[str, Any]:
        """Returns how the samples of a leaf are ordered, as arguments of `OrderSpec`."""
        if not self.training:
            return {"shuffle": False, "parallel_shard_iters": self.options.parallel_shard_iters or 1}
        epochs = leaf.shuffle_over_epochs_multiplier
        return {
            "shuffle": True,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "parallel_shard_iters": self.options.parallel_shard_iters or (1 if epochs is None else DEFAULT_LANES),
            "shuffle_buffer_size": self.shuffle_buffer_size or 1,
            "shuffle_over_epochs": epochs,
            "window_in_slice": self.options.window_in_slice,
        }


@dataclass(frozen=True)
class _Opened:
    """A dataset, ready to be put into an order."""

    ranges: Slices
    reader: Reader
    load: SampleLoader
    uuid: str
    sample_type: str


def open_leaf(leaf: LeafReference, number: int, setting: LeafSetting) -> SourceDataset:
    """Returns the source of one dataset.

    Args:
        leaf: What is read.
        number: Number of the leaf in the tree, so that two of one path have different orders.
        setting: What all leaves share.

    Raises:
        ConfigError: An option cannot work for it.
        DatasetError: It cannot be read.
        UntrustedCodeError: It wants to run code that the user did not allow.
        StorageError: A file cannot be read.
    """
    with named_at(leaf):
        open_it = _open_join if leaf.join is not None else _open_jsonl if leaf.is_jsonl else _open_folder
        opened = open_it(leaf, number, setting)
    order, config = setting.order(leaf), setting.worker_config
    spec = OrderSpec(
        base=opened.ranges, num_streams=config.layout.num_streams, seed=config.seed_offset, source=number, **order
    )
    with named_at(leaf):
        _check_slices(spec)
    return SourceDataset(
        spec,
        opened.reader,
        opened.load,
        repeat=setting.repeat,
        read_size=READ_SIZE,
        failure_tolerance=DEFAULT_FAILURE_TOLERANCE,
        name=leaf.path,
        source_config={
            "uuid": opened.uuid,
            "split_part": leaf.split_part,
            "ranges": _fingerprint(opened.ranges),
            "training": setting.training,
            "seed": config.seed_offset,
            "order": order,
            "sample_type": opened.sample_type,
            **({} if leaf.subset is None else {"subset": [leaf.subset.share, leaf.subset.numbers]}),
            **({"leaf": number} if number else {}),
        },
        worker_config=config,
    )


def _fingerprint(ranges: Slices) -> str:
    """Returns the number of samples and a digest of their places: a split may change while the index does not."""
    columns = ((ranges.shard, "<i4"), (ranges.start, "<i8"), (ranges.stop, "<i8"))
    digest = hashlib.blake2b(b"".join(column.astype(kind).tobytes() for column, kind in columns), digest_size=6)
    return f"{ranges.num_samples}-{digest.hexdigest()}"


def _check_slices(spec: OrderSpec) -> None:
    count = len(spec.slices)
    if count * (spec.shuffle_over_epochs or 1) > MAX_SLICES and (spec.shuffle_over_epochs or 1) > 1:
        raise ConfigError(
            f"shuffle_over_epochs_multiplier={spec.shuffle_over_epochs} would shuffle {count} slices so many times at "
            f"once, and at most {MAX_SLICES} fit into memory. Give a smaller number, or -1 to draw with replacement."
        )


@contextmanager
def named_at(leaf: LeafReference) -> Iterator[None]:
    """Puts the place where a leaf is named before errors about it.

    Raises:
        ConfigError: One was raised inside.
        DatasetFormatError: One was raised inside.
        UntrustedCodeError: One was raised inside.
        StorageError: One was raised inside.
    """
    try:
        yield
    except (ConfigError, DatasetFormatError, UntrustedCodeError, StorageError) as error:
        if leaf.place is None or str(error).startswith(str(leaf.place)):
            raise
        # Kinds of these errors beyond the four take other arguments; what counts is that they are caught as them.
        kinds = (ConfigError, DatasetFormatError, UntrustedCodeError, StorageError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        raise kind(f"{leaf.place}: {error}") from error


def _open_folder(leaf: LeafReference, number: int, setting: LeafSetting) -> _Opened:
    options = setting.options
    if leaf.path.endswith(".tar"):
        raise ConfigError(f"{leaf.path} is a single shard. Give the folder that holds the shards and their .nv-meta.")
    folder = WebdatasetFolder(
        leaf.path,
        dataset_config=leaf.dataset_config or DEFAULT_NAME,
        split_config=leaf.split_config,
        trust_dataset_code=options.trust_dataset_code,
    )
    recipe = read_recipe(folder, options.sample_type, options.field_map)
    load = _loader(recipe, leaf.subflavors, folder, number, setting)
    return _Opened(
        take_subset(folder.split_ranges(leaf.split_part), folder.shard_counts, leaf.subset),
        _reader(folder, recipe, load, options),
        load,
        folder.uuid,
        recipe.sample_type.__name__,
    )


def _open_jsonl(leaf: LeafReference, number: int, setting: LeafSetting) -> _Opened:
    chosen = setting.options.sample_type
    if chosen is not None and chosen is not CrudeSample:
        raise ConfigError(
            f"{leaf.path} is a JSONL file, whose samples are crude, and sample_type={chosen.__name__} was given. Leave "
            "it out, and make samples of that type by a cooker of the task encoder."
        )
    file = JsonlFile(leaf.path)
    load = SampleLoader(
        decoder=setting.encoder.decoder or SampleDecoder(),  # lines are parsed also where media stay bytes
        sample_type=CrudeSample,
        subflavors=dict(leaf.subflavors),
        dataset_path=file.path,
        seed=setting.worker_config.seed_offset,
        leaf=number,
    )
    ranges = take_subset(file.split_ranges(leaf.split_part), [file.num_samples], leaf.subset)
    return _Opened(ranges, JsonlReader(file), load, file.uuid, CrudeSample.__name__)


def _open_join(leaf: LeafReference, number: int, setting: LeafSetting) -> _Opened:
    options, join = setting.options, leaf.join
    assert join is not None, "only joins come here"
    for name in ("sample_type", "field_map"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"{name}= is of one dataset, and a join reads several. Leave it out: each has its own dataset.yaml."
            )
    joiner = load_joiner(join.joiner, leaf.place, trust_dataset_code=options.trust_dataset_code)
    names = [column.name for column in join.columns if column.name is not None]
    if names and getattr(joiner, "__func__", None) is Sample.from_joined.__func__:  # type: ignore[attr-defined]
        raise ConfigError(
            f"{join.joiner.name} takes joined samples by position, and the join names them {', '.join(names)}. Write "
            "the join as a list, give the class a from_joined with these arguments, or join by a function."
        )
    columns = open_columns(join.columns, leaf.place, trust_dataset_code=options.trust_dataset_code)
    recipes = [read_recipe(column.folder) for column in columns]
    for column, recipe in zip(columns, recipes, strict=True):
        if recipe.sample_type is CrudeSample and not join.joiner.is_function:
            raise ConfigError(
                f"{column.folder.path} is crude, and from_joined of {join.joiner.name} takes samples with fields. Give "
                "it a sample_type and a field_map in dataset.yaml, or join by a function (`__function__`)."
            )
    loaders = [
        _loader(recipe, column.column.subflavors, column.folder, number, setting)
        for column, recipe in zip(columns, recipes, strict=True)
    ]
    readers = [
        _reader(column.folder, recipe, load, options)
        for column, recipe, load in zip(columns, recipes, loaders, strict=True)
    ]
    reader = JoinedReader(find_join_index(leaf, columns), readers, [column.shards for column in columns])
    load = JoinedSampleLoader(
        loaders,
        joiner,
        names or None,
        subflavors=dict(leaf.subflavors),
        seed=setting.worker_config.seed_offset,
        leaf=number,
    )
    return _Opened(reader.ranges(leaf.subset), reader, load, _join_uuid(columns), join.joiner.name)


def _join_uuid(columns: Sequence[ColumnFolder]) -> str:
    return "+".join(column.folder.uuid for column in columns)


def _reader(folder: WebdatasetFolder, recipe: SampleRecipe, load: SampleLoader, options: LeafOptions) -> ShardReader:
    return ShardReader(folder, options.part_filter or recipe.part_filter or load.part_filter())


def _loader(
    recipe: SampleRecipe, subflavors: Any, folder: WebdatasetFolder, number: int, setting: LeafSetting
) -> SampleLoader:
    return SampleLoader(
        decoder=setting.encoder.decoder,
        sample_type=recipe.sample_type,
        field_map=recipe.field_map,
        sample_loader=recipe.sample_loader,
        subflavors={**recipe.subflavors, **subflavors},
        dataset_path=folder.path,
        seed=setting.worker_config.seed_offset,
        leaf=number,
    )
