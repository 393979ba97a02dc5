"""How the streams of a job are divided among its ranks and workers."""

from __future__ import annotations

from dataclasses import dataclass

from energon_dali.errors import ConfigError, LayoutError

MAX_STREAMS = 1 << 20
"""Most streams of a job: its state has an entry for each."""


@dataclass(frozen=True)
class Layout:
    """How the streams of a job are divided among ranks and workers.

    The k-th batch of stream s has position (k, s) in the order of the job, whatever the layout. A rank delivers its
    streams round robin in the order of `rank_streams`, and skips those that are exhausted.

    Raises:
        LayoutError: world_size x num_workers does not divide num_streams, or there are more than MAX_STREAMS.
    """

    world_size: int
    """Number of ranks, at least 1."""
    num_workers: int
    """Number of workers per rank, at least 1."""
    num_streams: int
    """Number of logical streams of the job."""

    def __post_init__(self) -> None:
        if self.world_size < 1 or self.num_workers < 1 or self.num_streams < 1:
            raise LayoutError(
                f"world_size={self.world_size}, num_workers={self.num_workers} and num_streams={self.num_streams} must "
                "all be at least 1."
            )
        if self.num_streams > MAX_STREAMS:
            raise LayoutError(
                f"world_size={self.world_size} and num_workers={self.num_workers} with num_streams={self.num_streams} "
                f"are invalid: a job has at most {MAX_STREAMS:,} streams, because its state has an entry for each. "
                "Give smaller numbers."
            )
        executors = self.world_size * self.num_workers
        if self.num_streams % executors:
            fitting = ", ".join(str(n) for n in divisors(self.num_streams))
            raise LayoutError(
                f"{self.num_streams} streams cannot be divided over world_size={self.world_size} x "
                f"num_workers={self.num_workers} = {executors}. The product of the two must be one of {fitting}"
                f"{self._fitting_workers()}. The number of streams is fixed when a job first starts: choose ranks and "
                "workers that fit, or start a new job with another num_streams."
            )

    def _fitting_workers(self) -> str:
        """Returns the end of the message: the numbers of workers that fit this world size."""
        if self.num_streams % self.world_size:
            return f"; no number of workers fits world_size={self.world_size}"
        workers = ", ".join(str(n) for n in divisors(self.num_streams // self.world_size))
        return f"; with world_size={self.world_size}, num_workers may be {workers}"

    def rank_streams(self, rank: int) -> list[int]:
        """Returns the streams of a rank, in the order in which it delivers their batches.

        Raises:
            ConfigError: There is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ConfigError(
                f"Rank {rank} does not exist: with world_size={self.world_size} give 0 to {self.world_size - 1}."
            )
        return list(range(rank, self.num_streams, self.world_size))

    def worker_streams(self, rank: int, worker: int) -> list[int]:
        """Returns the streams that a worker of a rank runs.

        Raises:
            ConfigError: There is no such rank or worker.
        """
        if not 0 <= worker < self.num_workers:
            raise ConfigError(
                f"Worker {worker} does not exist: with num_workers={self.num_workers} give 0 to {self.num_workers - 1}."
            )
        return self.rank_streams(rank)[worker :: self.num_workers]

    def worker_of_stream(self, stream: int) -> tuple[int, int]:
        """Returns the (rank, worker) that runs a stream.

        Raises:
            ConfigError: There is no such stream.
        """
        if not 0 <= stream < self.num_streams:
            raise ConfigError(
                f"Stream {stream} does not exist: with num_streams={self.num_streams} give 0 to {self.num_streams - 1}."
            )
        number, rank = divmod(stream, self.world_size)
        return rank, number % self.num_workers


def divisors(number: int) -> list[int]:
    """Returns all divisors of a positive number, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
