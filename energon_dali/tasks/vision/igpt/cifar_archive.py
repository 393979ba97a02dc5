"""The official CIFAR-10 archives, for Python and in binary form: fetched whole or not at all, and read without
unpacking them.

The pickles of an archive are read as data: lists, dicts, texts, numbers and uint8 arrays, nothing else. A pickle is a
program, and the usual reader runs it. Here it may name only the functions that make an array, and set only the state of
arrays and their dtypes. torch's reader of weights does not support the opcodes of Python 2, which wrote the official
archive.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import pickle
import tarfile
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.shards.storage.atomic_file import atomic_file

_ARRAYS = {
    (module.replace("numpy.core", core), name)
    for core in ("numpy.core", "numpy._core")
    for module, name in (("numpy.core.multiarray", "_reconstruct"), ("numpy.core.numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
"""What pickles of arrays name. numpy 2 writes `numpy._core`; Python 3 writes bytes in protocol 2 by `encode`."""


# The reader in Python, not the one in C: that one takes memory for every number that a pickle counts objects with.
_PythonUnpickler: Any = pickle._Unpickler


class _PlainUnpickler(_PythonUnpickler):  # type: ignore[misc]
    dispatch = dict(_PythonUnpickler.dispatch)  # noqa: RUF012  as the base class has it

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAYS:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return super().find_class(module, name)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"the extension {code}")

    def load_build(self) -> None:
        if not isinstance(self.stack[-2], (np.ndarray, np.dtype)):
            raise pickle.UnpicklingError(f"a state for a {type(self.stack[-2]).__name__}")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def load_plain(data: bytes, name: str) -> Any:
    """Returns what a pickle holds: lists, tuples, dicts, str, bytes, numbers, None, and uint8 arrays.

    Args:
        data: The pickle, of Python 2 or 3.
        name: What it is, for messages.

    Raises:
        DatasetFormatError: It holds anything else, is damaged, or ends too early.
    """
    try:
        value = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
        _check_plain(value)
    except Exception as error:  # damaged pickles fail in any way, RecursionError and MemoryError among them
        raise DatasetFormatError(
            f"{name} holds {error} ({type(error).__name__}). Only lists, dicts, texts, numbers and uint8 arrays are "
            "read, as in the official archive, and no code is run. Download the archive again."
            if isinstance(error, pickle.UnpicklingError)
            else f"{name} is not a complete pickle ({type(error).__name__}: {error}). Download the archive again."
        ) from error
    return value


def _check_plain(value: Any) -> None:
    """Raises an error for what is neither a plain value nor an array of bytes.

    Raises:
        UnpicklingError: It is something else.
    """
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return
    if value is not None and type(value) not in (str, bytes, int, float, bool, list, tuple, dict):
        raise pickle.UnpicklingError(f"a {type(value).__name__}")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _check_plain(inner)


SIDE_PX = 32
"""Width and height of an image."""
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_PYTHON = tuple(f"cifar-10-batches-py/{name}" for name in (*_TRAIN, "test_batch", "batches.meta"))
_BINARY = tuple(
    f"cifar-10-batches-bin/{name}" for name in (*(f"{n}.bin" for n in (*_TRAIN, "test_batch")), "batches.meta.txt")
)
"""The files of an archive: of training in their order, of the test, and the names of the classes."""
_ROW_BYTES = 3 * SIDE_PX * SIDE_PX
_CHUNK_BYTES = 1 << 20
_MAX_MEMBER_BYTES = 128 << 20
"""The official files are of 31 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImages:
    """Images and their classes."""

    pixels: NDArray[np.uint8]
    """uint8[N, 32, 32, 3]."""
    labels: NDArray[np.int64]
    """int64[N], numbers of `CifarArchive.classes`."""


@dataclass(frozen=True, slots=True, eq=False)
class CifarArchive:
    """What an archive holds."""

    classes: tuple[str, ...]
    """Names of the classes."""
    train: LabelledImages
    """The images of data_batch_1 to data_batch_5, in this order."""
    test: LabelledImages
    """The images of test_batch."""


def read_archive(path: str | os.PathLike[str]) -> CifarArchive:
    """Returns the images of an archive; nothing is unpacked to disk. Formats: https://www.cs.toronto.edu/~kriz/cifar.html.

    Args:
        path: A .tar.gz file in the format of cifar-10-python.tar.gz or cifar-10-binary.tar.gz.

    Raises:
        DatasetFormatError: It is damaged or cut off, a file is missing, or one holds what does not belong there.
        StorageError: It cannot be read.
    """
    files = _read_members(Path(path), {*_PYTHON, *_BINARY})
    binary = any(name in files for name in _BINARY)
    wanted = _BINARY if binary else _PYTHON
    missing = [name for name in wanted if name not in files]
    if missing:
        raise DatasetFormatError(
            f"{path} has no {', '.join(missing)}. It has to be an archive of CIFAR-10, cifar-10-python.tar.gz or "
            "cifar-10-binary.tar.gz."
        )
    *batches, meta = wanted
    classes = (_classes_of_text if binary else _classes)(files[meta], f"{meta} of {path}")
    images = [
        (_images_of_rows if binary else _images)(files.pop(name), len(classes), f"{name} of {path}") for name in batches
    ]
    *train, test = images
    pixels = np.concatenate([batch.pixels for batch in train])
    labels = np.concatenate([batch.labels for batch in train])
    return CifarArchive(classes, LabelledImages(pixels, labels), test)


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
            f"{path}: {member.name} is not a file of at most {_MAX_MEMBER_BYTES >> 20} MiB, as in the "
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


