"""Resolves a metadataset, file by file, to the datasets that are read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from typing_extensions import Unpack

from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.metadataset.context import CallOptions, Context, Moment
from energon_dali.metadataset.document import (
    YAML_SUFFIXES,
    Document,
    Location,
    Node,
    document_from_dict,
    located,
    read_document,
)
from energon_dali.metadataset.files import files_of_source, is_local, read_folder_files, read_nested
from energon_dali.metadataset.join.columns import find_join_index, open_columns
from energon_dali.metadataset.join.declaration import read_join
from energon_dali.metadataset.reference import AuxReference, ResolvedBlend, SourceReference, take_subset
from energon_dali.metadataset.schema import (
    BlendRecord,
    ConcatRecord,
    EpochizedRecord,
    FileStoreRecord,
    JoinRecord,
    ManyRecord,
    ReferenceRecord,
    RepeatedJoin,
    RepeatedReference,
    V1Record,
    V1Split,
    WeightedJoin,
    WeightedReference,
    check_mapping,
    parse_record,
    read_splits,
    unknown_name,
)
from energon_dali.plan.scheduled import Over, Schedule, WeightPoint
from energon_dali.shards import StoragePath
from energon_dali.shards.documents.opening import opening_files
from energon_dali.shards.jsonl import JsonlFile

MAX_SOURCES = 10_000
"""Datasets below one metadataset; files that each name two others would otherwise grow without bound."""

_KINDS = ("path", "join", "blend", "blend_epochized", "concat")
_LEGACY_SUBFLAVOR = "__subflavor__"


@dataclass(frozen=True)
class Mixture:
    """The sources below a node of a metadataset, each with its weight or repetitions."""

    mode: Literal["none", "weights", "repetitions", "concat"]
    """How the sources are put together."""
    sources: tuple[tuple[SourceReference, float], ...]
    """Each source with its weight (all weights add up to 1) or repetitions."""
    location: Location
    """Where the node is."""

    def blend(self) -> ResolvedBlend:
        """Returns the mixture as a whole."""
        if self.mode == "none":
            return ResolvedBlend("none", tuple(source for source, _ in self.sources))
        if self.mode == "weights":
            return ResolvedBlend("weights", tuple(replace(source, weight=factor) for source, factor in self.sources))
        repeated = tuple(replace(source, repetitions=factor) for source, factor in self.sources)
        return ResolvedBlend("repetitions", repeated)


def resolve(
    path: str | StoragePath | Mapping[str, Any],
    split_part: str,
    **options: Unpack[CallOptions],
) -> ResolvedBlend:
    """Returns the datasets that a path names.

    Args:
        path: A prepared folder, a .jsonl file, a metadataset (.yaml), or a metadataset as a dict.
        split_part: Part of the split.
        **options: See `CallOptions`.

    Raises:
        DatasetFormatError: A metadataset is malformed; the message names file, line and key.
        ConfigError: There is no such split, or the subset is invalid.
        StorageError: A file cannot be read.
    """
    context = Context.of_call(split_part, **options)
    resolver = Resolver()
    if isinstance(path, Mapping):
        return resolver.blend(document_from_dict(path), context)
    storage_path = StoragePath.of(path)
    if not storage_path.url.endswith(YAML_SUFFIXES):
        return resolver.path(storage_path, context).blend()
    document = _read_nested(storage_path, None)
    return resolver.blend(document, replace(context, chain=(*context.chain, storage_path.url)))


def count_samples(source: SourceReference) -> int:
    """Returns the number of samples of a dataset or join, in its split part and subset; opens no shard.

    Keys and a condition on measures do not count: the index, or measures of the task encoder, would have to be read.

    Raises:
        DatasetError: Its files are malformed, or a join has no index.
        ConfigError: It has no such split part, or its subset reaches beyond the samples.
        StorageError: A file cannot be read.
    """
    if source.join is not None:
        with located(source.location):
            total = len(find_join_index(source, open_columns(source.join.columns)).table)
    elif source.is_jsonl:
        total = JsonlFile(source.path).num_samples
    else:
        folder, ranges = read_folder_files(source)
        return take_subset(ranges, folder.shard_counts, source.subset).num_samples
    start, stop = (0, total) if source.subset is None else source.subset.bounds(total)
    return stop - start


class Resolver:
    """Resolves one metadataset with everything below it; reads each file once.

    Args:
        count_samples: Returns the number of samples of a source; called only for `concat` inside `blend`.
    """

    def __init__(self, count_samples: Callable[[SourceReference], int] = count_samples) -> None:
        self._count_samples = count_samples
        self._documents: dict[str, Document] = {}
        self._num_sources = 0
        self._moment = Moment()

    def blend(self, document: Document, context: Context) -> ResolvedBlend:
        """Returns the datasets of a metadataset's split; remote files below it are fetched together.

        Raises:
            DatasetFormatError: A metadataset is malformed.
            ConfigError: A metadataset has no such split.
            StorageError: A file cannot be read.
        """
        with opening_files() as opening:
            self._documents.update(read_nested(document, context.split_part, opening, MAX_SOURCES))
            blend = self.document(document, context).blend()
            found = self._moment
            if found.over is None:
                return blend
            if found.unsaid is not None:
                warnings.warn(
                    f"{found.unsaid.location}: the points of this weight are taken as steps of the whole job. Energon "
                    "(pull request 208) counts the batches of a rank, which are more with several micro-batches per "
                    "step. Write `over: steps` next to `step` or `linear` if steps of the job are meant, or `over: "
                    "samples` for samples of the job.",
                    stacklevel=2,
                )
            return replace(blend, schedule=self._schedule(sorted(found.changes), found.over, document, context))

    def _schedule(self, changes: Sequence[int], over: Over, document: Document, context: Context) -> Schedule:
        """Returns the weights of all sources over time.

        Args:
            changes: Steps or samples at which weights change, ascending, the first of them 0.
            over: Which of the two.
            document: The metadataset.
            context: Of the call.
        """

        def weights(moment: Moment) -> tuple[float, ...]:
            self._moment, self._num_sources = moment, 0
            return tuple(weight for _, weight in self.document(document, context).sources)

        points = []
        for at, after in zip(changes, [*changes[1:], None], strict=True):
            moment = Moment(at)
            here = weights(moment)
            towards = None
            if moment.moves and after is not None:
                towards = WeightPoint(after, weights(Moment(after, is_before=True)))
            points.append(WeightPoint(at, here, towards))
        return Schedule(tuple(points), over)

    def path(self, path: StoragePath, context: Context, location: Location | None = None) -> Mixture:
        """Returns the sources of a path: those of a metadataset, or the dataset itself.

        Raises:
            DatasetFormatError: A metadataset is malformed.
            ConfigError: A metadataset has no such split.
            StorageError: A file cannot be read.
        """
        here = location or Location(path.url, None, ())
        if not path.url.endswith(YAML_SUFFIXES):
            source = SourceReference(
                path.url,
                context.split_part,
                context.subflavors,
                subset=context.subset,
                location=location,
                shuffle_over_epochs_multiplier=context.shuffle_over_epochs_multiplier,
            )
            return self._single(source, here)
        if path.url in context.chain:
            chain = " -> ".join((*context.chain, path.url))
            raise DatasetFormatError(f"{here}: the metadataset contains itself: {chain}. Take it out of one of them.")
        if path.url not in self._documents:
            self._documents[path.url] = _read_nested(path, location)
        return self.document(self._documents[path.url], replace(context, chain=(*context.chain, path.url)))

    def document(self, document: Document, context: Context) -> Mixture:
        """Returns the sources of a metadataset's split.

        Raises:
            DatasetFormatError: It is malformed.
            ConfigError: It has no such split.
            StorageError: A file below cannot be read.
        """
        splits, version = read_splits(document)
        name = context.split_part
        if name not in splits:
            above = f" (reached from {context.chain[0]})" if len(context.chain) > 1 else ""
            raise ConfigError(
                f"{document.root.at('splits').location}{above}: {unknown_name('split', name, list(splits))} Give one "
                "of them as split_part, or write the split into the file."
            )
        node = document.root.at("splits", name)
        return self._v2_split(node, context) if version == 2 else self._v1_split(node, context)

    def _v1_split(self, node: Node, context: Context) -> Mixture:
        """Returns the sources of a split of the first form: a blend by weight."""
        datasets = node.at("datasets")
        parts = []
        for number in range(len(parse_record(V1Split, node).datasets)):
            entry = datasets.at(number)
            record = parse_record(V1Record, entry)
            subflavors = dict(record.subflavors or {})
            if record.subflavor is not None:
                warnings.warn(
                    f"{entry.at('subflavor').location}: subflavor is deprecated: write `subflavors: "
                    f"{{{_LEGACY_SUBFLAVOR}: {record.subflavor}}}`, or names of your own.",
                    DeprecationWarning,
                    stacklevel=2,
                )
                subflavors.setdefault(_LEGACY_SUBFLAVOR, record.subflavor)
            inner = context.below(entry, record, subflavors)
            weight = self._moment.weight(record.weight, entry.at("weight"))
            parts.append((self._dataset(entry, record, inner, {}), weight))
        return self._weighted(parts, datasets)

    def _v2_split(self, node: Node, context: Context) -> Mixture:
        """Returns the sources of a split of the second form."""
        kind = _kind(node, _KINDS)
        if kind == "path":
            return self._reference(node, parse_record(ReferenceRecord, node), context)
        if kind == "join":
            return self._join(node, parse_record(JoinRecord, node), context)
        kinds: dict[str, type[ManyRecord]] = {
            "blend": BlendRecord,
            "blend_epochized": EpochizedRecord,
            "concat": ConcatRecord,
        }
        record = parse_record(kinds[kind], node)
        inner = context.with_subset(node, record.subset)
        entries = node.at(kind)
        parts = [self._entry(entries.at(number), kind, inner) for number in range(len(getattr(record, kind)))]
        if kind == "blend":
            return self._weighted(parts, entries)
        return _repeated(parts, entries, "concat" if kind == "concat" else "repetitions")

    def _entry(self, node: Node, above: str, context: Context) -> tuple[Mixture, float]:
        """Returns (the sources of an entry of a blend, its weight or repetitions)."""
        records: dict[str, tuple[type[ReferenceRecord], type[JoinRecord]]] = {
            "blend": (WeightedReference, WeightedJoin),
            "blend_epochized": (RepeatedReference, RepeatedJoin),
            "concat": (ReferenceRecord, JoinRecord),
        }
        of_dataset, of_join = records[above]
        record: ReferenceRecord | JoinRecord
        if _kind(node, ("path", "join")) == "path":
            record = parse_record(of_dataset, node)
            mixture = self._reference(node, record, context)
        else:
            record = parse_record(of_join, node)
            mixture = self._join(node, record, context)
        if isinstance(record, (WeightedReference, WeightedJoin)):
            return mixture, self._moment.weight(record.weight, node.at("weight"))
        return mixture, float(getattr(record, "repetitions", 1.0))

    def _reference(self, node: Node, record: ReferenceRecord, context: Context) -> Mixture:
        inner = context.below(node, record, record.subflavors or {})
        return self._dataset(node, record, inner, {name: _aux(node.at("aux", name)) for name in record.aux or {}})

    def _dataset(
        self, node: Node, record: V1Record | ReferenceRecord, context: Context, aux: Mapping[str, AuxReference]
    ) -> Mixture:
        """Returns the sources at a path: the dataset, or those of a nested metadataset."""
        path = node.at("path").resolve_path(record.path)
        nested = path.url.endswith(YAML_SUFFIXES)
        if nested or path.url.endswith(".jsonl"):
            for name in ("dataset_config", "split_config", *(("aux",) if nested else ())):
                if getattr(record, name, None) is not None:
                    what = "a metadataset" if nested else "a JSONL file"
                    raise node.at(name).error(f"{name} belongs to a prepared folder, and {path} is {what}.")
        mixture = self.path(path, context, node.at("path").location)
        if nested:
            return mixture
        ((source, factor),) = mixture.sources
        source = replace(source, dataset_config=record.dataset_config, split_config=record.split_config, aux=aux)
        return replace(mixture, sources=((source, factor),))

    def _join(self, node: Node, record: JoinRecord, context: Context) -> Mixture:
        inner = context.below(node, record, record.subflavors or {})
        return self._single(read_join(node, record, inner), node.at("join").location)

    def _single(self, source: SourceReference, location: Location) -> Mixture:
        """Returns a single source, unless there are too many."""
        self._num_sources += 1
        if self._num_sources > MAX_SOURCES:
            raise DatasetFormatError(
                f"{location}: more than {MAX_SOURCES:,} datasets are named here and above. Look for metadatasets that "
                "name each other over and over."
            )
        return Mixture("none", ((source, 1.0),), location)

    def _weighted(self, parts: list[tuple[Mixture, float]], node: Node) -> Mixture:
        """Returns the blend by weight of the entries of a node."""
        total = sum(weight for _, weight in parts)
        if not parts or total <= 0:
            raise node.error("there is nothing to draw from. Name at least one dataset with a positive weight.")
        if math.isinf(total):  # huge weights: only their ratios count
            largest = max(weight for _, weight in parts)
            parts = [(part, weight / largest) for part, weight in parts]
            total = sum(weight for _, weight in parts)
        sources: list[tuple[SourceReference, float]] = []
        for part, weight in parts:
            _refuse(part, "repetitions", "weights", node)
            shares = [factor for _, factor in part.sources]
            if part.mode == "concat":
                counts = self._counts([source for source, _ in part.sources])
                shares = [count / max(1, sum(counts)) for count in counts]
            sources += [
                (source, share * weight / total) for (source, _), share in zip(part.sources, shares, strict=True)
            ]
        return Mixture("weights", tuple(sources), node.location)

    def _counts(self, sources: Sequence[SourceReference]) -> list[int]:
        """Returns the number of samples of each source."""
        with opening_files() as opening:
            opening.ahead(file for source in sources for file in files_of_source(source))
            counts = [
                opening.later(partial(self._count_samples, source), is_local=is_local(source)) for source in sources
            ]
            return [count() for count in counts]


def _repeated(parts: list[tuple[Mixture, float]], node: Node, mode: Literal["concat", "repetitions"]) -> Mixture:
    """Returns the epochized blend, or the concatenation, of the entries of a node."""
    if not parts:
        raise node.error("no dataset is named here. Name at least one.")
    sources: list[tuple[SourceReference, float]] = []
    for part, repetitions in parts:
        _refuse(part, "weights", "repetitions", node)
        sources += [(source, factor * repetitions) for source, factor in part.sources]
        mode = "repetitions" if part.mode == "repetitions" else mode
    return Mixture(mode, tuple(sources), node.location)


def _refuse(part: Mixture, mode: str, here: str, node: Node) -> None:
    if part.mode == mode:
        raise node.error(
            f"datasets are put together by {here} here, and by {mode} at {part.location}, which is below. The two "
            "cannot be nested: use blend (or the first form) at every level, or blend_epochized and concat."
        )


def _kind(node: Node, allowed: tuple[str, ...]) -> str:
    """Returns which kind of node a mapping is."""
    if not isinstance(node.value, Mapping):
        check_mapping(node, list(allowed))
    kinds = [name for name in allowed if name in node.value]
    if len(kinds) != 1:
        found = " and ".join(kinds) if kinds else f"none of them, but {', '.join(map(str, node.value)) or 'nothing'}"
        raise node.error(f"exactly one of {', '.join(allowed)} is needed here, and there is {found}.")
    return kinds[0]


def _aux(node: Node) -> AuxReference:
    """Returns an auxiliary store, given in any of Energon's forms."""
    if isinstance(node.value, str):
        text = node.value
    else:
        record = parse_record(FileStoreRecord, node)
        if (record.path is None) == (record.fs_path is None):
            raise node.error("either path or fs_path is needed here, and not both.")
        if record.fs_path is not None:
            return AuxReference(node.at("fs_path").resolve_path(record.fs_path).url, "filesystem")
        text = record.path or ""
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "filesystem":
        return AuxReference(node.resolve_path(rest).url, "filesystem")
    if separator and "+" in scheme:
        kind, _, inner = scheme.partition("+")
        if kind != "filesystem" or "+" in inner:
            raise node.error(f"{text!r} begins with {scheme}://. Write filesystem+SCHEME://, or SCHEME://.")
        return AuxReference(node.resolve_path(f"{inner}://{rest}").url, "filesystem")
    return AuxReference(node.resolve_path(text).url)


def _read_nested(path: StoragePath, location: Location | None) -> Document:
    """Returns a metadataset file; errors also name the location that names it."""
    try:
        return read_document(path)
    except DatasetFormatError as error:
        if location is None:
            raise
        raise DatasetFormatError(f"{location}: {error}") from error
    except StorageError as error:
        raise StorageError(f"{location or path}: {error}") from error
