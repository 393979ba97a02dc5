"""`get_train_dataset` and its kin: from a path and a task encoder to a tree of datasets."""

from __future__ import annotations

import os
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.hook_guard import DEFAULT_FAILURE_TOLERANCE
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.native_source import NativeSourceDataset
from energon_dali.datasets.source import SourceDataset
from energon_dali.decode import DaliDecoder
from energon_dali.errors import ConfigError
from energon_dali.loader.dataset_config import SampleRecipe, read_recipe
from energon_dali.loader.options import (
    AnyEncoder,
    LeafOptions,
    check_numbers,
    check_path,
    check_worker_config,
    take_options,
)
from energon_dali.loader.pipeline import Stages, block_size, build_stages, cook
from energon_dali.plan import OrderSpec
from energon_dali.samples import CrudeSample
from energon_dali.shards import ShardReader, WebdatasetFolder
from energon_dali.worker_config import WorkerConfig

DEFAULT_STREAMS = 4
"""Streams per rank where no worker_config is given; fixed, so that the order does not depend on the machine."""

READ_SIZE = 32
"""Samples that a source asks of its reader at once."""

PathLike = str | os.PathLike[str]


def get_train_dataset(
    path: PathLike,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: AnyEncoder | None = None,
    repeat: bool = True,
    **kwargs: Any,
) -> SavableDataset[Any]:
    """Returns the training dataset of a path: shuffled, repeated, through the task encoder, in batches.

    Args:
        path: A prepared dataset: a folder or URL with a `.nv-meta` folder.
        split_part: Part of the split.
        worker_config: The place of this process in the job; None takes it from torchrun's environment, with 4 streams
            per rank.
        batch_size: Samples per batch; None gives single samples.
        batch_drop_last: Drop a smaller batch at the end of an epoch (with repeat=False).
        packing_buffer_size: Samples from which the task encoder chooses packs; None does not pack.
        shuffle_buffer_size: Window of the sample shuffle per stream; None or 1 shuffles slices alone. Costs no memory
            to speak of.
        max_samples_per_sequence: Longest run of samples that is read in file order; None is a whole shard.
        virtual_epoch_length: Batches per rank after which an epoch ends; 0 never ends.
        shuffle_over_epochs_multiplier: Slices of this many epochs are shuffled together; -1 draws with replacement;
            None keeps file order.
        task_encoder: Hooks and decoder; None is DefaultTaskEncoder().
        repeat: Begin again when all samples came; False ends after one epoch.
        **kwargs: Fields of `LeafOptions`; and, deprecated, options of SampleDecoder.

    Raises:
        ConfigError: An argument cannot work.
        DatasetError: The dataset cannot be read.
    """
    check_numbers(
        batch_size=batch_size, packing_buffer_size=packing_buffer_size, shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence, virtual_epoch_length=virtual_epoch_length,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
    )  # fmt: skip
    config = default_worker_config() if worker_config is None else check_worker_config(worker_config)
    encoder, options = take_options(task_encoder, kwargs)
    stages = Stages(batch_size, batch_drop_last, packing_buffer_size, virtual_epoch_length)
    source = _open_leaf(
        path, split_part, config, encoder, options, repeat=repeat, training=True,
        order={
            "shuffle": True, "max_samples_per_sequence": max_samples_per_sequence,
            "parallel_shard_iters": options.parallel_shard_iters
            or (1 if shuffle_over_epochs_multiplier is None else 16),
            "shuffle_buffer_size": shuffle_buffer_size or 1, "shuffle_over_epochs": shuffle_over_epochs_multiplier,
            "window_in_slice": options.window_in_slice,
        },
    )  # fmt: skip
    return build_stages(_feed(source, encoder, stages), encoder, stages)


def get_val_dataset(
    path: PathLike,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: AnyEncoder | None = None,
    **kwargs: Any,
) -> SavableDataset[Any]:
    """Returns the validation dataset of a path: in file order, each sample once per epoch.

    Args:
        path: A prepared dataset: a folder or URL with a `.nv-meta` folder.
        split_part: Part of the split.
        worker_config: As in `get_train_dataset`.
        batch_size: Samples per batch; None gives single samples.
        batch_drop_last: Drop the smaller batches at the end.
        packing_buffer_size: Samples from which the task encoder chooses packs; None does not pack.
        limit: Batches per rank after which an epoch ends; the next begins at the beginning. None takes all.
        task_encoder: Hooks and decoder; None is DefaultTaskEncoder().
        **kwargs: Fields of `LeafOptions`; and, deprecated, options of SampleDecoder.

    Raises:
        ConfigError: An argument cannot work.
        DatasetError: The dataset cannot be read.
    """
    stages = _val_stages(batch_size, batch_drop_last, packing_buffer_size, limit)
    return _open_val(path, split_part, worker_config, stages, task_encoder, kwargs)[0][0]


