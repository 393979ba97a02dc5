"""Opens the measures of a dataset for a task encoder, and checks that they are of this data and these hooks."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from energon_dali.assembly.fingerprint import describe_difference, fingerprint_of
from energon_dali.datasets.row_sources import Source
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.errors import ConfigError, DatasetError, StorageError
from energon_dali.metadataset.reference import SourceReference
from energon_dali.plan.measured import SampleValues
from energon_dali.shards import JsonlReader, ShardReader
from energon_dali.shards.jsonl import JsonlFile
from energon_dali.shards.measures.description import Description, fingerprint_digest
from energon_dali.shards.measures.estimated import EstimatedValues
from energon_dali.shards.measures.measure_file import MeasureFile
from energon_dali.shards.measures.places import MeasuredData, measure_files, places_of

if TYPE_CHECKING:
    from energon_dali.assembly.mixture import LoadedSource
    from energon_dali.assembly.options import DatasetOptions


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
    data = data_of(plain.reader, plain.name)
    fingerprint = fingerprint_of(plain.load, options.encoder, reference)
    problem = ""
    for place in places_of(data, fingerprint_digest(fingerprint)):
        try:
            found = MeasureFile(place)
        except FileNotFoundError:
            continue
        except DatasetError as error:
            raise ConfigError(f"{plain.name}: {error} {_remedy(reference, options)}") from error
        stale = stale_reason(found.description, data)
        if not stale:
            return found
        problem = problem or stale
    if allow_estimates:
        return EstimatedValues(data, _part_kind, getattr(plain.reader, "part_filter", None))
    problem = problem or _nearest(data, fingerprint)
    encoder = type(options.encoder).__name__
    raise ConfigError(
        f"{plain.name} has no measures of its samples by {encoder}{problem}. {_remedy(reference, options)}"
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


def stale_reason(description: Description, data: MeasuredData) -> str:
    """Returns why measures are not those of a dataset, as the end of a sentence; "" if they are."""
    shards = [(shard.name, shard.num_samples) for shard in description.shards]
    now = list(zip(*shard_names_and_counts(data), strict=True))
    if shards != now:
        changed = len(set(shards) ^ set(now))
        return f": there are others of {len(shards):,} shards, and it has {len(now):,}, of which {changed:,} differ"
    if description.uuid != data.uuid:
        return ": there are others of another index, since when it was prepared again"
    return ""


def shard_names_and_counts(data: MeasuredData) -> tuple[list[str], list[int]]:
    """Returns (names of the shards of a dataset, number of samples in each); a JSONL file is one shard."""
    if isinstance(data, JsonlFile):
        return [data.name], [data.num_samples]
    return data.shard_names, data.shard_counts


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


def encoder_name(encoder: object) -> str:
    """Returns MODULE:CLASS of a task encoder."""
    return f"{type(encoder).__module__}:{type(encoder).__qualname__}"


def _remedy(reference: SourceReference, options: DatasetOptions) -> str:
    location = reference.location
    path = reference.path if location is None or location.file == "dict" else location.file
    name = shlex.quote(encoder_name(options.encoder))
    return f"Run `energon-dali measure {shlex.quote(path)} --encoder {name}`."


def _part_kind(name: str) -> str:
    return find_part_kind(name)[0]
