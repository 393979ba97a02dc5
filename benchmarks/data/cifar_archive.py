"""An archive in the format of cifar-10-python.tar.gz, of real photographs: `python -m benchmarks.data.cifar_archive`.

Each class is a photograph, and its images are crops of it. So the whole way from the archive on can be shown where
there is no network.
"""

from __future__ import annotations

import argparse
import gzip
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.data.photographs import PHOTOGRAPHS, open_photograph

NAME = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
SIDE_PX = 32
SEED = 7


def write_cifar_archive(folder: Path, *, train: int = 1800, test: int = 200) -> Path:
    """Returns the path of the archive, the same bytes every time with the same packages.

    Args:
        folder: Gets the file cifar-10-python.tar.gz.
        train: Images of data_batch_1 to data_batch_5 together; a multiple of 5.
        test: Images of test_batch.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    names = [f"data_batch_{number}" for number in range(1, 6)]
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        _add(tar, "batches.meta", _meta(train // 5))
        for number, name in enumerate(names):
            _add(tar, name, _batch(name, number * (train // 5), train // 5))
        _add(tar, "test_batch", _batch("test_batch", train, test))
    return path


def _meta(per_batch: int) -> dict[bytes, Any]:
    labels = [Path(photograph.path).stem.encode() for photograph in PHOTOGRAPHS]
    return {b"num_cases_per_batch": per_batch, b"label_names": labels, b"num_vis": 3 * SIDE_PX * SIDE_PX}


def _batch(name: str, first: int, count: int) -> dict[bytes, Any]:
    labels, rows, files = [], [], []
    for index in range(first, first + count):
        rng = np.random.Generator(np.random.Philox(key=[SEED, index]))
        label = int(rng.integers(len(PHOTOGRAPHS)))
        rows.append(_crop(rng, label).transpose(2, 0, 1).reshape(-1))
        labels.append(label)
        files.append(f"{Path(PHOTOGRAPHS[label].path).stem}_{index:06d}.png".encode())
    title = f"crops of photographs, {name}".encode()
    return {b"batch_label": title, b"labels": labels, b"data": np.stack(rows), b"filenames": files}


def _crop(rng: np.random.Generator, label: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Returns uint8[32, 32, 3]: a square of a quarter to all of the photograph's shorter side, mirrored or not."""
    picture = open_photograph(PHOTOGRAPHS[label])
    side = int(min(picture.size) * rng.uniform(0.25, 1.0))
    left, top = int(rng.integers(picture.width - side + 1)), int(rng.integers(picture.height - side + 1))
    crop = picture.resize((SIDE_PX, SIDE_PX), Image.Resampling.BOX, box=(left, top, left + side, top + side))
    pixels = np.asarray(crop)
    return np.ascontiguousarray(pixels[:, ::-1] if rng.random() < 0.5 else pixels)


def _add(tar: tarfile.TarFile, name: str, value: dict[bytes, Any]) -> None:
    data = pickle.dumps(value, protocol=2)  # the protocol of the official archive
    entry = tarfile.TarInfo(f"{FOLDER}/{name}")
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def main() -> None:
    """Writes the archive to the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data.cifar_archive", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for cifar-10-python.tar.gz")
    parser.add_argument("--train", type=int, default=1800, help="images to train on (default: 1800)")
    parser.add_argument("--test", type=int, default=200, help="images to test on (default: 200)")
    options = parser.parse_args()
    print(write_cifar_archive(options.out, train=options.train, test=options.test))


if __name__ == "__main__":
    main()
