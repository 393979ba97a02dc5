"""Measures the samples of a chunk: runs the hooks before decoding, and counts."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from energon_dali.assembly.options import AnyEncoder
from energon_dali.datasets.hooks import NEVER_HEALS, check_result, is_device_error, message_of, text_of
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.row_sources import RawReader
from energon_dali.decode import Decoder
from energon_dali.decode.media_decoder import MediaDecoder
from energon_dali.errors import ConfigError, DatasetError, DecodeError, FatalSampleError, SkipSample, StorageError
from energon_dali.plan.measured import (
    BUILT_IN,
    NOT_MEASURED,
    TEXT_TOKENS,
    VISION_PATCHES,
    VISION_SQUARES,
    VISION_TOKENS,
)
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import RawSample
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.measures.description import MAX_COLUMNS, MAX_VALUE, check_name
from energon_dali.task_encoder.context import call_in_context, running_stream
from energon_dali.task_encoder.encoder import overridden
from energon_dali.task_encoder.token_counts import count_patches, count_tokens, find_media
from energon_dali.worker_config import WorkerConfig

READ_TOGETHER = 32
"""Samples that are read at once."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring samples of a shard."""

    shard: int
    """Number of the shard."""
    start: int
    """Index of the first sample within it."""
    stop: int
    """Index after the last one."""

    @property
    def name(self) -> str:
        """By which a journal finds it."""
        return f"{self.shard}:{self.start}:{self.stop}"


@dataclass(slots=True)
class Unmeasured:
    """Samples that could not be measured for one reason."""

    count: int
    example: str
    """Shard, key and message of the first one."""


