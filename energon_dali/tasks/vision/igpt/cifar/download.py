"""Fetches an archive once, whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.shards.storage.atomic_file import atomic_file

CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR10_MD5 = "c58f30108f718f92721af3b95e74349a"
"""As the page of the data set gives it."""
_CHUNK_BYTES = 1 << 20
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
