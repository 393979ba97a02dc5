"""`get_train_dataset` and its kin: from a path and a task encoder to a tree of datasets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from energon_dali.build.cook_stage import cook
from energon_dali.build.leaves import blend_leaves, chain_leaves, is_epochized, resolve_path
from energon_dali.build.options import DATASET_OPTIONS, AnyEncoder, check_numbers, check_worker_config, take_options
from energon_dali.build.pipeline import Stages, block_size, build_stages
from energon_dali.build.source import LeafSetting, named_at, open_leaf
from energon_dali.cache import open_store
from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.measured_blend import BlendBy
from energon_dali.datasets.native_source import NativeSourceDataset
from energon_dali.datasets.source import SourceDataset
from energon_dali.decode import DaliDecoder
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.metadataset.reference import LeafReference, ResolvedBlend
from energon_dali.samples import CrudeSample
from energon_dali.worker_config import WorkerConfig

DEFAULT_STREAMS = 4
"""Streams per rank where no worker_config is given; fixed, so that the order does not depend on the machine."""

AnyPath = str | os.PathLike[str] | Mapping[str, Any]
"""A folder, a metadataset or JSONL file, each as a path or URL; or a metadataset as a dict."""


@explain_call(options=DATASET_OPTIONS)
def get_train_dataset(
    path: AnyPath,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    packing_first_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    blend_by: BlendBy | None = None,
    task_encoder: AnyEncoder | None = None,
    repeat: bool = True,
    **kwargs: Any,
) -> SavableDataset[Any]:
    """Returns the training dataset of a path: shuffled, repeated, through the task encoder, in batches.

    Args:
        path: A prepared dataset (a folder or URL with a `.nv-meta` folder), a metadataset (.yaml, or a dict), or a
            .jsonl file.
        split_part: Part of the split.
        worker_config: The place of this process in the job; None takes it from torchrun's environment, with 4 streams
            per rank.
        batch_size: Samples per batch; None gives single samples.
        batch_drop_last: Drop a smaller batch at the end of an epoch (with repeat=False).
        packing_buffer_size: Samples from which the task encoder chooses packs; None does not pack.
        packing_first_buffer_size: Samples of the first round, which each round doubles up to packing_buffer_size, so
            that the first batch comes soon; None waits for a full buffer.
        shuffle_buffer_size: Window of the sample shuffle per stream; None or 1 shuffles slices alone. Costs no memory
            to speak of.
        max_samples_per_sequence: Longest run of samples that is read in file order; None is a whole shard.
        virtual_epoch_length: Batches per rank after which an epoch ends; 0 never ends.
        shuffle_over_epochs_multiplier: Slices of this many epochs are shuffled together; -1 draws with replacement;
            None keeps file order.
        blend_by: Unit in which the weights of a metadataset hold: None are samples; "tokens" the lengths of encoded
            samples (their field tokens, input_ids or length); or a function from an encoded sample to a number.
        task_encoder: Hooks and decoder; None is DefaultTaskEncoder().
        repeat: Begin again when all samples came; False ends after one epoch.
        **kwargs: Fields of `LeafOptions`; and, deprecated, options of SampleDecoder.

    Raises:
        ConfigError: An argument cannot work.
        DatasetError: The dataset cannot be read.
    """
    check_numbers(
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        packing_first_buffer_size=packing_first_buffer_size,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        virtual_epoch_length=virtual_epoch_length,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
    )
    config = default_worker_config() if worker_config is None else check_worker_config(worker_config)
    encoder, options = take_options(task_encoder, kwargs)
    stages = Stages(
        batch_size,
        batch_drop_last,
        packing_buffer_size,
        packing_first_buffer_size,
        virtual_epoch_length=virtual_epoch_length,
        blend_by=blend_by,
    )
    blend = resolve_path(path, split_part, options, shuffle_over_epochs_multiplier)
    setting = LeafSetting(
        encoder,
        options,
        config,
        training=True,
        repeat=repeat and not is_epochized(blend),
        max_samples_per_sequence=max_samples_per_sequence,
        shuffle_buffer_size=shuffle_buffer_size,
    )
    feeds = [feed for feed, _ in _open_leaves(blend, setting, stages)]
    return build_stages(blend_leaves(blend, feeds, repeat=repeat), encoder, stages)


@explain_call(options=DATASET_OPTIONS)
def get_val_dataset(
    path: AnyPath,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    allow_empty: bool = False,
    task_encoder: AnyEncoder | None = None,
    **kwargs: Any,
) -> SavableDataset[Any]:
    """Returns the validation dataset of a path: in file order, each sample once per epoch.

    Args:
        path: A prepared dataset (a folder or URL with a `.nv-meta` folder), a metadataset (.yaml, or a dict), or a
            .jsonl file.
        split_part: Part of the split.
        worker_config: As in `get_train_dataset`.
        batch_size: Samples per batch; None gives single samples.
        batch_drop_last: Drop the smaller batches at the end.
        packing_buffer_size: Samples from which the task encoder chooses packs; None does not pack.
        limit: Batches per rank after which an epoch ends; the next begins at the beginning. None takes all.
        allow_empty: Accept a split part without any sample, whose epochs give nothing. By default it is an error.
        task_encoder: Hooks and decoder; None is DefaultTaskEncoder().
        **kwargs: Fields of `LeafOptions`; and, deprecated, options of SampleDecoder.

    Raises:
        ConfigError: An argument cannot work.
        DatasetError: The dataset cannot be read, or has no sample.
    """
    stages = _val_stages(batch_size, batch_drop_last, packing_buffer_size, limit)
    leaves, setting = _open_val(path, split_part, worker_config, stages, task_encoder, kwargs)
    if not allow_empty:
        _refuse_empty([source for _, source in leaves], split_part)
    return build_stages(chain_leaves([feed for feed, _ in leaves]), setting.encoder, stages)


@explain_call(options=DATASET_OPTIONS)
def get_val_datasets(
    path: AnyPath,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    allow_empty: bool = False,
    task_encoder: AnyEncoder | None = None,
    **kwargs: Any,
) -> list[tuple[SavableDataset[Any], SourceDataset]]:
    """Returns (validation dataset, its source) for every dataset that a path stands for; arguments as in
    `get_val_dataset`.

    Raises:
        ConfigError: An argument cannot work.
        DatasetError: A dataset cannot be read, or has no sample.
    """
    stages = _val_stages(batch_size, batch_drop_last, packing_buffer_size, limit)
    leaves, setting = _open_val(path, split_part, worker_config, stages, task_encoder, kwargs)
    if not allow_empty:
        for _, source in leaves:
            _refuse_empty([source], split_part)
    return [(build_stages(feed, setting.encoder, stages), source) for feed, source in leaves]


def _refuse_empty(sources: Sequence[SourceDataset], split_part: str) -> None:
    """Refuses datasets that have no sample together: a validation over nothing looks like one that succeeded."""
    if not any(source.order.base.num_samples for source in sources):
        raise DatasetError(
            f"{', '.join(source.name for source in sources)} has no sample in the split part {split_part!r}. Prepare "
            "the dataset with a split that gives it some (a split takes whole shards), choose another split_part, or "
            "pass allow_empty=True to validate on nothing."
        )


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
    path: AnyPath,
    split_part: str,
    worker_config: WorkerConfig | None,
    stages: Stages,
    task_encoder: AnyEncoder | None,
    kwargs: dict[str, Any],
) -> tuple[list[tuple[SavableDataset[Any], SourceDataset]], LeafSetting]:
    """Returns (what is fed to the stages and its source, of each leaf; what they share)."""
    config = default_worker_config() if worker_config is None else check_worker_config(worker_config)
    encoder, options = take_options(task_encoder, kwargs, stacklevel=5)
    setting = LeafSetting(encoder, options, config, training=False, repeat=False)
    return _open_leaves(resolve_path(path, split_part, options, 1), setting, stages), setting


def _open_leaves(
    blend: ResolvedBlend, setting: LeafSetting, stages: Stages
) -> list[tuple[SavableDataset[Any], SourceDataset]]:
    """Returns (what is fed to the stages, its source) of each leaf."""
    if len(blend.leaves) > 1:
        mixed: str | None = "one of several datasets"
    else:
        mixed = "repeated by blend_epochized" if is_epochized(blend) else None
    sources = [open_leaf(leaf, number, setting) for number, leaf in enumerate(blend.leaves)]
    feeds = []
    for leaf, source in zip(blend.leaves, sources, strict=True):
        with named_at(leaf):
            feeds.append(_feed(source, leaf, setting.encoder, stages, mixed))
    return list(zip(feeds, sources, strict=True))


def _feed(
    source: SourceDataset, leaf: LeafReference, encoder: AnyEncoder, stages: Stages, mixed: str | None
) -> SavableDataset[Any]:
    """Returns the source, with a cook stage where its samples are crude, or read by DALI where the decoder says so.

    Args:
        source: Gives samples, or crude samples.
        leaf: What is read.
        encoder: Its decoder says what reads.
        stages: Sizes.
        mixed: What the dataset is, if a mixture draws from it.

    Raises:
        ConfigError: The native feed cannot read the dataset, or it has auxiliary stores and no cookers.
    """
    load, decoder = source.load, encoder.decoder
    crude = load.sample_type is CrudeSample
    if isinstance(decoder, DaliDecoder) and decoder.feed == "native" and decoder.placement == "rank":
        if crude or mixed:
            what = "a crude dataset, whose cookers see media before they are decoded" if crude else mixed
            raise ConfigError(
                f'{source.name} is {what}; feed="native" reads one dataset and gives its media decoded. Use '
                'feed="block".'
            )
        return NativeSourceDataset(source, decoder, batch_size=block_size(stages.batch_size))
    if not crude and leaf.aux:
        raise ConfigError(
            f"{source.name} has the auxiliary stores {', '.join(leaf.aux)}, which cookers read from, and its samples "
            "are not crude. Make it a CrudeWebdataset in dataset.yaml, or leave aux out."
        )
    if not crude:
        return source
    stores = {name: open_store(reference.form) for name, reference in leaf.aux.items()}
    return cook(source, encoder, load.subflavors, source.name, stores, samples_per_batch=stages.batch_size or 1)
