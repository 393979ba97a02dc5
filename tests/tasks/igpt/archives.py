"""Archives in the format of cifar-10-python.tar.gz, whole ones and others."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

NAME = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
CLASSES = ("red", "green", "blue", "grey")
PER_BATCH = 8


def pictures(name: str, count: int) -> tuple[np.ndarray, list[int]]:
    """Returns uint8[count, 3072] and classes: pictures that run from dark to the colour of their class."""
    rng = np.random.default_rng(sum(name.encode()))
    labels = [int(label) for label in rng.integers(len(CLASSES), size=count)]
    colors = np.array([[1, 0.2, 0.2], [0.2, 1, 0.2], [0.2, 0.2, 1], [1, 1, 1]])[labels]
    ramp = np.linspace(30, 220, 32)[None, None, :, None] + rng.normal(0, 8, (count, 1, 32, 32))
    return (ramp * colors[:, :, None, None]).clip(0, 255).astype(np.uint8).reshape(count, 3072), labels


def batch(name: str, count: int) -> dict[bytes, Any]:
    """Returns what a file of pictures holds."""
    data, labels = pictures(name, count)
    return {b"data": data, b"labels": labels, b"filenames": [b"%d.png" % index for index in range(count)]}


def whole() -> dict[str, bytes]:
    """Returns the files of a whole archive, by name."""
    files = {name: pickle.dumps(batch(name, PER_BATCH), protocol=2) for name in TRAIN}
    files["test_batch"] = pickle.dumps(batch("test_batch", 10), protocol=2)
    files["batches.meta"] = pickle.dumps({b"label_names": [name.encode() for name in CLASSES]}, protocol=2)
    return files


def write_archive(folder: Path, files: dict[str, bytes] | None = None, **other: bytes) -> Path:
    """Writes an archive; names without a slash are put into the official folder."""
    path = folder / NAME
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, data in {**(whole() if files is None else files), **other}.items():
            entry = tarfile.TarInfo(name if "/" in name else f"{FOLDER}/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def python_2_pickle(data: np.ndarray, labels: list[int]) -> bytes:
    """Returns the pickle of {"data": ..., "labels": ...} with the opcodes that Python 2 and its numpy wrote."""
    rows, columns = data.shape
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01"
        + b"M"
        + struct.pack("<H", rows)
        + b"M"
        + struct.pack("<H", columns)
        + b"\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T"
        + struct.pack("<i", data.size)
        + data.tobytes()
        + b"tb"
        + b"U\x06labelsq\x08]("
        + numbers
        + b"eu."
    )
