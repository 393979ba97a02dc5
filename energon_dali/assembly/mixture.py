"""Opens the sources of a path, and plans the mixture of a metadataset."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from energon_dali.assembly.cook_stage import CookStage, cook, cook_stage
from energon_dali.assembly.identities import Identities
from energon_dali.assembly.measured_plan import mean_sizes, over_samples
from energon_dali.assembly.opened_source import open_source, start_reading
from energon_dali.assembly.options import DatasetOptions, check_path, overridden_build_hooks
from energon_dali.assembly.pipeline import block_size
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.native_source import NativeSourceDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.source import SourceDataset
from energon_dali.decode import DaliDecoder
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.metadataset.document import YAML_SUFFIXES, located
from energon_dali.metadataset.files import files_of_source, files_of_stores, is_local
from energon_dali.metadataset.reference import ResolvedBlend, SourceReference
from energon_dali.metadataset.resolve import resolve
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.measured_rows import MeasuredRows
from energon_dali.plan.mixtures import BlendPlan, ConcatPlan, EpochizedBlendPlan
from energon_dali.plan.packed_batches import PackedBatchPlan
from energon_dali.plan.plan import Plan
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.scheduled import Schedule, ScheduledBlendPlan, WeightPoint
from energon_dali.plan.source import SourcePlan
from energon_dali.samples.base import CrudeSample
from energon_dali.shards.documents.opening import Opening, opening_files


@dataclass(frozen=True)
class LoadedSource:
    """An open dataset, and how its samples are cooked."""

    source: Source
    """Its samples, crude ones as they are."""
    cook: CookStage | None
    """How crude samples are cooked; None if they are not crude, or if the task encoder cooks them itself."""


def open_sources(
    path: object, options: DatasetOptions, *, plain: bool = False
) -> tuple[ResolvedBlend, list[LoadedSource]]:
    """Returns (the references of a path's datasets, the open datasets in the same order).

    Args:
        path: The path that the user gave.
        options: Options of the call.
        plain: The task encoder puts the datasets together itself. They do not repeat, and shuffle over no window, as it
            adds both; and crude samples are not cooked.

    Raises:
        ConfigError: It is not a path, has no such split, an option is invalid for it, or weights change over time and
            the task encoder puts the datasets together.
        DatasetError: A dataset cannot be read. For a metadataset the message names file, line and key.
        UntrustedCodeError: A dataset names or contains code that the user did not allow.
        StorageError: A file cannot be read.
    """
    with opening_files() as opening:
        blend = _resolve(path, options)
        if plain and options.training and blend.schedule is not None:
            hooks = " and ".join(overridden_build_hooks(options.encoder))
            raise ConfigError(
                "The metadataset has weights that change while the job runs, which need global batches, and "
                f"{type(options.encoder).__name__} overrides {hooks}, which exclude them. Use the other hooks and "
                "global_batch_size (docs/global-batches.md#weights-over-time), or constant weights."
            )
        if plain:
            options = replace(options, shuffle_buffer_size=None)
        repeat = options.training and options.repeat and not blend.is_epochized and not plain
        sources = _sources(blend, options, opening, repeat)
        loaded = []
        for reference, source in zip(blend.sources, sources, strict=True):
            with located(reference.location):
                cook = None if plain else _cook_stage(source, reference, options)
                loaded.append(LoadedSource(source, cook))
        return blend, loaded


def _sources(blend: ResolvedBlend, options: DatasetOptions, opening: Opening, repeat: bool) -> list[Source]:
    allow_code = options.source.allow_code
    remote = [source for source in blend.sources if not is_local(source)]
    opening.ahead(file for source in remote for file in files_of_source(source, allow_code=allow_code))
    opening.ahead(file for source in blend.sources if source.aux for file in files_of_stores(source))
    files = [start_reading(reference, options, opening) for reference in blend.sources]
    identities = Identities()
    return [
        open_source(reference, number, options, repeat, read, identities)
        for number, (reference, read) in enumerate(zip(blend.sources, files, strict=True))
    ]


def _resolve(path: object, options: DatasetOptions) -> ResolvedBlend:
    """Returns the references of the datasets that a path names."""
    checked = check_path(path)
    blend = resolve(
        checked,
        options.split_part,
        subflavors=options.source.subflavors,
        shuffle_over_epochs_multiplier=options.shuffle_over_epochs_multiplier,
        subset=options.source.subset,
    )
    files = {"dataset_config": options.source.dataset_config, "split_config": options.source.split_config}
    given = {name: value for name, value in files.items() if value is not None}
    if not given:
        return blend
    if isinstance(checked, Mapping) or checked.endswith(YAML_SUFFIXES):
        raise ConfigError(
            f"{', '.join(given)} was given for a metadataset, whose file has it at each of its datasets. Write it into "
            "the file."
        )
    return replace(blend, sources=tuple(replace(source, **given) for source in blend.sources))  # type: ignore[arg-type]


def _cook_stage(source: Source, reference: SourceReference, options: DatasetOptions) -> CookStage | None:
    """Returns how the samples of a source are cooked; None if they are not crude.

    Args:
        source: Yields samples, or crude samples.
        reference: The dataset that it reads.
        options: Options of the call.

    Raises:
        ConfigError: It has auxiliary stores and no cookers.
    """
    if source.load.sample_type is CrudeSample:
        return cook_stage(source, options, reference.aux)
    if reference.aux:
        raise ConfigError(
            f"{source.name} has the auxiliary stores {', '.join(reference.aux)}, which cookers read from, and its "
            "samples are not crude. Make it a CrudeWebdataset in dataset.yaml, or leave aux out."
        )
    return None


def dataset_of(
    plan: Plan, loaded: Sequence[LoadedSource], options: DatasetOptions, measured: MeasuredRows | None = None
) -> SavableDataset[Any]:
    """Returns the dataset of loaded samples that a plan names: cooked if they are crude, or read by DALI.

    Args:
        plan: Which sample comes when.
        loaded: The datasets that it names.
        options: Options of the call.
        measured: What was measured of their samples, for packs and balance.

    Raises:
        ConfigError: feed="native" cannot read it.
    """
    if options.global_batch_size is not None:
        plan = _global_batches(plan, options, measured)
    dataset = SourceDataset(plan, [one.source for one in loaded], worker_config=options.worker_config)
    decoder = options.encoder.decoder
    if isinstance(decoder, DaliDecoder) and decoder.feed == "native" and decoder.placement == "rank":
        what = ""
        if any(one.cook is not None for one in loaded):
            what = "a crude dataset, whose cookers see media before they are decoded"
        elif not isinstance(plan, SourcePlan):
            what = "one of several datasets" if len(loaded) > 1 else "repeated by blend_epochized"
        if what:
            raise ConfigError(
                f'{loaded[0].source.name} is {what}; feed="native" reads one dataset and yields decoded media. Use '
                'feed="block".'
            )
        return NativeSourceDataset(dataset, decoder, batch_size=block_size(options.batch_size))
    return cook(dataset, [one.cook for one in loaded], options)


def _global_batches(units: Plan, options: DatasetOptions, measured: MeasuredRows | None) -> GlobalBatchPlan:
    """Returns the steps of a job whose units are the rows of a plan.

    Raises:
        ConfigError: The sizes do not fit, or no step is left.
    """
    config = options.worker_config
    assert options.global_batch_size is not None
    assert options.batch_size is not None, "DatasetOptions checks it"
    make = GlobalBatchPlan
    if options.pack_rule is not None:
        make = partial(PackedBatchPlan, rule=options.pack_rule, seed=config.seed_offset)  # type: ignore[assignment]
    batches = make(
        units,
        options.global_batch_size,
        options.batch_size,
        config.world_size,
        max(1, config.num_workers),
        # A validation takes each sample once, whatever the number of ranks.
        options.uneven if options.training else "ragged",
        drop_last=options.batch_drop_last,
        measured=measured,
        balance=options.balance,
    )
    if batches.drop_last and not batches.is_endless and batches.num_samples and not batches.steps_of_epoch(0):
        items, fewer = ("samples", "") if options.packs is None else ("packs", " samples in fewer packs")
        raise ConfigError(
            f"batch_drop_last=True leaves out a step with fewer than {batches.step_size} {items}, and a whole epoch "
            f"has {batches.num_samples}{fewer}. Give a smaller global_batch_size, or leave batch_drop_last out."
        )
    if isinstance(batches, PackedBatchPlan) and config.rank == 0:
        _warn_of_unpacked(batches)
    return batches


_MANY_UNPACKED = 0.05
"""Share of samples in no pack above which a warning says so."""


def _warn_of_unpacked(batches: PackedBatchPlan) -> None:
    count, too_long, unmeasured = batches.count_unpacked()
    if too_long + unmeasured > _MANY_UNPACKED * count:
        warnings.warn(
            f"Of the first {count:,} samples, {too_long + unmeasured:,} are in no pack, so that they are never "
            f"delivered: {too_long:,} are longer than max_length={batches.rule.max_length}, and {unmeasured:,} could "
            "not be measured. Give a larger max_length, or override cut_sample; `energon-dali measure --again` says "
            "why samples cannot be measured.",
            stacklevel=7,
        )


def blended_plan(
    blend: ResolvedBlend, sources: Sequence[Source], options: DatasetOptions, measured: MeasuredRows | None = None
) -> Plan:
    """Returns the plan of the mixture for training: draws from the datasets by weight, or epoch by epoch.

    Args:
        blend: Weights or repetitions of the datasets.
        sources: The datasets, in the same order.
        options: Options of the call.
        measured: What was measured of their samples, if weights hold in tokens or change over them.

    Raises:
        ConfigError: `repeat` is False, and datasets are blended by weight, which has no epochs.
        DatasetError: A dataset with a weight has no sample, or none has.
    """
    repeat, seed = options.repeat, options.worker_config.seed_offset
    if blend.mode == "weights" and not repeat:
        raise ConfigError(
            "repeat=False asks for epochs, but datasets that are blended by weight repeat indefinitely, each at its "
            "own pace. Leave it out, or use blend_epochized in the metadataset."
        )
    plans = [source.plan for source in sources]
    if len(plans) == 1 and not blend.is_epochized:
        return plans[0]
    if blend.mode == "weights":
        weights = tuple(reference.weight or 0.0 for reference in blend.sources)
        if options.global_batch_size is not None:
            return _scheduled(blend, sources, weights, options, measured)
        if blend.schedule is not None:
            raise ConfigError(
                "The metadataset has weights that change while the job runs, over steps or samples of global batches. "
                "Give global_batch_size (docs/global-batches.md#weights-over-time), or constant weights."
            )
        for source, weight in zip(sources, weights, strict=True):
            if weight and not source.num_samples:
                raise DatasetError(
                    f"{source.name} has a weight in the blend and no sample: its split part, or its subset, is empty. "
                    "Give it the weight 0, leave it out, or choose another split part."
                )
        return BlendPlan(tuple(plans), weights, seed)
    times = [reference.repetitions or 0.0 for reference in blend.sources]
    members = tuple(RepeatedPlan(plan, number) for plan, number in zip(_spread(plans), times, strict=True))
    if repeat and not any(member.num_samples for member in members):
        raise DatasetError(
            f"None of {', '.join(source.name for source in sources)} has a sample to repeat: their split parts or "
            "subsets are empty, or repetitions are 0."
        )
    return EpochizedBlendPlan(members, seed, repeat)


def _scheduled(
    blend: ResolvedBlend,
    sources: Sequence[Source],
    weights: tuple[float, ...],
    options: DatasetOptions,
    measured: MeasuredRows | None,
) -> Plan:
    """Returns the blend of a job with global batches, whose weights may change over its steps."""
    schedule = blend.schedule or Schedule((WeightPoint(0, weights),))
    points = [one for point in schedule.points for one in (point, point.towards) if one is not None]
    for number, source in enumerate(sources):
        if not source.num_samples and any(point.weights[number] for point in points):
            raise DatasetError(
                f"{source.name} has a weight in the blend and no sample: its split part, or its subset, is empty. "
                "Give it the weight 0, leave it out, or choose another split part."
            )
    assert options.global_batch_size is not None
    plans = tuple(source.plan for source in sources)
    by_size = options.blend_by is not None
    sizes: tuple[float, ...] = ()
    if by_size or schedule.over == "tokens":
        if measured is None:
            raise ConfigError(
                "The metadataset has weights over tokens, whose points follow from what a task encoder measured. "
                "Give the task encoder, or write `over: samples` or `over: steps`."
            )
        used = [number for number, source in enumerate(sources) if source.num_samples]
        of_used = replace(measured, values=tuple(measured.values[number] for number in used))
        means = mean_sizes(of_used, [sources[number] for number in used], options.pack_rule)
        by_number = dict(zip(used, means, strict=True))
        sizes = tuple(by_number.get(number, 1.0) for number in range(len(sources)))  # nothing is drawn from the others
    if schedule.over == "tokens":
        schedule = over_samples(schedule, sizes, by_size=by_size)
    seed, size = options.worker_config.seed_offset, options.global_batch_size
    return ScheduledBlendPlan(plans, schedule, seed, size, sizes=sizes if by_size else ())


def _spread(plans: Sequence[SourcePlan]) -> list[SourcePlan]:
    """Returns plans of which each gives its remainder to the streams after those that have one already."""
    offset, spread = 0, []
    for plan in plans:
        spread.append(plan.rotated(offset))
        offset += plan.num_samples
    return spread


def chained_plan(sources: Sequence[Source]) -> Plan:
    """Returns the plan of the mixture for validation: the datasets one after the other.

    The remainders of the datasets, which do not divide by the number of streams, go to the streams in turn, so that the
    streams of a validation over many small datasets have about the same length.

    Args:
        sources: The datasets.
    """
    plans = [source.plan for source in sources]
    return plans[0] if len(plans) == 1 else ConcatPlan(tuple(_spread(plans)))
