"""`get_train_dataset` and its counterparts for validation: from a path and a task encoder to a tree of datasets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_dali.assembly.builder import Builder
from energon_dali.assembly.measured_plan import open_measured
from energon_dali.assembly.mixture import LoadedSource, blended_plan, chained_plan, dataset_of, open_sources
from energon_dali.assembly.options import DATASET_OPTIONS, AnyEncoder, DatasetOptions, overridden_build_hooks
from energon_dali.assembly.pipeline import build_stages
from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.followed import FollowedDataset
from energon_dali.datasets.grouping.global_batch import OnMissing
from energon_dali.datasets.mixing.measured_blend import BlendBy
from energon_dali.datasets.row_sources import Source
from energon_dali.errors import ConfigError, EmptyDatasetError
from energon_dali.metadataset.reference import ResolvedBlend, SourceReference
from energon_dali.plan.balance import Balance
from energon_dali.plan.global_step import Uneven
from energon_dali.shards.documents.content import excerpt
from energon_dali.task_encoder.planned_packs import PlannedPacks
from energon_dali.worker_config import WorkerConfig

AnyPath = str | os.PathLike[str] | Mapping[str, Any]
"""A folder, a metadataset or a JSONL file, as a path or URL; or a metadataset as a dict."""


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
    global_batch_size: int | None = None,
    uneven: Uneven = "error",
    on_missing: OnMissing = "spare",
    packs: PlannedPacks | None = None,
    balance: Balance | None = None,
    allow_estimates: bool = False,
    **kwargs: Any,
) -> SavableDataset[Any]:
    """Returns the training dataset of a path: shuffled, repeated, through the task encoder, in batches.

    Args:
        path: A prepared dataset (a folder or URL with a `.nv-meta` folder), a metadataset (.yaml, or a dict), or a
            .jsonl file.
        split_part: Part of the split, such as "train".
        worker_config: Rank, world size, workers and streams of this process; None takes them from torchrun's
            environment, with 4 streams per rank, on up to 4 workers.
        batch_size: Samples per batch; None yields single samples.
        batch_drop_last: Drop a smaller batch at the end of an epoch (with repeat=False). Cost: the samples of that
            batch are not trained on.
        packing_buffer_size: Number of samples from which the task encoder chooses packs; None does not pack. Cost:
            memory for that many encoded samples per stream, and the first batch waits for a full buffer.
        packing_first_buffer_size: Number of samples in the first packing buffer, which doubles each round up to
            packing_buffer_size, so that the first batch arrives early; None waits for a full buffer. Cost: more padding
            in the first packs, which are chosen from fewer samples.
        shuffle_buffer_size: Window of the sample shuffle in samples per stream; None or 1 shuffles only slices. Cost:
            hardly any memory, as the window holds numbers; more scattered reads.
        max_samples_per_sequence: Most samples that are read in file order; None is a whole shard. Cost: more scattered
            reads, the smaller it is.
        virtual_epoch_length: Batches per rank after which an epoch ends; 0 never ends it. Inside another dataset,
            batches of the job.
        shuffle_over_epochs_multiplier: Number of epochs whose slices are shuffled together; -1 draws with replacement;
            None keeps file order.
        blend_by: Unit of the weights of a metadataset: None is samples; "tokens" counts text (the field tokens,
            input_ids or length) and vision tokens of encoded samples, or with global_batch_size takes the means of what
            was measured; or a function from an encoded sample to a number. Cost: a count or a call for each encoded
            sample.
        task_encoder: Hooks and decoder; None is DefaultTaskEncoder().
        repeat: Start again after each epoch; False ends after one.
        global_batch_size: Samples that all ranks together take in one step (docs/global-batches.md). The steps then do
            not depend on the number of ranks and workers, and batch_size is the size of a micro-batch. None divides the
            samples among streams. Cost: a comparison of all ranks before the first batch (`check_plan` of the loader).
        uneven: With global_batch_size, if it is not a multiple of world_size x batch_size: "error"; "round_down" takes
            the next smaller multiple; "ragged" deals the ranks counts that differ by one. Cost: "round_down" makes
            smaller steps; "ragged" lets ranks wait for those with one sample more.
        on_missing: With global_batch_size, what takes the place of a sample that fails: "spare", another one of its
            dataset; "shrink", nothing.
        packs: With global_batch_size, which then counts packs, as batch_size does: how samples are packed by the
            lengths that `energon-dali measure` stored (docs/balance.md). None does not pack. Cost: a pass of
            `energon-dali measure` over the dataset before training.
        balance: With global_batch_size, how the samples or packs of a step are dealt so that no rank waits for another,
            by what was measured. None deals them in their order. Cost: a pass of `energon-dali measure` over the
            dataset before training.
        allow_estimates: Let balance take estimates from the sizes of files where a dataset was not measured. Cost: a
            less even deal.
        **kwargs: Fields of `SourceOptions`; also, deprecated, options of SampleDecoder.

    Raises:
        ConfigError: An argument is invalid.
        DatasetError: The dataset cannot be read, or has no samples to repeat (EmptyDatasetError).
    """
    options = _options_of(locals(), training=True)
    asked = _describe_call("get_train_dataset", path, options)
    if options.is_follower:
        return FollowedDataset(options.worker_config, asked)
    blend, opened = open_sources(path, options, plain=bool(overridden_build_hooks(options.encoder)))
    if repeat:
        _refuse_empty(blend.sources, opened, split_part, hint=".")
    return _tree_of(blend, opened, options, asked)


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
    global_batch_size: int | None = None,
    packs: PlannedPacks | None = None,
    balance: Balance | None = None,
    allow_estimates: bool = False,
    **kwargs: Any,
) -> SavableDataset[Any]:
    """Returns the validation dataset of a path: in file order, each sample once per epoch.

    Args:
        path: A prepared dataset (a folder or URL with a `.nv-meta` folder), a metadataset (.yaml, or a dict), or a
            .jsonl file.
        split_part: Part of the split, such as "train".
        worker_config: As in `get_train_dataset`.
        batch_size: Samples per batch; None yields single samples.
        batch_drop_last: Drop the smaller batches at the end of an epoch. Cost: the samples of these batches are not
            validated on.
        packing_buffer_size: Number of samples from which the task encoder chooses packs; None does not pack. Cost:
            memory for that many encoded samples per stream.
        limit: Batches per rank after which an epoch ends; the next epoch starts from the beginning. None or 0
            takes all. Inside another dataset, batches of the job.
        allow_empty: Accept a split part without samples, whose epochs are empty. By default it is an error.
        task_encoder: Hooks and decoder; None is DefaultTaskEncoder().
        global_batch_size: Samples that all ranks together take in one step; each sample comes once and all ranks
            deliver equally many batches, on any number of ranks. A batch that holds none of the data has num_units 0
            (docs/global-batches.md). None divides the samples among streams. Cost: a comparison of all ranks before the
            first batch (`check_plan` of the loader).
        packs: As in `get_train_dataset`.
        balance: As in `get_train_dataset`.
        allow_estimates: As in `get_train_dataset`.
        **kwargs: Fields of `SourceOptions`; also, deprecated, options of SampleDecoder.

    Raises:
        ConfigError: An argument is invalid.
        DatasetError: The dataset cannot be read, or has no samples (EmptyDatasetError).
    """
    options = _options_of(locals(), training=False)
    asked = _describe_call("get_val_dataset", path, options)
    if options.is_follower:
        return FollowedDataset(options.worker_config, asked)
    blend, opened = open_sources(path, options, plain=bool(overridden_build_hooks(options.encoder)))
    if not allow_empty:
        _refuse_empty(blend.sources, opened, split_part)
    return _tree_of(blend, opened, options, asked)


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
    global_batch_size: int | None = None,
    packs: PlannedPacks | None = None,
    balance: Balance | None = None,
    allow_estimates: bool = False,
    **kwargs: Any,
) -> list[tuple[SavableDataset[Any], Source]]:
    """Returns (validation dataset, its source) for every dataset that a path names; arguments as in `get_val_dataset`.

    Raises:
        ConfigError: An argument is invalid.
        DatasetError: A dataset cannot be read, or has no samples (EmptyDatasetError).
    """
    options = _options_of(locals(), training=False)
    if options.is_follower:
        raise ConfigError(
            "get_val_datasets opens what it lists, and another rank opens datasets for this one. Give the datasets to "
            "get_val_dataset one by one, or let every rank read (leave `shared` out of this WorkerConfig)."
        )
    asked = _describe_call("get_val_datasets", path, options)
    blend, opened = open_sources(path, options, plain=bool(overridden_build_hooks(options.encoder)))
    for reference, one in () if allow_empty else zip(blend.sources, opened, strict=True):
        _refuse_empty([reference], [one], split_part)
    return [
        (_tree_of(replace(blend, sources=(reference,)), [one], options, asked), one.source)
        for reference, one in zip(blend.sources, opened, strict=True)
    ]


def _options_of(call: dict[str, Any], *, training: bool) -> DatasetOptions:
    """Returns the options of a call of one of the functions above.

    Args:
        call: All of its arguments, by name.
        training: Whether it opens a dataset for training.
    """
    own = {name: value for name, value in call.items() if name not in ("path", "allow_empty")}
    return DatasetOptions.of_call(
        own.pop("task_encoder"), own.pop("worker_config"), own.pop("kwargs"), training=training, **own
    )


def _tree_of(
    blend: ResolvedBlend, opened: Sequence[LoadedSource], options: DatasetOptions, asked: str
) -> SavableDataset[Any]:
    """Returns the tree of datasets over open sources, whose references `blend` has in the same order.

    Args:
        blend: The references.
        opened: The sources.
        options: Options of the call.
        asked: How the program asked for the dataset.
    """
    sources = [one.source for one in opened]
    if overridden_build_hooks(options.encoder):
        tree = Builder(blend, sources, options).build()
    else:
        measured = open_measured(blend, sources, options)
        plan = blended_plan(blend, sources, options, measured) if options.training else chained_plan(sources)
        tree = build_stages(dataset_of(plan, opened, options, measured), options)
    tree.__dict__["asked_as"] = asked
    return tree


def _describe_call(function: str, path: AnyPath, options: DatasetOptions) -> str:
    """Returns how a program asked for a dataset: ranks that share its batches compare it."""
    numbers = {name: getattr(options, name) for name in ("batch_size", "global_batch_size", "packing_buffer_size")}
    given = "".join(f", {name}={value}" for name, value in numbers.items() if value is not None)
    return f"{function}({excerpt(path)}, split_part={options.split_part!r}{given})"


def _refuse_empty(
    references: Sequence[SourceReference],
    opened: Sequence[LoadedSource],
    split_part: str,
    hint: str = ", or pass allow_empty=True to validate on nothing.",
) -> None:
    """Refuses datasets that have no samples in total: training or validation on nothing would look like success."""
    if not any(one.source.num_samples for one in opened):
        subsets = [reference.subset for reference in references]
        conditions = sorted({str(one.where) for one in subsets if one is not None and one.where is not None})
        files = sorted({str(one.keys) for one in subsets if one is not None and one.keys is not None})
        if files and not conditions:
            raise EmptyDatasetError(
                f"{', '.join(one.source.name for one in opened)} has no sample in the split part {split_part!r} that "
                f"{', '.join(files)} names: it names none, or they are in other parts of the split or outside of "
                f"`range`. Name some that are there, or choose another split_part{hint}"
            )
        if conditions:
            raise EmptyDatasetError(
                f"{', '.join(one.source.name for one in opened)} has no sample in the split part {split_part!r} that "
                f"fulfils where: {' and '.join(conditions)}. `energon-dali info` shows the range of each measure. "
                f"Write a condition that some samples fulfil{hint}"
            )
        raise EmptyDatasetError(
            f"{', '.join(one.source.name for one in opened)} has no sample in the split part {split_part!r}. Prepare "
            f"the dataset with a split that gives this part some (a split takes whole shards), or choose another "
            f"split_part{hint}"
        )
