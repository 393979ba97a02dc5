"""Sends the bytes of a part to the browser: media so that they play, everything else so that nothing runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.guard import DATA_POLICY
from energon_dali.view.viewed_sample import ViewedPart, ViewedSample

CHUNK_BYTES = 1 << 20
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")

AV_TYPES = {
    "aac": "audio/aac",
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "m4v": "video/mp4",
    "mkv": "video/x-matroska",
    "mov": "video/mp4",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
    "webm": "video/webm",
}
"""Content types of the media that browsers play, by suffix."""


class ByteRange(NamedTuple):
    """Bytes start to stop (exclusive) of a part."""

    start: int
    stop: int


def content_type(part: ViewedPart) -> str:
    """Returns the content type of a part: never one that a browser would run, whatever the part is called."""
    if part.kind == "av":
        return AV_TYPES.get(part.name.rpartition(".")[2].lower(), "application/octet-stream")
    return "text/plain; charset=utf-8" if part.kind in ("text", "json") else "application/octet-stream"


def send_part(request: Request, dataset: ViewedDataset, sample: ViewedSample, part: ViewedPart) -> Response:
    """Returns a response with a part, or with the range of it that the browser asks for.

    Args:
        request: The request.
        dataset: The dataset.
        sample: The sample.
        part: One of its parts.

    Raises:
        DatasetError: The shard changed since it was indexed, or is missing.
        StorageError: It cannot be read.
    """
    headers = {"accept-ranges": "bytes", "content-security-policy": DATA_POLICY, "cache-control": "private, no-cache"}
    if part.kind != "av" or request.query_params.get("download"):
        headers["content-disposition"] = f"attachment; filename*=UTF-8''{file_name(sample, part)}"
    wanted = read_range(request.headers.get("range"), part.size)
    if wanted is None:
        return Response(status_code=416, headers={**headers, "content-range": f"bytes */{part.size}"})
    start, stop = wanted
    if (start, stop) != (0, part.size):
        headers["content-range"] = f"bytes {start}-{stop - 1}/{part.size}"
    headers["content-length"] = str(stop - start)
    status = 206 if "content-range" in headers else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=content_type(part))
    first = dataset.read(sample, part, start, min(CHUNK_BYTES, stop - start))  # raises before anything is sent

    def chunks() -> Iterator[bytes]:
        yield first
        for offset in range(start + len(first), stop, CHUNK_BYTES):
            yield dataset.read(sample, part, offset, min(CHUNK_BYTES, stop - offset))

    return StreamingResponse(chunks(), status, headers, content_type(part))


def read_range(header: str | None, size: int) -> ByteRange | None:
    """Returns the range that a header asks for, the whole if it asks for none or for several; None if it is outside.

    Args:
        header: The header `Range`.
        size: Size of the part in bytes.
    """
    match = None if header is None else _RANGE.fullmatch(header.strip())
    if match is None or match.group() == "bytes=-":
        return ByteRange(0, size)
    first, last = (int(text[:18]) if text else None for text in match.groups())
    if first is None:
        assert last is not None, "the pattern without both numbers is refused above"
        return ByteRange(max(0, size - last), size) if last and size else None
    stop = size if last is None else min(size, last + 1)
    return ByteRange(first, stop) if first < stop else None


def file_name(sample: ViewedSample, part: ViewedPart) -> str:
    """Returns the name under which a browser stores a part, percent-encoded; without folders."""
    name = f"{sample.key}.{part.name}".replace("/", "_").replace("\\", "_")
    return quote(re.sub(r"[\x00-\x1f\x7f]", "_", name).lstrip(".") or "part", safe="")
