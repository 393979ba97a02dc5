"""The folders and files that a mounted dataset shows, made of its index."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from energon_dali.shards import WebdatasetFolder

_CACHED_SHARDS = 8


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file: one part of a sample."""

    shard: int
    """Number of its shard."""
    member: str
    """Its name in the shard, `KEY.PART`."""
    offset: int
    """Where its content begins in the shard, in bytes."""
    size: int
    """Size of its content in bytes."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """A folder whose entries are made when they are asked for."""

    number: int


_Folder = dict[str, "_Node"]
_Node = _Folder | PartFile | _Shard


class DatasetTree:
    """The folders and files of a dataset. Thread-safe.

    The shards are folders. Each holds its parts as files, named as in the tar; slashes in names of shards and in keys
    make folders as well. Names that a file system cannot have, such as `..`, are left out.

    Args:
        folder: The dataset.
        sample_folders: Make a folder of each sample, named by its key, and name files by their parts.
    """

    def __init__(self, folder: WebdatasetFolder, *, sample_folders: bool) -> None:
        self._folder = folder
        self._sample_folders = sample_folders
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, _Folder] = OrderedDict()
        self._root: _Folder = {}
        for number, name in enumerate(folder.shard_names):
            _add(self._root, name.split("/"), _Shard(number))

    def find(self, path: str) -> PartFile | list[str] | None:
        """Returns the file at a path, or the names in the folder there; None if there is neither.

        Args:
            path: Begins with a slash.

        Raises:
            DatasetError: The index of the shard is damaged.
            StorageError: It cannot be read.
        """
        node: _Node | None = self._root
        for name in [name for name in path.split("/") if name]:
            entries = self._open(node)
            node = None if entries is None else entries.get(name)
            if node is None:
                return None
        if isinstance(node, PartFile):
            return node
        return list(self._open(node) or ())

    def _open(self, node: _Node | None) -> _Folder | None:
        """Returns the entries of a folder, or None if it is none."""
        if isinstance(node, _Shard):
            with self._lock:
                entries = self._entries.pop(node.number, None)
                self._entries[node.number] = entries = self._list(node.number) if entries is None else entries
                if len(self._entries) > _CACHED_SHARDS:
                    self._entries.popitem(last=False)
                return entries
        return node if isinstance(node, dict) else None

    def _list(self, number: int) -> _Folder:
        extents = self._folder.index.shard(number)
        entries: _Folder = {}
        for sample in range(extents.num_samples):
            key = extents.key(sample)
            for part, offset, size in extents.parts(sample):
                file = PartFile(number, f"{key}.{part}", offset, size)
                names = [*key.split("/"), part] if self._sample_folders else file.member.split("/")
                _add(entries, names, file)
        return entries


def _add(folder: _Folder, names: Iterable[str], node: _Node) -> None:
    """Adds an entry below a folder, unless its name is taken or cannot be that of a file."""
    *parents, last = names
    if any(name in ("", ".", "..") for name in (*parents, last)):
        return
    for name in parents:
        below = folder.setdefault(name, {})
        if not isinstance(below, dict):
            return
        folder = below
    folder.setdefault(last, node)
