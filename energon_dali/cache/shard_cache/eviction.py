"""Which blocks a full cache evicts for a new one: those of finished jobs, and of jobs with more than their share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class Shares:
    """How running jobs share a cache: each may hold as many bytes as any other.

    A job holds the blocks of the datasets that it reads, so that jobs that read the same ones hold the same blocks.

    Args:
        max_bytes: Size of the cache.
        jobs: By running job, the datasets that it reads.
        dataset_bytes: By dataset, the bytes of its blocks.
    """

    def __init__(
        self, max_bytes: int, jobs: Mapping[bytes, Iterable[bytes]], dataset_bytes: Mapping[bytes, int]
    ) -> None:
        self._share = max_bytes // max(1, len(jobs))
        self._readers: dict[bytes, list[bytes]] = {}
        self._held = dict.fromkeys(jobs, 0)
        for job, datasets in jobs.items():
            for dataset in datasets:
                self._readers.setdefault(dataset, []).append(job)
                self._held[job] += dataset_bytes.get(dataset, 0)

    def has_room(self, job: bytes, size: int) -> bool:
        """Returns whether a job may hold a number of bytes more."""
        return self._held[job] + size <= self._share

    def any_has_room(self, size: int) -> bool:
        """Returns whether a running job may hold a number of bytes more."""
        return any(self.has_room(job, size) for job in self._held)

    def is_finished(self, dataset: bytes) -> bool:
        """Returns whether no running job reads a dataset."""
        return dataset not in self._readers

    def is_surplus(self, dataset: bytes) -> bool:
        """Returns whether running jobs read a dataset, and all of them hold more than their share."""
        return dataset in self._readers and all(self._held[job] > self._share for job in self._readers[dataset])

    def evict(self, dataset: bytes, size: int) -> None:
        """Counts a block that is evicted."""
        for job in self._readers.get(dataset, ()):
            self._held[job] -= size


def choose_victims(
    datasets: Sequence[bytes], sizes: Sequence[int], shares: Shares, wanted: int, *, from_surplus: bool
) -> list[int]:
    """Returns the rows of the blocks to evict, first those of datasets that no running job reads.

    Args:
        datasets: Of each block, the oldest block first.
        sizes: Of each block, in bytes.
        shares: Of the jobs; what is evicted is counted there.
        wanted: Bytes to evict. The result has fewer where there are not as many.
        from_surplus: Evict blocks of jobs that hold more than their share too.
    """
    victims: list[int] = []
    for is_candidate in (shares.is_finished, shares.is_surplus) if from_surplus else (shares.is_finished,):
        for row, (dataset, size) in enumerate(zip(datasets, sizes, strict=True)):
            if wanted <= 0:
                return victims
            if is_candidate(dataset):
                shares.evict(dataset, size)
                victims.append(row)
                wanted -= size
    return victims
