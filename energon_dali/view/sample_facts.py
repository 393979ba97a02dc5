"""What a scan finds out about one sample: facts of its parts, its text, and why it fails to decode.

A scan examines samples in its own processes; the page examines one at a time by a `SampleCheck`.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from energon_dali.av import AVDecoder
from energon_dali.decode.basic import gunzip
from energon_dali.decode.formats import ImageHeader
from energon_dali.decode.images import screen_image
from energon_dali.decode.interface import check_media
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.decode.spec import DEFAULT_MAX_BYTES
from energon_dali.errors import DatasetError, DecodeError
from energon_dali.shards import RawSample
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.prepare.worker_pool import NoAnswerError, RequestProcess
from energon_dali.view.plain_fields import Plain, stored_fields
from energon_dali.view.scan_source import OpenedScanSource, ScanSource

TEXT_SUFFIXES = frozenset({"txt", "text", "transcript", "md", "html", "xml", "csv"})
JSON_SUFFIXES = frozenset({"json", "jsn", "jsonl"})

MAX_TEXT = 1 << 20
"""Characters of one part that the text search covers."""
HASHED_FROM_BYTES = 64
"""Smaller parts, such as labels, are equal without being duplicates."""
CHECK_SECONDS = 60.0
"""Longest time for one sample of a `SampleCheck`."""
_KEPT_CHECKS = 256
_MAX_REASON = 2000
_MAX_JSON_DEPTH = 100


@dataclass(slots=True)
class PartFacts:
    """Facts about one part of a sample; None for what does not apply or is not known."""

    name: str
    """Part name, such as "jpg"."""
    num_bytes: int
    """Size of the encoded part in bytes."""
    kind: str = "other"
    """"image", "video", "audio", "text", "json" or "other"."""
    digest: bytes | None = None
    """BLAKE2b of the content, 16 bytes; None for parts of less than `HASHED_FROM_BYTES`."""
    format: str = ""
    """Format of an image ("jpeg"), codec of a video or audio ("h264"), suffix of anything else."""
    width: int | None = None
    """Width in pixels as stored."""
    height: int | None = None
    """Height in pixels as stored."""
    duration: float | None = None
    """Duration in seconds."""
    mode: str = ""
    """Colours of an image ("rgb", "gray 16-bit", "palette with alpha"), pixel format of a video, layout of audio."""
    text_length: int | None = None
    """Number of characters of a text, or of all strings in JSON."""


@dataclass(slots=True)
class SampleFacts:
    """Facts about one sample."""

    index: int
    """Index in the whole dataset."""
    key: str
    """Its key; "" if it could not be read."""
    shard: str
    """Name of its shard."""
    parts: list[PartFacts] = field(default_factory=list)
    """Its parts, in file order."""
    text: str = ""
    """What the text search finds."""
    fields: list[tuple[str, Plain]] = field(default_factory=list)
    """Plain values of its JSON parts by name."""
    stage: str = ""
    """Where it fails: "read", "load" or "decode"; "" if it does not."""
    reason: str = ""
    """Why it fails, in one line; "" if it does not."""


def examine_samples(source: OpenedScanSource, start: int, stop: int) -> Iterator[SampleFacts]:
    """Yields the facts of samples start to stop (exclusive) of a dataset, in order.

    Args:
        source: The dataset.
        start: Index of the first sample.
        stop: Index after the last sample.

    Raises:
        StoreUnavailableError: The store returned only errors for too long.
        MemoryError: The memory is full.
    """
    places = [source.reader.locate(index) for index in range(start, stop)]
    raws = source.reader.read([shard for shard, _ in places], [inside for _, inside in places])
    for index, (place, raw) in enumerate(zip(places, raws, strict=True), start):
        if isinstance(raw, DatasetError):
            shard, key = source.reader.name(*place)
            yield SampleFacts(index, key, shard, stage="read", reason=reason_of(raw))
        else:
            yield examine(source, raw)


def examine(source: OpenedScanSource, raw: RawSample) -> SampleFacts:
    """Returns the facts of a sample that was read; media are decoded to the end.

    Args:
        source: The dataset.
        raw: All parts of the sample.
    """
    facts = SampleFacts(raw.index, raw.key, raw.shard)
    texts: list[str] = []
    for name, content in raw.parts.items():
        part, text = examine_part(name, content)
        facts.parts.append(part)
        if text:
            texts.append(text)
        if part.kind == "json":
            facts.fields += _fields_of(name, content)
    facts.text = "\n".join(texts)
    facts.stage, facts.reason = find_failure(source, raw)
    return facts


def _fields_of(name: str, content: bytes | memoryview) -> list[tuple[str, Plain]]:
    try:
        plain = gunzip(bytes(content), DEFAULT_MAX_BYTES) if name.lower().endswith(".gz") else bytes(content)
        return stored_fields(parse_json(plain, max_depth=_MAX_JSON_DEPTH, any_number=True))
    except MemoryError:
        raise
    except Exception:  # the sample's failure says it, if a loader meets it
        return []


def find_failure(source: OpenedScanSource, raw: RawSample) -> tuple[str, str]:
    """Returns (stage, reason) of the failure that a loader would count for a sample; ("", "") if it is sound.

    Args:
        source: The dataset.
        raw: All parts of the sample.
    """
    stage = "load"
    try:
        sample = source.make(raw)
        stage = "decode"
        check_media(sample)
    except MemoryError:
        raise
    except Exception as error:  # the dataset's own code and codecs may raise anything
        return stage, reason_of(error)
    return "", ""


def reason_of(error: Exception) -> str:
    """Returns an error as one line, as a loader's statistics give it."""
    text = str(error) if isinstance(error, DecodeError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_MAX_REASON]


