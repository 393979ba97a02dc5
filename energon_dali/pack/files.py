"""The files that a source refers to: what they are, and that they stay inside it and do not change meanwhile."""

from __future__ import annotations

import hashlib
import os
import stat
from functools import partial
from typing import Literal

from energon_dali.decode.formats import FORMATS, signatures
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.demuxers import AV_SUFFIXES
from energon_dali.errors import DatasetError, StorageError
from energon_dali.pack.record import SkipRecord
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.storage.local import read_regular
from energon_dali.shards.storage.retry import repeated

MediaKind = Literal["image", "video", "audio"]
AUDIO_SUFFIXES = frozenset({"aac", "flac", "m4a", "mp3", "ogg", "opus", "wav"})
_GUESS_BYTES = 8192


def suffix_of(path: str) -> str:
    """Returns the suffix of a path in lower case, without its dot; "" if there is none."""
    name = path.rpartition("/")[2]
    stem, _dot, suffix = name.rpartition(".")
    return suffix.lower() if stem else ""


def media_kind(suffix: str) -> MediaKind | None:
    """Returns what a suffix stands for, None if it is not one of media."""
    kind = find_part_kind(suffix)[0]
    if kind == "av":
        return "audio" if suffix in AUDIO_SUFFIXES else "video"
    return "image" if kind == "image" else None


def guess_suffix(content: bytes) -> str:
    """Returns the suffix for some media by their first bytes; "" if they are not recognised."""
    match = signatures().match(content)
    if match is not None and match.lastgroup:
        suffixes = FORMATS[match.lastgroup].suffixes
        return "jpg" if "jpg" in suffixes else suffixes[0]
    import filetype

    found = filetype.guess(content[:_GUESS_BYTES])
    suffix = "" if found is None else str(found.extension)
    return suffix if suffix in AV_SUFFIXES or media_kind(suffix) else ""


class Fingerprint:
    """Collects paths, sizes and times of files, to notice that a source has changed between two runs."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, path: str, size: int, mtime_ns: int) -> None:
        """Adds a file."""
        self._hash.update(f"{path}\0{size}\0{mtime_ns}\n".encode("utf-8", "surrogateescape"))

    def add_file(self, path: str) -> None:
        """Adds a file by its absolute path.

        Raises:
            StorageError: It cannot be looked at.
        """
        try:
            status = os.stat(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
        self.add(os.path.basename(path), status.st_size, status.st_mtime_ns)

    def digest(self) -> str:
        """Returns 64 hexadecimal digits."""
        return self._hash.hexdigest()


class MediaFolder:
    """Files below a folder, named by data that nobody vouches for.

    Args:
        root: Absolute path of the folder.
        allow_outside: Allow paths and links that lead out of it.
        fingerprint: Gets every file that is looked at.
    """

    def __init__(self, root: str, *, allow_outside: bool = False, fingerprint: Fingerprint | None = None) -> None:
        self.root = root
        self._allow_outside = allow_outside
        self._fingerprint = fingerprint
        self._real_root = os.path.realpath(root)
        self._inside: dict[str, bool] = {}

    def locate(self, path: str) -> str:
        """Returns the absolute path of a file.

        Args:
            path: As the source has it: relative to the folder, or absolute.

        Raises:
            SkipRecord: It is a URL, or leads out of the folder.
        """
        if "://" in path:
            raise SkipRecord(f"{excerpt(path)} is a URL; download the files first")
        if "\0" in path:
            raise SkipRecord(f"{excerpt(path)} is not a path")
        full = os.path.normpath(os.path.join(self.root, path))
        if not self._allow_outside and not _is_below(full, self.root):
            raise SkipRecord(f"{excerpt(path)} leads out of {self.root}; --allow-outside packs such files")
        return full

    def look_at(self, path: str) -> tuple[str, int]:
        """Returns (path relative to the folder, size in bytes) of a file, which is not read.

        Raises:
            SkipRecord: There is no such file, or it is outside the folder.
            StorageError: The storage does not answer.
        """
        full = self.locate(path)
        try:
            status = repeated(partial(os.lstat, full), "look at", full)
            if not self._allow_outside:
                self._check_links(full, path, is_link=stat.S_ISLNK(status.st_mode))
            if stat.S_ISLNK(status.st_mode):
                status = repeated(partial(os.stat, full), "look at", full)
        except FileNotFoundError:
            raise SkipRecord(f"{excerpt(path)} does not exist in {self.root}") from None
        except (OSError, ValueError) as error:
            raise SkipRecord(f"{excerpt(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not stat.S_ISREG(status.st_mode):
            raise SkipRecord(f"{excerpt(path)} is not a regular file")
        relative = os.path.relpath(full, self.root)
        if self._fingerprint is not None:
            self._fingerprint.add(relative, status.st_size, status.st_mtime_ns)
        return relative, status.st_size

    def _check_links(self, full: str, path: str, *, is_link: bool) -> None:
        folder = os.path.dirname(full)
        if folder not in self._inside:
            self._inside[folder] = _is_below(os.path.realpath(folder), self._real_root)
        if not self._inside[folder] or (is_link and not _is_below(os.path.realpath(full), self._real_root)):
            raise SkipRecord(f"{excerpt(path)} leads out of {self.root} by a link; --allow-outside packs such files")

    def read(self, path: str, size: int) -> bytes:
        """Returns the content of a file that was looked at.

        Raises:
            DatasetError: It has another size by now, or is gone.
            SkipRecord: It may not be read.
            StorageError: The storage does not answer.
        """
        full = os.path.join(self.root, path)
        try:
            content = repeated(partial(read_regular, full), "read", full)
        except FileNotFoundError:
            found = "is gone"
        except OSError as error:
            raise SkipRecord(f"{excerpt(path)} cannot be read: {error.strerror or error}") from None
        else:
            if len(content) == size:
                return content
            found = f"has {len(content):,} bytes"
        raise DatasetError(
            f"{full} {found}, and had {size:,} bytes when the run began. Pack a source that does not change; then run "
            "again with --overwrite."
        )


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
