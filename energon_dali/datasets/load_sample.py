"""Makes a Sample of a raw sample: decodes its parts, or makes media handles of them, and fills its fields."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from zlib import crc32

import numpy as np

from energon_dali.av import AVData
from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.stage_clock import StageClock
from energon_dali.decode import Decoded, Decoder, MediaHandle
from energon_dali.decode.basic import REFUSED_PICKLE
from energon_dali.decode.interface import Placement
from energon_dali.decode.media_decoder import part_context
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.errors import DatasetFormatError, DecodeError
from energon_dali.plan.rng import Int64Array, sample_seeds, source_seed
from energon_dali.samples.base import BASE_FIELDS, CrudeSample, Key, SourceInfo, set_restore_key
from energon_dali.samples.kinds import Clips
from energon_dali.shards import PartList, RawSample

_KEPT_NAMES = 1000
"""Names of parts for which the function that reads them is remembered."""
_FIELD = re.compile(r"^(?P<part>[^\[\]]+)(?P<access>(\[[^\[\]]+\])*)$")


@dataclass(frozen=True, slots=True)
class PartAccess:
    """One alternative of a field: a part, and the path into its decoded value."""

    part: str
    """Part name, such as "json"."""
    steps: tuple[str | int, ...] = ()
    """Keys and indices, such as ("captions", 0). A number is a key if the value is a dict that has it."""

    def take(self, value: Any) -> Any:
        """Returns the value at the end of the path.

        Raises:
            LookupError: A key or an index is missing, or a step leads into something that is neither a dict nor a
                list.
        """
        for step in self.steps:
            value = _enter(value, step)
        return value

    def __str__(self) -> str:
        return self.part + "".join(f"[{step}]" for step in self.steps)


def _enter(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        if str(step) in value:
            return value[str(step)]
        if step in value:  # numbers as keys, which JSON does not have
            return value[step]
        raise KeyError(step)
    if isinstance(value, list):
        try:
            return value[int(step)]
        except ValueError:
            raise LookupError(f"{step!r} is not an index of a list") from None
    raise LookupError(f"[{step}] leads into a value of type {type(value).__name__}, which is neither a dict nor a list")


def parse_field_map(field_map: Mapping[str, str]) -> dict[str, tuple[PartAccess, ...]]:
    """Returns the alternatives of each field of a `field_map`, such as `{"caption": "json[captions][0],txt"}`.

    Raises:
        DatasetFormatError: An entry is invalid; the message names it.
    """
    fields: dict[str, tuple[PartAccess, ...]] = {}
    for field_name, expression in field_map.items():
        alternatives = []
        for text in str(expression).split(","):
            match = _FIELD.match(text.strip())
            if match is None:
                raise DatasetFormatError(
                    f"field_map has {field_name}: {expression!r}, and {text!r} is not a part. Write a part name "
                    "(jpg), alternatives (jpg,png) or a path into JSON (json[captions][0])."
                )
            steps = re.findall(r"\[([^\[\]]+)\]", match["access"])
            alternatives.append(
                PartAccess(match["part"], tuple(int(s) if re.fullmatch(r"0|-?[1-9]\d{0,17}", s) else s for s in steps))
            )
        fields[field_name] = tuple(alternatives)
    return fields


def whole_parts(fields: Mapping[str, tuple[PartAccess, ...]] | None) -> dict[str, str] | None:
    """Returns the part of each field, where each is one part as a whole; None for fields that are anything else."""
    accesses = [accesses[0] for accesses in (fields or {}).values() if len(accesses) == 1]
    if fields is None or len(accesses) < len(fields) or any(access.steps for access in accesses):
        return None
    names = [access.part for access in accesses]
    return dict(zip(fields, names, strict=True)) if len(set(names)) == len(names) else None


@lru_cache(maxsize=256)
def _fields_of(
    field_map: tuple[tuple[str, str], ...],
) -> tuple[dict[str, tuple[PartAccess, ...]], dict[str, str] | None]:
    """Returns `parse_field_map` and `whole_parts` of a field map, which many datasets of a blend may have."""
    fields = parse_field_map(dict(field_map))
    return fields, whole_parts(fields)


def part_seed(seed: int, name: str) -> int:
    """Returns the seed of one part of a sample, so that two images of a sample are cropped differently."""
    return seed ^ crc32(name.encode())


class SampleLoader:
    """Makes samples of one dataset.

    Args:
        decoder: Decodes the parts; None leaves them as bytes.
        sample_type: The Sample class to make; `CrudeSample` keeps all parts as a dict.
        field_map: The part of each field, as in dataset.yaml; instead of `sample_loader`.
        sample_loader: A function from the dict of decoded parts to the dict of fields.
        subflavors: Set in every sample.
        dataset_path: For `__sources__` and messages.
        seed: The job's seed.
        source_number: Number of this dataset in the job.
    """

    def __init__(
        self,
        *,
        decoder: Decoder | None,
        sample_type: type[Any],
        field_map: Mapping[str, str] | None = None,
        sample_loader: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        subflavors: dict[str, Any] | None = None,
        dataset_path: str = "",
        seed: int = 0,
        source_number: int = 0,
    ) -> None:
        self.decoder = decoder
        self.sample_type = sample_type
        self.fields: Mapping[str, tuple[PartAccess, ...]] | None = None
        self._whole_parts: Mapping[str, str] | None = None
        if field_map is not None:
            self.fields, self._whole_parts = _fields_of(tuple((name, str(part)) for name, part in field_map.items()))
        self.sample_loader = sample_loader
        self.subflavors = dict(subflavors or {})
        self.dataset_path = dataset_path
        self.seed = seed
        self.source_number = source_number
        self._metrics: Metrics | None = None
        self._clock: StageClock | None = None
        """Measures decoding, where it is not left to the rank."""
        self._refused: set[str] = set()
        self._readers = _PlainReaders(decoder)
        self._whole_names = frozenset((self._whole_parts or {}).values())

    def counting(self, metrics: Metrics) -> SampleLoader:
        """Returns a copy that counts the routes of media that it decodes, and how long that takes.

        Args:
            metrics: Takes the counts and times.
        """
        twin = copy.copy(self)
        twin._metrics = metrics
        if self.decoder is not None and self.decoder.placement == "worker":
            twin._clock = metrics.clock("decode")
        return twin

    def part_filter(self) -> PartList | None:
        """Returns which parts the fields need; None if every part may be needed."""
        if self.fields is None:
            return None
        return PartList(frozenset(access.part for accesses in self.fields.values() for access in accesses))

    def import_libraries(self, placement: Placement) -> None:
        """Imports what a process would otherwise import when it decodes its first sample.

        Args:
            placement: The process: a worker, or the rank's.
        """
        if self.decoder is not None:
            wanted = self.part_filter()
            self.decoder.import_libraries(placement, None if wanted is None else wanted.names)

    def prepare_workers(self) -> None:
        """Looks up, in the rank's process, what workers must not."""
        if self.decoder is not None:
            self.decoder.prepare_workers()

    def seeds(self, epochs: Int64Array, indices: Int64Array) -> list[int]:
        """Returns the seeds of samples from their passes over the data and their numbers in the dataset."""
        seeds: list[int] = sample_seeds(np.array([self.source_seed], np.uint64), epochs, indices).tolist()
        return seeds

    @property
    def source_seed(self) -> int:
        """What the seeds of all its samples have in common; see `plan.sample_seeds`."""
        return source_seed(self.seed, self.source_number)

    def __call__(self, raw: RawSample, seed: int, restore_key: Key = ()) -> Any:
        """Returns the sample.

        Args:
            raw: What was read.
            seed: Seed of its random operations, as `seeds` returns it.
            restore_key: Becomes its `__restore_key__`.

        Raises:
            DecodeError: A part cannot be decoded; the message names the part.
            DatasetFormatError: None of the alternatives of a field can be reached.
        """
        key = raw.key
        source = SourceInfo(
            dataset_path=self.dataset_path,
            index=raw.index,
            shard_name=raw.shard,
            file_names=tuple([f"{key}.{name}" for name in raw.parts]),
        )
        if self.decoder is not None and type(self.decoder).__call__ is not Decoder.__call__:
            self._call_decoder(raw, source, seed)
        parts = self._decode(raw, source, seed) if self.fields is None else self._decode_fields(raw, source, seed)
        if self.sample_type is CrudeSample:
            crude = CrudeSample(
                {
                    "__key__": raw.key,
                    "__shard__": raw.shard,
                    "__restore_key__": restore_key,
                    "__subflavors__": self.subflavors,
                    "__sources__": (source,),
                    **parts,
                }
            )
            crude.seed = seed
            if self._refused:
                crude.refused = tuple(name for name in raw.parts if name in self._refused)
            return crude
        if self.sample_loader is not None:
            given = {"__key__": key, "__shard__": raw.shard, "__restore_key__": ("Webdataset", raw.index)}
            parts = self.sample_loader({**given, "__sources__": (source,), **parts})
        if parts.keys().isdisjoint(BASE_FIELDS):
            return self.sample_type(
                __key__=key, __restore_key__=restore_key, __subflavors__=self.subflavors, __sources__=(source,), **parts
            )
        base = {"__key__": key, "__restore_key__": (), "__subflavors__": self.subflavors, "__sources__": (source,)}
        sample = self.sample_type(**{**base, **parts})
        return set_restore_key(sample, restore_key) if restore_key else sample

    def _call_decoder(self, raw: RawSample, source: SourceInfo, seed: int) -> None:
        """Decodes the parts with a decoder that takes whole samples, as in Energon."""
        parts: dict[str, Any] = raw.parts  # DALI's own reader puts decoded images among them
        given = {name: bytes(part) for name, part in parts.items() if not isinstance(part, Decoded)}
        assert self.decoder is not None
        outer = None if self._clock is None else self._clock.begin(source)
        try:
            with part_context(partial(part_seed, seed), source):
                made = self.decoder({"__key__": raw.key, "__shard__": raw.shard, **given})
        finally:
            if self._clock is not None and outer is not None:
                self._clock.end(outer)
        kept = {name: part for name, part in parts.items() if name not in given}
        kept |= {name: Decoded(value, "fallback") for name, value in made.items() if not name.startswith("__")}
        raw.parts = kept

    def _decode(self, raw: RawSample, source: SourceInfo, seed: int) -> dict[str, Any]:
        if not self._refused:
            try:
                return {name: self._part(name, content, source, seed) for name, content in raw.parts.items()}
            except DecodeError as error:
                if error.format != REFUSED_PICKLE or self.sample_type is not CrudeSample:
                    raise
        # A pickled part that nobody reads costs nothing; CrudeSample says what was left out.
        parts = {}
        for name, content in raw.parts.items():
            try:
                if name not in self._refused:
                    parts[name] = self._part(name, content, source, seed)
            except DecodeError as error:
                if error.format != REFUSED_PICKLE:
                    raise
                self._refused.add(name)
        return parts

    def take_fields(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a sample whose parts are decoded already.

        Args:
            parts: Decoded parts by name, with `__key__`.

        Raises:
            DatasetFormatError: None of the alternatives of a field can be reached.
        """
        decoded: dict[str, Any] = {
            name: Decoded(part, "pil") for name, part in parts.items() if not name.startswith("__")
        }
        raw = RawSample(str(parts["__key__"]), "", 0, 0, 0, decoded)
        return self._decode_fields(raw, SourceInfo(dataset_path="", index=0, shard_name="", file_names=()), 0)

    def _decode_fields(self, raw: RawSample, source: SourceInfo, seed: int) -> dict[str, Any]:
        whole, given = self._whole_parts, raw.parts
        if whole is not None and given.keys() >= self._whole_names:
            return {name: self._part(part, given[part], source, seed) for name, part in whole.items()}
        assert self.fields is not None
        decoded: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for field_name, alternatives in self.fields.items():
            unreached: list[str] = []
            for access in alternatives:
                part = access.part
                if part not in raw.parts:
                    continue
                if part not in decoded:
                    decoded[part] = self._part(part, raw.parts[part], source, seed)
                try:
                    values[field_name] = access.take(decoded[part]) if access.steps else decoded[part]
                except LookupError as error:
                    unreached.append(f"{access} ({type(error).__name__}: {error})")
                    continue
                break
            else:
                if unreached:
                    raise DatasetFormatError(
                        f"field {field_name!r} asks for {', '.join(unreached)}, which sample {raw.key!r} does not "
                        "hold. Correct field_map in dataset.yaml, or the data."
                    )
                wanted = ", ".join(access.part for access in alternatives)
                raise DatasetFormatError(
                    f"sample {raw.key!r} has no part {wanted!r} for the field {field_name!r}; it has "
                    f"{sorted(raw.parts)} of the parts that are read. Add the missing "
                    "alternative to field_map in dataset.yaml, or the part to the sample."
                )
        return values

    def _part(self, name: str, content: bytes | memoryview | Decoded, source: SourceInfo, seed: int) -> Any:
        if isinstance(content, Decoded):
            return content.value
        read = self._readers[name]
        if read is not None:
            try:
                return read(bytes(content))
            except Exception:
                pass  # the decoder says what is wrong with the content
        if self.decoder is None:
            return bytes(content)
        outer = None if self._clock is None else self._clock.begin(source)
        try:
            value = self.decoder.decode_part(name, content, seed=part_seed(seed, name), source=source)
        finally:
            if self._clock is not None and outer is not None:
                self._clock.end(outer)
        if self._metrics is not None and (route := _route_of(name, value)) is not None:
            self._metrics.count(f"route.{route}")
        return value


class _PlainReaders(dict[str, "Callable[[bytes], Any] | None"]):
    """By part name, the function that reads a part in place of `Decoder.decode_part`; None if there is none."""

    def __init__(self, decoder: Decoder | None) -> None:
        self._decoder = decoder

    def __missing__(self, name: str) -> Callable[[bytes], Any] | None:
        if len(self) >= _KEPT_NAMES:  # a dataset may have a name per sample
            self.clear()
        found = self[name] = None if self._decoder is None else self._decoder.plain_reader(name)
        return found


def _route_of(name: str, value: Any) -> str | None:
    """Returns what decoded a part; None if it is not media, or not decoded yet."""
    if isinstance(value, MediaHandle):
        return None
    if isinstance(value, (AVData, Clips)):
        return "pyav"
    return "pil" if find_part_kind(name)[0] == "image" else None