def examine_part(name: str, content: bytes | memoryview) -> tuple[PartFacts, str]:
    """Returns (facts, text for the search) of a part, from its header; nothing is decoded but text.

    Args:
        name: Part name.
        content: The encoded part.
    """
    part = PartFacts(name, len(content))
    if len(content) >= HASHED_FROM_BYTES:
        part.digest = hashlib.blake2b(content, digest_size=16).digest()
    try:
        plain = name
        while find_part_kind(plain)[1].lower() == "gz":
            content, plain = gunzip(bytes(content), DEFAULT_MAX_BYTES), plain[:-3]
        kind, suffix = find_part_kind(plain)
        part.format = suffix.lower()
        if kind == "image":
            part.kind = "image"
            _describe_image(part, screen_image(content, for_dali=False))
        elif kind == "av":
            part.kind = "video"
            _describe_av(part, content)
        elif part.format in JSON_SUFFIXES or part.format in TEXT_SUFFIXES:
            return part, _describe_text(part, bytes(content))
    except MemoryError:
        raise
    except Exception:  # codecs may raise anything; the sample's failure says it, if a loader meets it
        pass
    return part, ""


def _describe_image(part: PartFacts, header: ImageHeader) -> None:
    part.format, part.width, part.height = header.format, header.width, header.height
    color = {"ycc": "rgb", "ycck": "cmyk"}.get(header.color, header.color)  # as they are decoded
    depth = "" if header.bit_depth == 8 or color == "palette" else f" {header.bit_depth}-bit"
    part.mode = f"{color}{depth}{' with alpha' if header.has_alpha else ''}"


def _describe_av(part: PartFacts, content: bytes | memoryview) -> None:
    with AVDecoder(content) as decoder:
        video, audio = decoder.file.find_stream("video"), decoder.file.find_stream("audio")
        facts = video or audio
        if facts is None:
            return
        part.kind, part.format = facts.kind, facts.codec
        durations = [stream.duration_seconds for stream in (video, audio) if stream is not None]
        known = [seconds for seconds in durations if seconds is not None and math.isfinite(seconds)]
        if known:
            part.duration = max(known)
        else:  # the header does not say
            found = decoder.get_metadata(get_video_frame_count=False, get_audio_duration=video is None)
            part.duration = found.video_duration if video is not None else found.audio_duration
        if video is not None:
            part.width, part.height, part.mode = video.width, video.height, video.pixel_format
        else:
            part.mode = facts.layout


def _describe_text(part: PartFacts, content: bytes) -> str:
    if part.format in JSON_SUFFIXES:
        part.kind = "json"
        strings = list(_strings(parse_json(content, max_depth=_MAX_JSON_DEPTH, any_number=True)))
        part.text_length = sum(map(len, strings))
        return "\n".join(strings)[:MAX_TEXT]
    part.kind = "text"
    text = content.decode("utf-8")
    part.text_length = len(text)
    return text[:MAX_TEXT]


def _strings(value: Any) -> Iterator[str]:
    """Yields all strings in a JSON value, without names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


class SampleCheck:
    """Examines samples one at a time, in a process of its own, and keeps the results of the last ones. Thread-safe.

    Args:
        sources: The datasets; methods name one of them by its number in this list.
    """

    def __init__(self, sources: Sequence[ScanSource]) -> None:
        self._process = RequestProcess(_Checker(sources))
        self._lock = threading.Lock()
        self._facts = lru_cache(_KEPT_CHECKS)(self._examine)

    def examine(self, source: int, index: int) -> SampleFacts:
        """Returns the facts of a sample, without its text; its media are decoded to the end.

        Args:
            source: Number of the dataset.
            index: Number of the sample.

        Raises:
            DatasetError: The dataset cannot be opened or read.
            StorageError: A file cannot be read.
        """
        with self._lock:
            return self._facts(source, index)

    def _examine(self, source: int, index: int) -> SampleFacts:
        try:
            return self._process.ask((source, index), CHECK_SECONDS)
        except NoAnswerError as error:
            return SampleFacts(index, "", "", stage="decode", reason=f"Decoding it {error}")

    def close(self) -> None:
        """Ends the process for good, whatever it examines."""
        self._process.close()
        with self._lock:
            self._process.end()


class _Checker:
    """Examines samples, in the process of a check."""

    def __init__(self, sources: Sequence[ScanSource]) -> None:
        self._sources = sources
        self._opened: dict[int, OpenedScanSource] = {}

    def __call__(self, place: tuple[int, int]) -> SampleFacts:
        source, index = place
        if source not in self._opened:
            self._opened[source] = self._sources[source].open()
        (facts,) = examine_samples(self._opened[source], index, index + 1)
        return replace(facts, text="", fields=[])