@dataclass(slots=True)
class ChunkValues:
    """The measures of a chunk."""

    chunk: Chunk
    names: tuple[str, ...] = ()
    """Names of the columns; () if no sample could be measured."""
    values: Int64Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64[samples, names]; -1 for samples that were not measured."""
    first: str = ""
    """Shard and key of the first sample that was measured."""
    unmeasured: dict[str, Unmeasured] = field(default_factory=dict)
    """By reason: the stage, and the kind of error."""


@dataclass(eq=False)
class MeasureJob:
    """Measures chunks of one dataset. Picklable; a process unpickles it once, however many chunks it gets."""

    reader: RawReader
    """Reads raw samples."""
    load: SampleLoader
    """Makes samples of them, with media as the hooks before decoding see them."""
    cook: Callable[[Any], Any] | None
    """Makes samples of crude ones; None if they are not crude."""
    encoder: AnyEncoder
    config: WorkerConfig
    """What hooks read of the job."""

    def __post_init__(self) -> None:
        self._hook = self.encoder.preencode_sample if overridden(self.encoder, "preencode_sample") else None
        self._measure = self.encoder.measure_sample if overridden(self.encoder, "measure_sample") else None
        if self._hook is not None and inspect.isgeneratorfunction(self._hook):
            raise ConfigError(
                f"{type(self.encoder).__name__}.preencode_sample is a generator function, which makes several samples "
                "of one, and measures are those of one sample. Let it return one sample."
            )

    def __call__(self, chunk: Chunk) -> ChunkValues:
        """Returns the measures of a chunk.

        Raises:
            ConfigError: A hook returned something other than whole numbers, or the length of a sample is unknown.
            FatalSampleError: The next sample would fail in the same way.
            StorageError: A file cannot be read.
        """
        found = ChunkValues(chunk)
        rows: list[Mapping[str, int] | None] = []
        with running_stream(self.config, 0):
            for start in range(chunk.start, chunk.stop, READ_TOGETHER):
                indices = range(start, min(start + READ_TOGETHER, chunk.stop))
                numbers = [self.reader.index_of(chunk.shard, index) for index in indices]
                seeds = self.load.seeds(np.zeros(len(numbers), np.int64), np.array(numbers, np.int64))
                raws = self.reader.read([chunk.shard] * len(indices), indices)
                for raw, index, number, seed in zip(raws, indices, numbers, seeds, strict=True):
                    rows.append(self._row(raw, index, number, seed, found))
        count = len(found.names)
        found.values = np.full((len(rows), count), NOT_MEASURED, np.int64)
        for position, row in enumerate(rows):
            if row is not None:
                found.values[position] = [row[name] for name in found.names]
        return found

    def _row(
        self, raw: RawSample | DatasetError, index: int, number: int, seed: int, found: ChunkValues
    ) -> Mapping[str, int] | None:
        """Returns the measures of a sample; None, with the reason counted, if it cannot be measured."""
        stage = "read"
        try:
            if isinstance(raw, DatasetError):
                raise raw
            stage = "load"
            sample = self.load(raw, seed)
            if self.cook is not None:
                stage = "cook_crude_sample"
                sample = call_in_context(number, self.config.seed_offset, self.cook, sample)
            if self._hook is not None:
                stage = "preencode_sample"
                sample = call_in_context(number, self.config.seed_offset, self._hook, sample)
                check_result(stage, sample)
            own: Mapping[str, int] = {}
            if self._measure is not None:
                stage = "measure_sample"
                own = call_in_context(number, self.config.seed_offset, self._measure, sample)
            stage = "count"
            where = f"{raw.shard}/{raw.key}"
            row = self._values(sample, self._checked(own, where), where)
        except (ConfigError, StorageError, FatalSampleError):
            raise
        except Exception as error:  # the user's hooks and codecs may raise anything
            self._not_measured(raw, index, stage, error, found)
            return None
        names = (*BUILT_IN, *sorted(row.keys() - set(BUILT_IN)))
        if not found.names:
            found.names, found.first = names, where
        elif names != found.names:
            raise names_differ(where, names, found.first, found.names)
        return row

    def _values(self, sample: Any, own: Mapping[str, int], where: str) -> Mapping[str, int]:
        """Returns all measures of a sample, those of the hook in place of the built-in ones of their names."""
        if own.keys() >= set(BUILT_IN):
            return own
        vision, patches, squares = count_patches(find_media(sample))
        built_in = {VISION_TOKENS: vision, VISION_PATCHES: patches, VISION_SQUARES: squares}
        if TEXT_TOKENS not in own:
            try:
                total = count_tokens(sample)
            except ConfigError as error:
                name = type(self.encoder).__name__
                raise ConfigError(
                    f"The length of {where} is not known: {error} Compute it before decoding: tokenise in "
                    f"{name}.preencode_sample, or return text_tokens in {name}.measure_sample."
                ) from error
            vision = own.get(VISION_TOKENS, vision)
            if total < vision:
                raise ConfigError(
                    f"{where} has {total} tokens in all, of which {vision} would be those of images and videos. Let "
                    "the field `length` count both, or return text_tokens in measure_sample."
                )
            built_in[TEXT_TOKENS] = total - vision
        return {**built_in, **own}

    def _checked(self, own: object, where: str) -> dict[str, int]:
        """Returns what measure_sample returned.

        Raises:
            ConfigError: It is not a mapping from names to numbers in their range.
        """
        problem = ""
        found: dict[str, int] = {}
        if not isinstance(own, Mapping):
            problem = excerpt(own)
        else:
            for name, value in own.items():
                try:
                    number = value if isinstance(value, bool) else value.__index__()
                except (AttributeError, TypeError):
                    number = None
                if number is None or isinstance(number, bool) or not 0 <= number <= MAX_VALUE:
                    problem = f"{excerpt(name)}: {excerpt(value)}"
                    break
                try:
                    found[check_name(name)] = number
                except ValueError as error:
                    problem = str(error)
                    break
            if len(found.keys() | set(BUILT_IN)) > MAX_COLUMNS:
                problem = f"{len(found)} names"
        if problem:
            raise ConfigError(
                f"{type(self.encoder).__name__}.measure_sample returned {problem} for {where}. It has to return a dict "
                f"of at most {MAX_COLUMNS - len(BUILT_IN)} names and whole numbers from 0 to 2**62 - 1."
            )
        return found

    def _not_measured(
        self, raw: RawSample | DatasetError, index: int, stage: str, error: Exception, found: ChunkValues
    ) -> None:
        """Counts a sample that could not be measured.

        Raises:
            FatalSampleError: The next sample would fail in the same way.
        """
        if is_device_error(error):
            raise error
        if isinstance(raw, RawSample):
            where = f"{raw.shard}/{raw.key}"
        else:
            where = "/".join(self.reader.name(found.chunk.shard, index))
        if isinstance(error, NEVER_HEALS):
            raise FatalSampleError(
                f"{stage} raised {text_of(error)} for {where}, as it would for all others."
            ) from error
        reason = f"{stage}: skipped" if isinstance(error, SkipSample) else f"{stage}: {type(error).__name__}"
        message = message_of(error) if isinstance(error, DecodeError | DatasetError) else text_of(error)
        known = found.unmeasured.setdefault(reason, Unmeasured(0, f"{where}: {message[:500]}"))
        known.count += 1

    def __reduce__(self) -> tuple[Any, ...]:
        content = pickle.dumps((self.reader, self.load, self.cook, self.encoder, self.config))
        return _unpickled, (content, os.getcwd())


@lru_cache(maxsize=2)
def _unpickled(content: bytes, folder: str) -> MeasureJob:
    """Returns the job of this process, whose encoder may be of a module in the folder of the command."""
    if os.path.isdir(folder) and folder not in sys.path:
        sys.path.insert(0, folder)
    return MeasureJob(*pickle.loads(content))


def names_differ(where: str, names: tuple[str, ...], first: str, others: tuple[str, ...]) -> ConfigError:
    """Returns the error for a sample that has other measures than the samples before."""
    differing = ", ".join(sorted(set(names) ^ set(others)))
    return ConfigError(
        f"measure_sample returned other names for {where} than for {first}: they differ in {differing}. Let it return "
        "the same names for every sample, with 0 where there is nothing."
    )


def measuring_encoder(encoder: AnyEncoder, *, keeps_media: bool) -> AnyEncoder:
    """Returns a task encoder whose decoder leaves media as handles where no hook needs them decoded.

    Args:
        encoder: The user's.
        keeps_media: Whether no hook of the user sees them decoded in training before `encode_sample`.
    """
    decoder = encoder.decoder
    if (
        not keeps_media
        or not isinstance(decoder, MediaDecoder)
        or decoder.placement == "rank"
        or decoder.decodes_late
        or decoder.overrides_decode
    ):
        return encoder
    twin: Decoder = copy.copy(decoder)
    # Attributes in place of methods of the class, so that the decoder keeps its own.
    twin.__dict__.update(_finish_image=_keep, _finish_clips=_keep_clips)
    encoder = copy.copy(encoder)
    encoder.decoder = twin
    return encoder


def _keep(handle: Any) -> Any:
    return handle


def _keep_clips(handle: Any, file: Any) -> Any:
    file.close()
    return handle
