"""The identities of a job's datasets, which states are compared by: those of remote datasets are read when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.shards import StoragePath, WebdatasetFolder
from energon_dali.shards.documents.opening import Wanted, opening_files
from energon_dali.shards.index.extent_index import UUID_NAME, read_uuid
from energon_dali.shards.meta.document import META

_UUID = "uuid"


class Identities:
    """Reads the identities of all remote datasets of a job at once, when the first of them is needed. Picklable."""

    def __init__(self) -> None:
        self._roots: dict[StoragePath, str | None] = {}

    def of(self, folder: WebdatasetFolder) -> str | Callable[[], str]:
        """Returns the identity of a dataset's index, or a function that returns it."""
        if folder.root.is_local:
            return folder.uuid
        self._roots.setdefault(folder.root, None)
        return partial(self._read, folder.root)

    def _read(self, root: StoragePath) -> str:
        """Returns the identity of one dataset.

        Raises:
            DatasetFormatError: It is too long.
            StorageError: It cannot be read.
        """
        known = self._roots[root]
        if known is not None:
            return known
        with opening_files() as opening:
            missing = [other for other, uuid in self._roots.items() if uuid is None]
            opening.ahead(Wanted((other / META / UUID_NAME,)) for other in missing)
            self._roots[root] = known = read_uuid(root)
            for other in missing:
                with suppress(DatasetFormatError, StorageError):  # raised when that one is asked for
                    self._roots[other] = read_uuid(other)
        return known


class SourceConfig(Mapping[str, Any]):
    """What identifies a source in a state; picklable.

    Args:
        uuid: Identity of the dataset's index, or a function that returns it.
        others: The other entries.
    """

    def __init__(self, uuid: str | Callable[[], str], others: dict[str, Any]) -> None:
        self._uuid = uuid
        self._others = others

    def __getitem__(self, name: str) -> Any:
        if name == _UUID:
            return self._uuid if isinstance(self._uuid, str) else self._uuid()
        return self._others[name]

    def __iter__(self) -> Iterator[str]:
        return iter((_UUID, *self._others))

    def __len__(self) -> int:
        return 1 + len(self._others)
