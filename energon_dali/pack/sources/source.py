"""What every kind of source can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from energon_dali.pack.files import Fingerprint
from energon_dali.pack.reading import ReaderSpec
from energon_dali.pack.record import Record

OnSkipped = Callable[[str, str], None]
"""Takes (what it is in the source, why it is left out)."""


class Source(ABC):
    """Something that can be packed. The same source gives the same records in the same order."""

    kind: str

    def __init__(self) -> None:
        self._fingerprint = Fingerprint()

    @abstractmethod
    def describe(self) -> list[str]:
        """Returns lines about what was found, for the terminal."""

    @abstractmethod
    def records(self, skipped: OnSkipped) -> Iterator[Record]:
        """Yields what is to be packed, in the order of the source.

        Args:
            skipped: Called with everything that is left out.

        Raises:
            DatasetError: The source is damaged as a whole.
        """

    def fingerprint(self) -> str:
        """Returns what changes when a file of the source does; complete once `records` has ended."""
        return self._fingerprint.digest()

    @abstractmethod
    def reader(self) -> ReaderSpec:
        """Returns how records are read; picklable."""

    @abstractmethod
    def dataset_config(self, part_names: Iterable[str]) -> dict[str, Any]:
        """Returns the content of `dataset.yaml`, given all parts that the shards have."""
