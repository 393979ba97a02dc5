"""The official CIFAR-10 archive for Python: what it holds, read without unpacking it."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.tasks.vision.igpt.cifar.plain_pickle import load_plain

SIDE_PX = 32
"""Width and height of a picture."""
FOLDER = "cifar-10-batches-py"
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"
META = "batches.meta"
_CHUNK_BYTES = 1 << 20
_MAX_MEMBER_BYTES = 128 << 20
"""The official files are of 31 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledPictures:
    """Pictures and their classes."""

    pixels: NDArray[np.uint8]
    """uint8[N, 32, 32, 3]."""
    labels: NDArray[np.int64]
    """int64[N], numbers of `CifarArchive.classes`."""


@dataclass(frozen=True, slots=True, eq=False)
class CifarArchive:
    """What an archive holds."""

    classes: tuple[str, ...]
    """Names of the classes."""
    train: LabelledPictures
    """The pictures of data_batch_1 to data_batch_5, in this order."""
    test: LabelledPictures
    """Those of test_batch."""


def read_archive(path: str | os.PathLike[str]) -> CifarArchive:
    """Returns the pictures of an archive in the format of cifar-10-python.tar.gz; nothing is unpacked to disk.

    Args:
        path: The .tar.gz file.

    Raises:
        DatasetFormatError: It is damaged or cut off, a file is missing, or one holds what does not belong there.
        StorageError: It cannot be read.
    """
    wanted = (*TRAIN_BATCHES, TEST_BATCH, META)
    files = _read_members(Path(path), {f"{FOLDER}/{name}" for name in wanted})
    missing = [name for name in wanted if f"{FOLDER}/{name}" not in files]
    if missing:
        raise DatasetFormatError(
            f"{path} has no {', '.join(f'{FOLDER}/{name}' for name in missing)}. It is to be the archive of CIFAR-10 "
            "for Python, cifar-10-python.tar.gz."
        )

    def load(name: str) -> dict[str, Any]:
        return _fields(files.pop(f"{FOLDER}/{name}"), f"{FOLDER}/{name} of {path}")

    classes = _classes(load(META), f"{FOLDER}/{META} of {path}")
    batches = {
        name: _pictures(load(name), len(classes), f"{FOLDER}/{name} of {path}") for name in (*TRAIN_BATCHES, TEST_BATCH)
    }
    train = [batches[name] for name in TRAIN_BATCHES]
    pixels = np.concatenate([batch.pixels for batch in train])
    labels = np.concatenate([batch.labels for batch in train])
    return CifarArchive(classes, LabelledPictures(pixels, labels), batches[TEST_BATCH])


def _read_members(path: Path, wanted: set[str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        # tarfile's own reading of gzip does not look at its checksum, and gzip's does at the end alone.
        with gzip.open(path) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as tar:
                for member in tar:
                    _check_name(path, member.name)
                    if member.name in wanted:
                        files[member.name] = _content(path, tar, member)
            while packed.read(_CHUNK_BYTES):
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetFormatError(
            f"{path} is damaged or cut off ({error}). Remove it, and download it or copy it again."
        ) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.") from error
    return files


def _check_name(path: Path, name: str) -> None:
    if name.startswith("/") or ".." in name.split("/"):
        raise DatasetFormatError(
            f"{path} holds the name {name!r}, which leads out of the archive. Nothing was read from "
            "it: this is not the official archive. Download it again."
        )


def _content(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if not member.isreg() or member.size > _MAX_MEMBER_BYTES:
        raise DatasetFormatError(
            f"{path}: {member.name} is no file of at most {_MAX_MEMBER_BYTES >> 20} MiB, as in the "
            "official archive. Download it again."
        )
    file = tar.extractfile(member)
    assert file is not None  # a regular file
    content = file.read()
    if len(content) != member.size:
        raise EOFError(f"{member.name} ends early")
    return content


def _fields(data: bytes, name: str) -> dict[str, Any]:
    """Returns the entries of a pickled dict, with names as text whatever Python wrote it."""
    value = load_plain(data, name)
    if not isinstance(value, dict):
        raise DatasetFormatError(f"{name} holds a {type(value).__name__}, where a dict is expected.")
    return {_text(key): inner for key, inner in value.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _classes(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    names = fields.get("label_names")
    if not isinstance(names, list) or not names:
        raise DatasetFormatError(f"{name} has no list label_names of the classes' names.")
    return tuple(_text(entry) for entry in names)


def _pictures(fields: dict[str, Any], num_classes: int, name: str) -> LabelledPictures:
    data, labels = fields.get("data"), fields.get("labels")
    row = 3 * SIDE_PX * SIDE_PX
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != row:
        found = f"shape {data.shape}" if isinstance(data, np.ndarray) else f"type {type(data).__name__}"
        raise DatasetFormatError(f"{name}: data is of {found}, where uint8[N, {row}] is expected.")
    known = isinstance(labels, list) and all(
        isinstance(label, int) and not isinstance(label, bool) and 0 <= label < num_classes for label in labels
    )
    if not known or len(labels or ()) != len(data):
        raise DatasetFormatError(f"{name}: labels must be {len(data)} numbers of classes, 0 to {num_classes - 1}.")
    # Row by row, first all of red: [N, 3, 32, 32].
    pixels = np.ascontiguousarray(data.reshape(-1, 3, SIDE_PX, SIDE_PX).transpose(0, 2, 3, 1))
    return LabelledPictures(pixels, np.array(labels, np.int64))
