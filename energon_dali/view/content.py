"""A part as the page shows it, by its text, its values or its first bytes; and its bytes as a browser gets them.

Media are sent so that they play, everything else so that nothing runs.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from energon_dali.errors import EnergonDaliError
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.storage.request_pool import CALLS_AT_ONCE, map_in_threads
from energon_dali.view.conversation import Conversation, find_conversation
from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.guard import DATA_POLICY
from energon_dali.view.viewed_sample import ViewedPart, ViewedSample

MOST_TEXT_BYTES = 256 << 10
"""Bytes of a part that are shown at a time; more would make the page slow."""
SNIPPET_BYTES = 600
"""Bytes of a text that the grid shows."""
_DUMPED_BYTES = 512
_MORE_DUMPED_BYTES = 8 << 10
_HEAD_BYTES = 4096
_NPY_MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 64 << 10
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


@dataclass(frozen=True, slots=True)
class ShownPart:
    """A part as the page shows it."""

    part: ViewedPart
    """The part."""
    kind: Literal["image", "av", "json", "chat", "text", "bytes", "array", "error"]
    """How it is shown."""
    text: str = ""
    """Its text, a dump of its first bytes, a description, or an error."""
    note: str = ""
    """What is not shown, or was not as expected."""
    rest: int | None = None
    """Byte at which what is not shown yet begins; None if there is no more."""
    conversation: Conversation | None = None
    """The conversation that its JSON is; only of a "chat"."""


def show_part(dataset: ViewedDataset, sample: ViewedSample, part: ViewedPart) -> ShownPart:
    """Returns a part as the page shows it; one that cannot be read is shown with the reason.

    Args:
        dataset: The dataset.
        sample: The sample.
        part: One of its parts.
    """
    if part.kind in ("image", "av"):
        return ShownPart(part, part.kind)
    try:
        content = dataset.read(sample, part, 0, MOST_TEXT_BYTES)
    except (EnergonDaliError, OSError) as error:
        return ShownPart(part, "error", str(error))
    is_whole = len(content) >= part.size
    if part.kind == "json" and is_whole:
        return _shown_json(sample, part, content)
    if part.kind in ("json", "text"):
        return _shown_text(part, content, is_whole)
    if content.startswith(_NPY_MAGIC):
        return ShownPart(part, "array", describe_npy(content))
    if _is_text(content):
        return _shown_text(part, content, is_whole)
    rest = _DUMPED_BYTES if part.size > _DUMPED_BYTES else None
    note = f"The first {_DUMPED_BYTES} bytes, in hexadecimal." if rest else "In hexadecimal."
    return ShownPart(part, "bytes", dump(content[:_DUMPED_BYTES]), note, rest)


def more_of_part(dataset: ViewedDataset, sample: ViewedSample, part: ViewedPart, start: int) -> tuple[str, int | None]:
    """Returns (what follows on the page after the bytes that it shows, where the rest begins; None at the end).

    Args:
        dataset: The dataset.
        sample: The sample.
        part: One of its parts that is shown as text or in hexadecimal.
        start: Number of bytes that are shown.

    Raises:
        DatasetError: The shard changed since it was indexed, or is missing.
        StorageError: It cannot be read.
    """
    is_dump = part.kind == "binary" and not _is_text(dataset.read(sample, part, 0, _HEAD_BYTES))
    content = dataset.read(sample, part, start, _MORE_DUMPED_BYTES if is_dump else MOST_TEXT_BYTES)
    if start + len(content) < part.size and not is_dump:
        content = content[: _whole_letters(content)]
    end = start + len(content)
    text = "\n" + dump(content, start) if is_dump else content.decode("utf-8", "replace")
    return text, end if content and end < part.size else None


def _whole_letters(content: bytes) -> int:
    """Returns the length of UTF-8 text without the letter that its end divides."""
    for back in range(1, min(4, len(content)) + 1):
        if content[-back] & 0xC0 != 0x80:  # where a letter begins
            length = 1 if content[-back] < 0xC0 else 2 if content[-back] < 0xE0 else 3 if content[-back] < 0xF0 else 4
            return len(content) - back if length > back else len(content)
    return len(content)


def snippets(dataset: ViewedDataset, samples: Sequence[ViewedSample]) -> list[str]:
    """Returns the beginning of the first text or JSON part of each sample; "" if it has none or cannot be read.

    Args:
        dataset: The dataset; if it is remote, several samples are read at the same time.
        samples: The samples.
    """
    if "://" not in dataset.path:
        return [_snippet(dataset, sample) for sample in samples]
    return list(map_in_threads(partial(_snippet, dataset), samples, CALLS_AT_ONCE))


def _snippet(dataset: ViewedDataset, sample: ViewedSample) -> str:
    part = next((part for kind in ("text", "json") for part in sample.parts if part.kind == kind), None)
    if part is None:
        return ""
    try:
        content = dataset.read(sample, part, 0, SNIPPET_BYTES)
    except (EnergonDaliError, OSError):
        return ""
    cut = content[: _whole_letters(content)] if len(content) < part.size else content
    return " ".join(cut.decode("utf-8", "replace").split())


def _shown_json(sample: ViewedSample, part: ViewedPart, content: bytes) -> ShownPart:
    try:
        value = parse_json(content, any_number=True)
        text = json.dumps(value, indent=2, ensure_ascii=False)
        found = find_conversation(value, sample.parts)
        return ShownPart(part, "json" if found is None else "chat", text, conversation=found)
    except (ValueError, RecursionError) as error:
        shown = _shown_text(part, content)
        return ShownPart(part, "text", shown.text, f"This is not valid JSON: {str(error)[:300]}")


def _shown_text(part: ViewedPart, content: bytes, is_whole: bool = True) -> ShownPart:
    rest = None
    note = ""
    if not is_whole:
        content = content[: _whole_letters(content)]
        rest = len(content)
        note = f"The first {rest:,} of {part.size:,} bytes."
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        text = content.decode("utf-8", "replace")
        note = f"{note} Byte {error.start:,} is not UTF-8; what cannot be read is shown as \ufffd.".strip()
    return ShownPart(part, "text", text, note, rest)


def _is_text(content: bytes) -> bool:
    head = content[:_HEAD_BYTES]
    if not head or b"\0" in head:
        return False
    text = head.decode("utf-8", "replace")
    return sum(letter == "\ufffd" or (letter < " " and letter not in "\t\n\r") for letter in text) * 50 < len(text)


def describe_npy(content: bytes) -> str:
    """Returns what the header of a .npy file says, without creating an array.

    Args:
        content: The file, or its beginning.
    """
    try:
        version, width = content[6], 2 if content[6] == 1 else 4
        size = int.from_bytes(content[8 : 8 + width], "little")
        if version not in (1, 2, 3) or size > _MOST_HEADER_BYTES:
            raise ValueError(f"version {version}, a header of {size:,} bytes")
        text = content[8 + width : 8 + width + size].decode("utf-8" if version == 3 else "latin-1")
        header: Any = ast.literal_eval(text.strip())
        if not isinstance(header, dict):
            raise ValueError("it is not a dict")
        order = ", in Fortran order" if header.get("fortran_order") else ""
        return f"NumPy array of {header['descr']!r}, shape {header['shape']!r}{order}"
    except (KeyError, IndexError, SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        return f"A NumPy file whose header cannot be read: {str(error)[:200]}"


def dump(content: bytes, first: int = 0) -> str:
    """Returns bytes as a table: offset, 16 bytes in hexadecimal, and the letters among them.

    Args:
        content: The bytes.
        first: Offset of the first of them.
    """
    lines = []
    for start in range(0, len(content), 16):
        row = content[start : start + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{first + start:08x}  {row.hex(' ', 1):<47}  {letters}")
    return "\n".join(lines)


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


def read_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns the (start, stop) that a header asks for, the whole if it asks for none or several; None if outside.

    Args:
        header: The header `Range`.
        size: Size of the part in bytes.
    """
    match = None if header is None else _RANGE.fullmatch(header.strip())
    if match is None or match.group() == "bytes=-":
        return (0, size)
    first, last = (int(text[:18]) if text else None for text in match.groups())
    if first is None:
        assert last is not None, "the pattern without both numbers is refused above"
        return (max(0, size - last), size) if last and size else None
    stop = size if last is None else min(size, last + 1)
    return (first, stop) if first < stop else None


def file_name(sample: ViewedSample, part: ViewedPart) -> str:
    """Returns the name under which a browser stores a part, percent-encoded; without folders."""
    name = f"{sample.key}.{part.name}".replace("/", "_").replace("\\", "_")
    return quote(re.sub(r"[\x00-\x1f\x7f]", "_", name).lstrip(".") or "part", safe="")
