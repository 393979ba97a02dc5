"""What the plan of a job takes from measures: lengths for packs, costs for balance, and sizes for weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from energon_dali.assembly.measures import open_measures
from energon_dali.assembly.options import DatasetOptions
from energon_dali.datasets.row_sources import Source
from energon_dali.errors import ConfigError
from energon_dali.metadataset.reference import ResolvedBlend
from energon_dali.plan.measured import TOKENS
from energon_dali.plan.measured_rows import MeasuredRows
from energon_dali.plan.packs import PackRule
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.scheduled import Schedule, WeightPoint

_AT_ONCE = 1 << 20
"""Samples whose lengths are summed at once."""


def open_measured(blend: ResolvedBlend, sources: Sequence[Source], options: DatasetOptions) -> MeasuredRows | None:
    """Returns the measures of all datasets of a job; None if nothing of it needs them.

    Args:
        blend: The references of the datasets.
        sources: The datasets, in the same order.
        options: Options of the call.

    Raises:
        ConfigError: A dataset was not measured with this task encoder, or lacks a value.
    """
    rule = options.pack_rule
    names = set() if rule is None else {rule.length}
    if options.global_batch_size is not None and options.blend_by is not None:
        if len(sources) == 1 or blend.mode != "weights" or not options.training:
            raise ConfigError(
                f"blend_by={options.blend_by!r} needs several datasets that are blended by weight. Give a metadataset "
                "with `blend`, or leave blend_by out."
            )
        names.add(TOKENS)
    if blend.schedule is not None and blend.schedule.over == "tokens":
        names.add(TOKENS)
    exact = bool(names)
    if options.balance is not None:
        names.update(options.balance.cost.columns)
    if not names:
        return None
    estimates = options.allow_estimates and not exact
    values = tuple(
        open_measures(source, reference, options, allow_estimates=estimates)
        for source, reference in zip(sources, blend.sources, strict=True)
    )
    for source, of_source in zip(sources, values, strict=True):
        missing = sorted(names - {TOKENS, *of_source.names})
        if missing:
            raise ConfigError(
                f"{source.name} has no measures named {', '.join(missing)}: it has {', '.join(of_source.names)}. "
                "Return them from measure_sample and measure the dataset again, or name others."
            )
    return MeasuredRows(values, tuple(source.reader.shard_starts for source in sources))


def mean_sizes(measured: MeasuredRows, sources: Sequence[Source], rule: PackRule | None) -> tuple[float, ...]:
    """Returns the mean tokens of a row of each dataset: of its samples in the split part.

    Args:
        measured: The measures.
        sources: The datasets.
        rule: How samples are packed, where they are: those that are in no pack give no tokens, and padding is none.

    Raises:
        ConfigError: No sample of a dataset has tokens.
    """
    means = []
    for values, source in zip(measured.values, sources, strict=True):
        total = count = longest = 0
        for numbers in _numbers_of(source):
            tokens = values.take(TOKENS, numbers)
            longest = max(longest, int(tokens.max(initial=0)))
            if rule is not None:
                tokens = np.where(rule.lengths(values.take(rule.length, numbers)) < 0, 0, tokens)
                if rule.length == TOKENS:
                    tokens = np.minimum(tokens, rule.longest)  # more are cut
            total += int(np.maximum(tokens, 0).sum())
            count += len(tokens)
        if not total and rule is not None and longest > rule.max_length:
            raise ConfigError(
                f"The samples of {source.name} are longer than max_length={rule.max_length}, so that none is in a pack "
                "and they cannot have a share of tokens. Give a larger max_length, override cut_sample, or leave the "
                "dataset out."
            )
        if not total:
            raise ConfigError(
                f"The samples of {source.name} have no measured tokens, so they cannot have a share of tokens. Leave "
                "the dataset out, or blend by samples."
            )
        means.append(total / count)
    return tuple(means)


def _numbers_of(source: Source) -> Iterator[Int64Array]:
    """Yields the numbers of the samples of a split part, many at once: a condition leaves millions of short ranges."""
    base = source.plan.base
    firsts = source.reader.shard_starts[base.shard] + base.start
    ends = np.cumsum(base.lengths)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, _AT_ONCE):
        places = np.arange(begin, min(begin + _AT_ONCE, total))
        ranges = np.searchsorted(ends, places, side="right")
        yield places - (ends - base.lengths)[ranges] + firsts[ranges]


def over_samples(schedule: Schedule, sizes: Sequence[float], *, by_size: bool) -> Schedule:
    """Returns a schedule over samples in place of one over tokens, by the mean sizes of the samples.

    Args:
        schedule: Its points count tokens.
        sizes: Mean tokens of a sample of each dataset.
        by_size: Whether the weights are shares of the tokens, and not of the samples.
    """

    def tokens_per_sample(point: WeightPoint) -> float:
        shares = point.shares(point.at)
        if by_size:
            return 1 / math.fsum(share / size for share, size in zip(shares, sizes, strict=True))
        return math.fsum(share * size for share, size in zip(shares, sizes, strict=True))

    points: list[WeightPoint] = []
    sample = 0
    for point, after in zip(schedule.points, [*schedule.points[1:], None], strict=True):
        begin, rate = sample, tokens_per_sample(point)
        if point.towards is not None:
            rate = (rate + tokens_per_sample(point.towards)) / 2
        if after is not None:
            sample = begin + max(1, round((after.at - point.at) / rate))
        towards = None if point.towards is None else replace(point.towards, at=sample)
        points.append(WeightPoint(begin, point.weights, towards))
    return Schedule(tuple(points), "samples")
