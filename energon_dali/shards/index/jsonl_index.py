"""The file `x.jsonl.idx`: where each line of a JSONL file begins and where the file ends, as uint64."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.documents.content import map_content
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.protocols import RangeReader

INDEX_SUFFIX = ".idx"
SCAN_BYTES = 8 << 20
"""Bytes per request while indexing."""
BLANK = b" \t\n\r\x0b\x0c"
"""A line with only these bytes is not a sample."""
SHOWN_LINES = 10

_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class JsonlResult:
    """What indexing a JSONL file found."""

    num_samples: int
    """Number of lines that are not blank."""
    doubtful: int
    """Number of those that do not begin with { and end with }; each of them fails alone when it is read."""
    first_doubtful: tuple[int, ...]
    """Numbers of the first of them, blank lines not counted."""


def index_path(path: StoragePath) -> StoragePath:
    """Returns the path of the index of a JSONL file."""
    return StoragePath(path.url + INDEX_SUFFIX)


def read_jsonl_offsets(path: StoragePath) -> npt.NDArray[np.uint64]:
    """Returns the offsets of a JSONL file: mapped if it is local, else read.

    Args:
        path: The JSONL file.

    Returns:
        uint64[lines + 1]: where each sample begins, and the size of the file.

    Raises:
        DatasetFormatError: There is no index, or it is damaged.
        StorageError: It cannot be read.
    """
    index = index_path(path)
    content = map_content(index)
    remedy = f"Run `energon-dali prepare {shlex.quote(str(path))}`."
    if content is None:
        raise DatasetFormatError(f"{path} is not prepared: {index} is missing. {remedy}")
    if len(content) < 16 or len(content) % 8:
        raise DatasetFormatError(
            f"{index} has {len(content)} bytes, which is not a list of at least two offsets of 8 bytes. {remedy}"
        )
    return content.view("<u8")


def prepare_jsonl(path: str | StoragePath, *, progress: Callable[[int, int], None] | None = None) -> JsonlResult:
    """Writes the index of a JSONL file next to it; the file stays as it is.

    Memory use does not depend on the number of lines. Lines are not parsed.

    Args:
        path: Local path or URL of the `.jsonl` file.
        progress: Called with (bytes done, total bytes) from time to time.

    Returns:
        How many samples there are.

    Raises:
        DatasetFormatError: There is no such file, or it has no line that is not blank.
        StorageError: It cannot be read, or the index cannot be written.
    """
    file = StoragePath.of(path)
    try:
        reader = file.open()
    except FileNotFoundError as error:
        raise DatasetFormatError(f"{file} is missing. Give the path of a .jsonl file.") from error
    try:
        with tempfile.TemporaryDirectory(prefix="energon-dali-") as folder:
            local = Path(folder) / "jsonl.idx"
            with local.open("wb") as out:
                found = _write_starts(out, reader, progress)
            if not found.num_samples:
                raise DatasetFormatError(f"{file} has no line that is not blank, so there is nothing to index.")
            local.chmod(0o644)
            index_path(file).write_file(local)
    finally:
        reader.close()
    return found


def _write_starts(out: IO[bytes], reader: RangeReader, progress: Callable[[int, int], None] | None) -> JsonlResult:
    """Writes where the lines that are samples begin, and where the file ends."""
    num_samples = doubtful = 0
    first_doubtful: list[int] = []
    for data, offset in _whole_lines(reader, progress):
        starts, is_clean = _find_samples(data)
        begins = starts.astype(np.uint64) + np.uint64(offset)
        if not num_samples and len(begins):
            begins[0] = 0  # blank lines before the first sample belong to it: the index covers the whole file
        numbers = num_samples + np.flatnonzero(~is_clean)
        doubtful += len(numbers)
        first_doubtful += numbers[: SHOWN_LINES - len(first_doubtful)].tolist()
        num_samples += len(begins)
        out.write(begins.astype("<u8").tobytes())
    out.write(np.array([reader.size], "<u8").tobytes())
    return JsonlResult(num_samples, doubtful, tuple(first_doubtful))


def _whole_lines(reader: RangeReader, progress: Callable[[int, int], None] | None) -> Iterator[tuple[bytes, int]]:
    """Yields (some whole lines, the offset where they begin) of a file."""
    rest, start = b"", 0
    for offset in range(0, reader.size, SCAN_BYTES):
        data = rest + reader.read_at(offset, min(SCAN_BYTES, reader.size - offset))
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end], start
        rest, start = data[end:], start + end
        if progress is not None:
            progress(min(offset + SCAN_BYTES, reader.size), reader.size)
    if rest:
        yield rest + b"\n", start


def _find_samples(data: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Returns (where the lines that are samples begin, which of them begin with { and end with }) of whole lines."""
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes == _NEWLINE)
    starts = np.concatenate(([0], ends[:-1] + 1))
    first, last = codes[starts], codes[np.maximum(ends - 1, starts)]
    samples = (first == ord("{")) & (last == ord("}")) & (ends > starts)
    clean = samples.copy()
    for line in np.flatnonzero(~clean):  # few: blank lines, and lines with blanks at either end
        content = data[starts[line] : ends[line]].strip(BLANK)
        samples[line] = bool(content)
        clean[line] = content.startswith(b"{") and content.endswith(b"}")
    return starts[samples], clean[samples]
