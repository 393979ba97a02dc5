"""Opens the measures of a dataset for a task encoder, and checks that they are of this data and these hooks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_dali.assembly.fingerprint import describe_difference, fingerprint_of
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.row_sources import RawReader, Source
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.errors import ConfigError, DatasetError, StorageError
from energon_dali.metadataset.reference import ResolvedBlend, SourceReference
from energon_dali.plan.measured import TEXT_TOKENS, VISION_TOKENS, SampleValues
from energon_dali.plan.slices import Slices, filter_slices
from energon_dali.shards import JsonlReader, ShardReader
from energon_dali.shards.measures.description import fingerprint_digest
from energon_dali.shards.measures.estimated import EstimatedValues
from energon_dali.shards.measures.measure_file import MeasureFile
from energon_dali.shards.measures.places import MeasuredData, measure_files, places_of, stale_reason

if TYPE_CHECKING:
    from energon_dali.assembly.mixture import LoadedSource
    from energon_dali.assembly.options import DatasetOptions


IGNORES_CONDITIONS = "ignores_conditions"
"""Attribute of a task encoder that stands for none: tools that look at samples without hooks look at all of them."""


def open_measures(
    source: Source | LoadedSource,
    reference: SourceReference,
    options: DatasetOptions,
    *,
    allow_estimates: bool = False,
) -> SampleValues:
    """Returns the measures of an opened dataset by the task encoder of a call.

    Args:
        source: The opened dataset.
        reference: Names it.
        options: Has the task encoder.
        allow_estimates: Without measures, estimate them from sizes in the index: for balancing alone.

    Raises:
        ConfigError: It was not measured, or its measures are stale or damaged. The message names the dataset, what
            differs, and the command to run.
        StorageError: A file cannot be read.
    """
    plain = source if isinstance(source, Source) else source.source
    return _open(plain.reader, plain.load, reference, options, allow_estimates)


def filter_ranges(
    ranges: Slices, reader: RawReader, load: SampleLoader, reference: SourceReference, options: DatasetOptions
) -> Slices:
    """Returns the samples of a dataset that fulfil the condition of its subset, by their measures.

    Args:
        ranges: The samples of the split part and of the subset's range.
        reader: Reads the dataset.
        load: Makes its samples.
        reference: Names it, and has the subset.
        options: Has the task encoder.

    Raises:
        ConfigError: See `open_measures`; or the condition names an unknown measure.
    """
    where = None if reference.subset is None else reference.subset.where
    if where is None or getattr(options.encoder, IGNORES_CONDITIONS, False):
        return ranges
    measures = _open(reader, load, reference, options, False)
    names = where.names
    return filter_slices(
        ranges,
        reader.shard_starts,
        lambda numbers: where.holds({name: measures.take(name, numbers) for name in names}),
    )


def _open(
    reader: RawReader, load: SampleLoader, reference: SourceReference, options: DatasetOptions, allow_estimates: bool
) -> SampleValues:
    data = data_of(reader, reference.path)
    fingerprint = fingerprint_of(load, options.encoder, reference)
    problem = ""
    for place in places_of(data, fingerprint_digest(fingerprint)):
        try:
            found = MeasureFile(place)
        except FileNotFoundError:
            continue
        except DatasetError as error:
            raise ConfigError(f"{reference.path}: {error} {_remedy(reference, options)}") from error
        stale = stale_reason(found.description, data)
        if not stale:
            return found
        problem = problem or stale
    if allow_estimates:
        return EstimatedValues(data, _part_kind, getattr(reader, "part_filter", None))
    problem = problem or _nearest(data, fingerprint)
    encoder = type(options.encoder).__name__
    raise ConfigError(
        f"{reference.path} has no measures of its samples by {encoder}{problem}. {_remedy(reference, options)}"
    )


def data_of(reader: Any, name: str) -> MeasuredData:
    """Returns the dataset that a source reads.

    Args:
        reader: Of the source.
        name: Path of the source, for the message.

    Raises:
        ConfigError: It is a join.
    """
    if isinstance(reader, ShardReader):
        return reader.folder
    if isinstance(reader, JsonlReader):
        return reader.file
    raise ConfigError(
        f"{name} is joined with other datasets, and samples of a join cannot be measured. Measure datasets without "
        "a join, or write the joined samples as a dataset of their own."
    )


def _nearest(data: MeasuredData, fingerprint: dict[str, str]) -> str:
    """Returns how the measures that there are differ, as the end of a sentence; "" if there are none."""
    try:
        known = [one.description for _, one in measure_files(data) if isinstance(one, MeasureFile)]
    except (DatasetError, StorageError, OSError):
        return ""
    if not known:
        return ""
    common = [sum(one.fingerprint.get(name) == value for name, value in fingerprint.items()) for one in known]
    nearest = known[common.index(max(common))]
    return f". There are measures by {nearest.encoder}: {describe_difference(nearest.fingerprint, fingerprint)}"


def mean_tokens(blend: ResolvedBlend, sources: Sequence[LoadedSource], options: DatasetOptions) -> float | None:
    """Returns the mean measured length of the samples of a mixture in tokens; None if one of its datasets has none.

    Args:
        blend: The references of the datasets, with their weights or repetitions.
        sources: The opened datasets, in the same order.
        options: Has the task encoder.
    """
    tokens = samples = 0.0
    for reference, one in zip(blend.sources, sources, strict=True):
        share = reference.weight
        if share is None:
            share = one.source.num_samples * (1.0 if reference.repetitions is None else reference.repetitions)
        if not share:
            continue
        try:
            measures = open_measures(one, reference, options)
        except ConfigError:
            return None
        assert isinstance(measures, MeasureFile), "estimates were not asked for"
        found = measures.description
        totals = {column.name: column.total for column in found.columns}
        if not found.num_measured:
            continue
        tokens += share * (totals[TEXT_TOKENS] + totals[VISION_TOKENS]) / found.num_measured
        samples += share
    return tokens / samples if samples else None


def encoder_name(encoder: object) -> str:
    """Returns MODULE:CLASS of a task encoder, also for a class of the script that runs."""
    module = type(encoder).__module__
    if module in ("__main__", "__mp_main__"):
        module = Path(getattr(sys.modules.get(module), "__file__", None) or module).stem
    return f"{module}:{type(encoder).__qualname__}"


def _remedy(reference: SourceReference, options: DatasetOptions) -> str:
    location = reference.location
    path = reference.path if location is None or location.file == "dict" else location.file
    name = shlex.quote(encoder_name(options.encoder))
    return f"Run `energon-dali measure {shlex.quote(path)} --encoder {name}`."


def _part_kind(name: str) -> str:
    return find_part_kind(name)[0]