def get_val_datasets(
    path: PathLike,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: AnyEncoder | None = None,
    **kwargs: Any,
) -> list[tuple[SavableDataset[Any], SourceDataset]]:
    """Returns (validation dataset, its source) for every dataset that a path stands for; arguments as in
    `get_val_dataset`.

    Raises:
        ConfigError: An argument cannot work.
        DatasetError: A dataset cannot be read.
    """
    stages = _val_stages(batch_size, batch_drop_last, packing_buffer_size, limit)
    return _open_val(path, split_part, worker_config, stages, task_encoder, kwargs)


def default_worker_config() -> WorkerConfig:
    """Returns the configuration where none is given: 4 streams per rank, on as many workers as the cores allow."""
    rank = WorkerConfig.default_worker_config(0)
    cores = len(os.sched_getaffinity(0))
    workers = max(count for count in (1, 2, 4) if count <= max(1, cores))
    return WorkerConfig(
        rank=rank.rank, world_size=rank.world_size, num_workers=workers, num_streams=rank.world_size * DEFAULT_STREAMS
    )


def _val_stages(batch_size: int | None, drop_last: bool, packing_buffer_size: int | None, limit: int | None) -> Stages:
    check_numbers(batch_size=batch_size, packing_buffer_size=packing_buffer_size, limit=limit)
    return Stages(batch_size, drop_last, packing_buffer_size, limit=limit)


def _open_val(
    path: PathLike, split_part: str, worker_config: WorkerConfig | None, stages: Stages,
    task_encoder: AnyEncoder | None, kwargs: dict[str, Any],
) -> list[tuple[SavableDataset[Any], SourceDataset]]:  # fmt: skip
    """Returns what `get_val_datasets` does."""
    config = default_worker_config() if worker_config is None else check_worker_config(worker_config)
    encoder, options = take_options(task_encoder, kwargs, stacklevel=4)
    source = _open_leaf(
        path, split_part, config, encoder, options, repeat=False, training=False,
        order={"shuffle": False, "parallel_shard_iters": options.parallel_shard_iters or 1},
    )  # fmt: skip
    return [(build_stages(_feed(source, encoder, stages), encoder, stages), source)]


def _open_leaf(
    path: PathLike, split_part: str, config: WorkerConfig, encoder: AnyEncoder, options: LeafOptions, *, repeat: bool,
    training: bool, order: dict[str, Any],
) -> SourceDataset:  # fmt: skip
    """Returns the source of one dataset folder."""
    name = check_path(path)
    if name.endswith((".yaml", ".yml", ".jsonl")):
        raise ConfigError(
            f"{name} is a metadataset or a JSONL file, and only folders of tar shards (with .nv-meta) can be opened "
            "so far. Give the path of one dataset folder."
        )
    if name.endswith(".tar"):
        raise ConfigError(f"{name} is a single shard. Give the folder that holds the shards and their .nv-meta.")
    folder = WebdatasetFolder(
        name,
        dataset_config=options.dataset_config,
        split_config=options.split_config,
        trust_dataset_code=options.trust_dataset_code,
    )
    recipe = read_recipe(folder, options.sample_type, options.field_map)
    spec = OrderSpec(
        base=folder.split_ranges(split_part), num_streams=config.layout.num_streams, seed=config.seed_offset, **order
    )
    load = _loader(recipe, encoder, options, folder, config)
    return SourceDataset(
        spec,
        ShardReader(folder, options.part_filter or recipe.part_filter or load.part_filter()),
        load,
        repeat=repeat,
        read_size=READ_SIZE,
        failure_tolerance=DEFAULT_FAILURE_TOLERANCE,
        name=folder.path,
        source_config={
            "uuid": folder.uuid, "split_part": split_part, "training": training, "seed": config.seed_offset,
            "order": order, "sample_type": recipe.sample_type.__name__,
        },
        worker_config=config,
    )  # fmt: skip


def _feed(source: SourceDataset, encoder: AnyEncoder, stages: Stages) -> SavableDataset[Any]:
    """Returns the source, with a cook stage where its samples are crude, or read by DALI where the decoder says so."""
    load, decoder = source.load, encoder.decoder
    crude = load.sample_type is CrudeSample
    if isinstance(decoder, DaliDecoder) and decoder.feed == "native" and decoder.placement == "rank":
        if crude:
            raise ConfigError(
                f'{source.name} is a crude dataset, whose cookers see media before they are decoded; feed="native" '
                'gives them decoded. Use feed="block".'
            )
        return NativeSourceDataset(source, decoder, batch_size=block_size(stages.batch_size))
    return cook(source, encoder, load.subflavors, source.name) if crude else source


def _loader(
    recipe: SampleRecipe, encoder: AnyEncoder, options: LeafOptions, folder: WebdatasetFolder, config: WorkerConfig
) -> SampleLoader:
    return SampleLoader(
        decoder=encoder.decoder,
        sample_type=recipe.sample_type,
        field_map=recipe.field_map,
        sample_loader=recipe.sample_loader,
        subflavors={**recipe.subflavors, **options.subflavors},
        dataset_path=folder.path,
        seed=config.seed_offset,
    )
