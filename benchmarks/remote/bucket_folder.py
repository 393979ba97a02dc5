"""Buckets on the local disk: subfolders of one folder, whose files are the objects."""

from __future__ import annotations

import os
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from benchmarks.remote.messages import OpenFile, RequestError

UPLOADS = ".uploads"
"""Subfolder for unfinished uploads; not the name of a bucket, since those begin with a letter or digit."""
OPEN_FILES = 4096


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An open object."""

    file: OpenFile
    size: int
    etag: str
    """In quotation marks. It changes with every write, and is not a digest."""
    modified: str
    """As a header has it."""
    identity: tuple[int, int, int]
    headers: bytes
    """Those that every response with this object has."""


class BucketFolder:
    """The objects below a folder.

    Args:
        root: The folder; each subfolder is a bucket.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: OrderedDict[str, StoredObject] = OrderedDict()

    def path_of(self, bucket: str, key: str = "") -> str:
        """Returns the path of a bucket or an object.

        Raises:
            RequestError: The name leads elsewhere.
        """
        parts = key.split("/") if key else []
        if not bucket or bucket.startswith(".") or "." in parts or ".." in parts or "\0" in key or key.startswith("/"):
            raise RequestError(400, "InvalidArgument", f"Bucket {bucket!r} and key {key!r} do not name a file.")
        return f"{self.root}/{bucket}/{key}" if key else f"{self.root}/{bucket}"

    def has_bucket(self, bucket: str) -> bool:
        return os.path.isdir(self.path_of(bucket))

    def open(self, bucket: str, key: str) -> StoredObject:
        """Returns an object, which stays open for the next requests. Changed files are opened again.

        Raises:
            RequestError: There is no such object.
        """
        path = self.path_of(bucket, key)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            status = None
        found = self._open.get(path)
        if status is None or not (status.st_mode & 0o100000):
            code, what = ("NoSuchKey", f"key {key!r}") if self.has_bucket(bucket) else ("NoSuchBucket", "bucket")
            raise RequestError(404, code, f"There is no {what} in {bucket!r}.")
        identity = (status.st_ino, status.st_mtime_ns, status.st_size)
        if found is not None and found.identity == identity:
            self._open.move_to_end(path)
            return found
        if found is not None:
            del self._open[path]
        elif len(self._open) >= OPEN_FILES:
            self._open.popitem(last=False)
        etag = '"{:x}-{:x}-{:x}"'.format(*identity)
        modified = formatdate(status.st_mtime, usegmt=True)
        headers = (
            f"ETag: {etag}\r\nLast-Modified: {modified}\r\nAccept-Ranges: bytes\r\n"
            "Content-Type: application/octet-stream\r\n"
        ).encode()
        self._open[path] = StoredObject(OpenFile(path), status.st_size, etag, modified, identity, headers)
        return self._open[path]

    def etag(self, bucket: str, key: str) -> str | None:
        """Returns the ETag of an object; None if there is none."""
        try:
            return self.open(bucket, key).etag
        except RequestError:
            return None

    def write(self, bucket: str, key: str, content: bytes) -> str:
        """Writes an object, all of it or none, and returns its ETag.

        Raises:
            RequestError: There is no such bucket, or a folder has the name.
        """
        if not self.has_bucket(bucket):
            raise RequestError(404, "NoSuchBucket", f"There is no bucket {bucket!r}.")
        path = self.path_of(bucket, key)
        if key.endswith("/"):  # a marker of a folder
            os.makedirs(path, exist_ok=True)
            return '"folder"'
        aside = self._aside()
        with open(aside, "xb") as file:
            file.write(content)
        self._move(aside, path)
        return self.open(bucket, key).etag

    def remove(self, bucket: str, key: str) -> None:
        """Removes an object, and the folders that become empty. A missing one is not an error."""
        path = self.path_of(bucket, key)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        folder = os.path.dirname(path)
        top = self.path_of(bucket)
        while folder != top:
            try:
                os.rmdir(folder)
            except OSError:
                return
            folder = os.path.dirname(folder)

    def buckets(self) -> list[str]:
        return sorted(
            entry.name for entry in os.scandir(self.root) if entry.is_dir() and not entry.name.startswith(".")
        )

    def keys(self, bucket: str, prefix: str) -> Iterator[str]:
        """Returns the keys that begin with a prefix, in no order."""
        top = self.path_of(bucket)
        folder = prefix.rpartition("/")[0]
        for path, _, names in os.walk(self.path_of(bucket, folder) if folder else top):
            inner = path[len(top) + 1 :]
            for name in names:
                key = f"{inner}/{name}" if inner else name
                if key.startswith(prefix):
                    yield key

    def names(self, bucket: str, prefix: str) -> Iterator[str]:
        """Returns what is directly in the folder of a prefix: keys, and folders with a final slash."""
        folder = prefix.rpartition("/")[0]
        try:
            entries = list(os.scandir(self.path_of(bucket, folder)))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if key.startswith(prefix):
                if not entry.is_dir():
                    yield key
                elif any(names for _, _, names in os.walk(entry.path)):
                    yield key + "/"

    def begin_upload(self) -> str:
        """Returns the id of a new upload in parts."""
        name = uuid.uuid4().hex
        os.makedirs(self.root / UPLOADS / name)
        return name

    def write_part(self, upload: str, number: int, content: bytes) -> str:
        """Writes a part, and returns its ETag.

        Raises:
            RequestError: There is no such upload.
        """
        (self._upload(upload) / f"{number:05}").write_bytes(content)
        return f'"part-{number}-{len(content):x}"'

    def finish_upload(self, bucket: str, key: str, upload: str, numbers: list[int]) -> str:
        """Joins parts to an object, and returns its ETag.

        Raises:
            RequestError: There is no such upload, or a part is missing.
        """
        folder = self._upload(upload)
        aside = self._aside()
        try:
            with open(aside, "xb") as file:
                for number in numbers:
                    with open(folder / f"{number:05}", "rb") as part:
                        shutil.copyfileobj(part, file)
        except FileNotFoundError as error:
            os.unlink(aside)
            raise RequestError(400, "InvalidPart", f"Part {number} was not uploaded.") from error
        shutil.rmtree(folder)
        self._move(aside, self.path_of(bucket, key))
        return self.open(bucket, key).etag

    def abort_upload(self, upload: str) -> None:
        shutil.rmtree(self._upload(upload))

    def _upload(self, upload: str) -> Path:
        folder = self.root / UPLOADS / upload
        if not upload.isalnum() or not folder.is_dir():
            raise RequestError(404, "NoSuchUpload", f"There is no upload {upload!r}.")
        return folder

    def _aside(self) -> str:
        folder = self.root / UPLOADS
        folder.mkdir(exist_ok=True)
        return str(folder / f"{uuid.uuid4().hex}.part")

    @staticmethod
    def _move(aside: str, path: str) -> None:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(aside, path)
        except OSError as error:
            os.unlink(aside)
            raise RequestError(409, "InvalidRequest", f"A file and a folder would share a name: {error}.") from error