def _classes(data: bytes, name: str) -> tuple[str, ...]:
    names = _fields(data, name).get("label_names")
    if not isinstance(names, list) or not names:
        raise DatasetFormatError(f"{name} has no list label_names of the classes' names.")
    return tuple(_text(entry) for entry in names)


def _classes_of_text(data: bytes, name: str) -> tuple[str, ...]:
    names = _text(data).split()
    if not names:
        raise DatasetFormatError(f"{name} has no names of classes, one a line.")
    return tuple(names)


def _images(data: bytes, num_classes: int, name: str) -> LabelledImages:
    fields = _fields(data, name)
    rows, labels = fields.get("data"), fields.get("labels")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != _ROW_BYTES:
        found = f"shape {rows.shape}" if isinstance(rows, np.ndarray) else f"type {type(rows).__name__}"
        raise DatasetFormatError(f"{name}: data is of {found}, where uint8[N, {_ROW_BYTES}] is expected.")
    whole = isinstance(labels, list) and all(type(label) is int for label in labels)
    return _labelled(rows, np.array(labels if whole else [], np.int64), num_classes, name)


def _images_of_rows(data: bytes, num_classes: int, name: str) -> LabelledImages:
    if len(data) % (1 + _ROW_BYTES):
        raise DatasetFormatError(f"{name} has {len(data)} bytes, which are not rows of {1 + _ROW_BYTES}.")
    rows = np.frombuffer(data, np.uint8).reshape(-1, 1 + _ROW_BYTES)
    return _labelled(rows[:, 1:], rows[:, 0].astype(np.int64), num_classes, name)


def _labelled(rows: NDArray[np.uint8], labels: NDArray[np.int64], num_classes: int, name: str) -> LabelledImages:
    if len(labels) != len(rows) or ((labels < 0) | (labels >= num_classes)).any():
        raise DatasetFormatError(f"{name}: labels must be {len(rows)} numbers of classes, 0 to {num_classes - 1}.")
    # Row by row, first all of red: [N, 3, 32, 32].
    pixels = np.ascontiguousarray(rows.reshape(-1, 3, SIDE_PX, SIDE_PX).transpose(0, 2, 3, 1))
    return LabelledImages(pixels, labels)


CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR10_MD5 = "c58f30108f718f92721af3b95e74349a"
"""As the page of the data set gives it."""
_TIMEOUT_SECONDS = 60


def md5_of(path: Path) -> str:
    """Returns the MD5 of a file's bytes, in hexadecimal digits.

    Raises:
        StorageError: The file cannot be read.
    """
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.") from error
    return digest.hexdigest()


def download(url: str, path: Path, md5: str, *, progress: bool = True) -> None:
    """Fetches a file; it appears under its name when it is whole and its checksum is right.

    Several processes may do so at the same time.

    Args:
        url: Where it is.
        path: Where it goes; its folder is made.
        md5: Checksum, in hexadecimal digits.
        progress: Show a progress bar.

    Raises:
        StorageError: The address cannot be reached, the connection broke, or the file cannot be written.
        DatasetFormatError: The checksum is another.
    """
    with atomic_file(path) as partial:
        try:
            found = _fetch(url, partial, progress)
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            raise StorageError(
                f"{url} could not be downloaded to {path}: {error}. Where there is no network, copy {path.name} into "
                f"the folder {path.parent.resolve()}, or name it with dataset.cfg.archive=/path/of/the/archive."
            ) from error
        if found != md5:
            raise DatasetFormatError(
                f"{url} gave a file with the MD5 {found}, and {md5} is expected. Try again; or download it by other "
                f"means to {path}."
            )


def _fetch(url: str, partial: Path, progress: bool) -> str:
    """Writes the file and returns its MD5."""
    from tqdm import tqdm

    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer, partial.open("wb") as file:
        total = int(answer.headers.get("Content-Length") or 0) or None
        with tqdm(total=total, unit="B", unit_scale=True, desc=url.rpartition("/")[2], disable=not progress) as bar:
            while chunk := answer.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                bar.update(len(chunk))
    return digest.hexdigest()
