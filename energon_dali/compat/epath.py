"""Energon's paths: local files and objects in stores, with the methods of pathlib that programs use."""

from __future__ import annotations

import glob
import io
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, overload

from energon_dali.compat.remote_file import TextUpload, Upload, opened
from energon_dali.errors import ConfigError, StorageError
from energon_dali.shards import StoragePath
from energon_dali.shards.storage import dss_location

DEFAULT_PROFILE_NAME = "__filesystem__"
"""Profile of local paths, as multi-storage-client names it."""

_LOCAL_PROFILES = (DEFAULT_PROFILE_NAME, "default")
"""Profiles of multi-storage-client for local files; the second is that of its older versions."""

_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9]*)://(?P<profile>[^/]*)(?:/(?P<path>.*))?", re.DOTALL)
Mode = Literal["r", "rb", "w", "wb"]


@dataclass(frozen=True)
class FileInfo:
    """What `EPath.stat` says about a file or folder."""

    key: str
    """Path inside its file system."""
    content_length: int
    """Size in bytes; 0 for a folder."""
    type: Literal["file", "directory"]
    """What it is."""
    last_modified: datetime
    """When a local file was changed, in UTC; the beginning of 1970 where the store does not report it."""


class EPath:
    """A path in the local file system, or in a store by URL.

    Objects are immutable, hashable, sortable, picklable, and hold no connection. `str()` and `url` give the path of a
    local file, or the URL.

    Args:
        initial_path: A path, local and relative to the current folder unless it is absolute; or a URL: `msc://`
            (profile of multi-storage-client), `dss://NAME@VERSION/...` (below the folder `NVDATASET_CACHE_DIR`),
            `file://`, or another scheme that this package reads, such as `s3://`.

    Raises:
        ConfigError: The path leads above its root, or a dss:// path is incomplete or has no cache folder.
        StorageError: The scheme of the URL is unknown.
    """

    __slots__ = ("internal_path", "profile", "protocol")

    internal_path: PurePosixPath
    """The path without protocol and profile, absolute."""
    profile: str
    """Profile of multi-storage-client, bucket or host; `DEFAULT_PROFILE_NAME` for local files, "dss" for dss://."""
    protocol: str
    """Scheme of the URL; "" for local files."""

    def __init__(self, initial_path: str | os.PathLike[str] | EPath) -> None:
        if isinstance(initial_path, EPath):
            self._set(initial_path.protocol, initial_path.profile, initial_path.internal_path)
            return
        if isinstance(initial_path, StoragePath):
            initial_path = initial_path.url
        text = os.fspath(initial_path)
        match = _URL.fullmatch(text) if not isinstance(initial_path, Path) else None
        is_local = match is not None and match["protocol"] in ("msc", "rclone") and match["profile"] in _LOCAL_PROFILES
        if match is None or match["protocol"] == "file" or is_local:
            if match is not None:
                text = f"/{match['path'] or ''}" if is_local else f"{match['profile']}/{match['path'] or ''}"
            self._set("", DEFAULT_PROFILE_NAME, _normal(PurePosixPath(os.path.join(os.getcwd(), text)), text))
            return
        protocol, profile, path = match["protocol"], match["profile"], match["path"] or ""
        if protocol == "rclone":
            warnings.warn("rclone:// is deprecated: use msc:// instead.", FutureWarning, stacklevel=2)
            protocol = "msc"
        if protocol == "dss":
            dss_location(text)  # raises if it is incomplete
            protocol, profile, path = "dss", "dss", f"{profile}/{path}"
        else:
            StoragePath.of(f"{protocol}://{profile}")  # raises if the scheme is unknown
        self._set(protocol, profile, _normal(PurePosixPath("/", path), text))

    def _set(self, protocol: str, profile: str, path: PurePosixPath) -> None:
        object.__setattr__(self, "protocol", protocol)
        object.__setattr__(self, "profile", profile)
        object.__setattr__(self, "internal_path", path)

    def _at(self, path: PurePosixPath) -> EPath:
        made = object.__new__(EPath)
        made._set(self.protocol, self.profile, _normal(path, str(path)))
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"internal_path": self.internal_path, "profile": self.profile, "protocol": self.protocol}

    def __setstate__(self, state: dict[str, Any]) -> None:
        local = state["profile"] == DEFAULT_PROFILE_NAME
        protocol = state.get("protocol", "" if local else "dss" if state["profile"] == "dss" else "msc")
        self._set(protocol, state["profile"], state["internal_path"])

    # --- names -----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The path of a local file, or the URL."""
        if not self.protocol:
            return str(self.internal_path)
        if self.protocol == "dss":
            return f"dss:/{self.internal_path}"
        return f"{self.protocol}://{self.profile}{self.internal_path}".rstrip("/")

    @property
    def storage_path(self) -> StoragePath:
        """The same path for this package's own functions; a dss:// path is that of its copy in the cache folder."""
        return StoragePath.of(self.url)

    @property
    def name(self) -> str:
        """The last component."""
        return self.internal_path.name

    @property
    def display_name(self) -> str:
        """The name of the dataset: the last component; of a dss:// path NAME@VERSION."""
        return self.internal_path.parts[1] if self.protocol == "dss" else self.name

    @property
    def parent(self) -> EPath:
        """The folder that holds it."""
        return self._at(self.internal_path.parent)

    def with_suffix(self, suffix: str) -> EPath:
        """Returns the path with another suffix, such as ".json"."""
        return self._at(self.internal_path.with_suffix(suffix))

    def relative_to(self, other: EPath) -> str:
        """Returns the path relative to a folder of the same store.

        Raises:
            ConfigError: It is in another store.
            ValueError: It is not below the folder.
        """
        self._check_store(other)
        return str(self.internal_path.relative_to(other.internal_path))

    def __truediv__(self, other: str | os.PathLike[str] | EPath) -> EPath:
        if isinstance(other, EPath):
            return other
        name = os.fspath(other)
        if name.startswith("/") or "://" in name:
            return EPath(name)
        return self._at(self.internal_path / name)

    # --- files -----------------------------------------------------------------------------------------------------

    def is_local(self) -> bool:
        """Returns whether it is in the local file system."""
        return self.storage_path.is_local

    def local_path(self) -> Path:
        """Returns the path in the local file system.

        Raises:
            ValueError: It is not local.
        """
        path = self.storage_path
        if not path.is_local:
            raise ValueError(f"{self} is not in the local file system.")
        return path.local

    def is_file(self) -> bool:
        """Returns whether there is such a file."""
        return self.storage_path.is_file()

    def is_dir(self) -> bool:
        """Returns whether there is such a folder, or any object with that prefix."""
        return self.storage_path.is_dir()

    def exists(self) -> bool:
        """Returns whether there is such a file or folder."""
        return self.is_file() or self.is_dir()

    def size(self) -> int:
        """Returns the size of the file in bytes."""
        return self.storage_path.size()

    def stat(self) -> FileInfo:
        """Returns size, kind and time.

        Raises:
            FileNotFoundError: There is no such file or folder.
        """
        path = self.storage_path
        kind: Literal["file", "directory", None] = "file" if self.is_file() else "directory" if self.is_dir() else None
        if kind is not None:
            seconds = path.local.stat().st_mtime if path.is_local else 0.0
            changed = datetime.fromtimestamp(seconds, timezone.utc)
            return FileInfo(str(self.internal_path), self.size() if kind == "file" else 0, kind, changed)
        raise FileNotFoundError(f"{self} does not exist.")

    @overload
    def open(
        self, mode: Literal["r", "w"] = "r", block_size: int | None = None, prefetch_file: bool = False
    ) -> IO[str]: ...

    @overload
    def open(
        self, mode: Literal["rb", "wb"], block_size: int | None = None, prefetch_file: bool = False
    ) -> IO[bytes]: ...

    def open(self, mode: Mode = "r", block_size: int | None = None, prefetch_file: bool = False) -> IO[Any]:
        """Opens the file. Writing creates the folders above it; a remote file is uploaded when it is closed.

        Args:
            mode: "r", "rb", "w" or "wb"; text is UTF-8.
            block_size: Bytes per request of a remote file; None chooses.
            prefetch_file: Read a remote file with one request.

        Raises:
            ConfigError: The mode is unknown.
            FileNotFoundError: It is opened for reading and does not exist.
            StorageError: It cannot be read or written.
        """
        if mode not in ("r", "rb", "w", "wb"):
            raise ConfigError(f"EPath.open was given mode={mode!r}: give 'r', 'rb', 'w' or 'wb'.")
        encoding = None if "b" in mode else "utf-8"
        path = self.storage_path
        if path.is_local:
            if "w" in mode:
                path.local.parent.mkdir(parents=True, exist_ok=True)
            return open(path.local, mode, encoding=encoding)
        if "w" in mode:
            upload = Upload(path)
            return upload if encoding is None else TextUpload(upload, encoding=encoding)
        binary = opened(path, block_size, prefetch_file)
        return binary if encoding is None else io.TextIOWrapper(binary, encoding=encoding)

    def read_bytes(self) -> bytes:
        """Returns the content of the file."""
        return self.storage_path.read_bytes()

    def read_text(self) -> str:
        """Returns the content of the file, which is UTF-8."""
        return self.read_bytes().decode("utf-8")

    def write_bytes(self, data: bytes) -> None:
        """Writes the file, and creates the folders above it."""
        with self.open("wb") as file:
            file.write(data)

    def write_text(self, text: str) -> None:
        """Writes the file in UTF-8, and creates the folders above it."""
        self.write_bytes(text.encode("utf-8"))

    def mkdir(self, exist_ok: bool = True, parents: bool = False) -> None:
        """Creates a local folder; in a store, folders need not exist.

        Args:
            exist_ok: Accept a folder that is already there.
            parents: Ignored: folders above it are created as well.
        """
        if self.is_local():
            self.local_path().mkdir(exist_ok=exist_ok, parents=True)

    def walk(self) -> Iterator[EPath]:
        """Yields all files below this folder."""
        for name in self.storage_path.list_files():
            yield self / name

    def glob(self, pattern: str) -> Iterator[EPath]:
        """Yields the files below this folder whose relative paths match, in sorted order.

        Args:
            pattern: `*` and `?` match inside one component, `**` any number of folders, linked ones too. Local names
                that begin with a dot are matched only by patterns with such names.
        """
        if self.is_local() and "**" not in pattern:
            folder = self.local_path()
            for name in sorted(glob.glob(pattern, root_dir=folder)):
                if (folder / name).is_file():
                    yield self / name
            return
        wanted = _pattern(pattern)
        shows_hidden = not self.is_local() or "/." in f"/{pattern}"
        for name in self.storage_path.list_files():
            if wanted.fullmatch(name) and (shows_hidden or "/." not in f"/{name}"):
                file = self / name
                if not self.is_local() or file.is_file():  # a link may lead nowhere
                    yield file

    def copy(self, target: EPath) -> None:
        """Copies a file, or all files of a folder, also between stores.

        Args:
            target: The new file or folder.
        """
        if not self.is_file():
            for path in self.walk():
                path.copy(target / path.relative_to(self))
        elif self.is_local() and target.is_local():
            target.local_path().parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.local_path(), target.local_path())
        else:
            with self.open("rb") as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)

    def move(self, target: EPath) -> None:
        """Copies a file and removes the original."""
        self.copy(target)
        self.unlink()

    def unlink(self) -> None:
        """Removes the file.

        Raises:
            FileNotFoundError: There is no such file.
        """
        if not self.is_file():
            raise FileNotFoundError(f"{self} does not exist.")
        self.storage_path.remove()

    # --- comparison ------------------------------------------------------------------------------------------------

    def _check_store(self, other: EPath) -> None:
        if (self.protocol, self.profile) != (other.protocol, other.profile):
            raise ConfigError(f"{self} and {other} are in different stores: only paths of one store can be compared.")

    def __lt__(self, other: EPath) -> bool:
        self._check_store(other)
        return self.internal_path < other.internal_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EPath) and self.url == other.url

    def __hash__(self) -> int:
        return hash((self.internal_path, self.profile))

    def __fspath__(self) -> str:
        return self.storage_path.url

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"EPath({self.url!r})"


def _normal(path: PurePosixPath, given: str) -> PurePosixPath:
    """Returns an absolute path without `.` and `..`."""
    parts: list[str] = []
    for part in path.parts[1:]:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise ConfigError(f"The path {given} leads above its root. Remove a `..` from it.")
    return PurePosixPath("/", *parts)


def _pattern(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression of a glob pattern."""
    text = ""
    for word in re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern):
        special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(word)
        text += special if special is not None else word if word.startswith("[") else re.escape(word)
    return re.compile(text, re.DOTALL)


def cache_folder() -> EPath | None:
    """Returns the folder of the datasets of dss:// paths, None if the environment names none."""
    folder = os.environ.get("NVDATASET_CACHE_DIR")
    try:
        return EPath(folder) if folder else None
    except StorageError:
        return None


NVDATASET_CACHE_DIR = cache_folder()
"""Folder of the datasets of dss:// paths, from the environment."""
