"""Groups consecutive elements to batches of one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_count
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.gathering import GatheringDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, NOTHING, HookRunner
from energon_dali.datasets.restore_key import Key
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.shards.documents.state_entries import count_of, flag_of, state_of
from energon_dali.task_encoder.context import sample_context
from energon_dali.worker_config import WorkerConfig


class BatchDataset(GatheringDataset):
    """Gives `batcher(list of batch_size elements)`; the last batch of an epoch may be smaller.

    Args:
        dataset: The dataset below.
        batch_size: Elements per batch, at least 1.
        batcher: Makes a batch of a list; a generator function may give none or several.
        batcher_stateless: Whether its result depends on its argument (and its seeds) alone.
        batcher_config: Plain values that describe it, for `config()`.
        drop_last: Drop the smaller batch at the end of an epoch.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.
        worker_config: Left out, the inner dataset's.

    Raises:
        ConfigError: batch_size is no whole number or less than 1, or the batcher cannot be called.
    """

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: dict[str, Any] | None = None,
        drop_last: bool = False,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(
            dataset,
            batcher,
            gather_stateless=batcher_stateless,
            failure_tolerance=failure_tolerance,
            worker_config=worker_config,
        )
        self.batch_size = check_count("batch_size", batch_size, "leave the dataset out for single samples")
        self.batcher_config = batcher_config
        self.drop_last = drop_last

    def describe(self) -> str:
        return f"{type(self).__name__}(batch_size={self.batch_size}, drop_last={self.drop_last})"

    @property
    def options(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "drop_last": self.drop_last, "batcher": self.batcher_config}

    def len_stream(self, stream: int) -> int:
        elements = self.dataset.len_stream(stream)
        return elements // self.batch_size if self.drop_last else -(-elements // self.batch_size)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _BatchIterator(self, context)


class _BatchIterator(StreamIterator[Any]):
    def __init__(self, dataset: BatchDataset, context: StreamContext) -> None:
        self._inner = dataset.dataset.open(context)
        self._size = dataset.batch_size
        self._drop_last = dataset.drop_last
        self._seed = dataset.place_seed
        self._runner = HookRunner(dataset, dataset.gather, "batch", dataset.failure_tolerance, context)
        self._ended = False
        self._before: State = {}

    def __next__(self) -> Any:
        runner = self._runner
        while True:
            if not runner.running:
                if runner.is_generator:
                    self._before = {"ended": self._ended, "inner": self._inner.state_dict()}
                samples, keys = self._collect()
                runner.load(samples, tuple(keys))
            batch = runner.step()
            if batch is not NOTHING:
                return batch

    def _collect(self) -> tuple[list[Any], list[Key]]:
        """Takes up to a batch of elements and their keys; raises StopIteration where an epoch ends and none is left."""
        if self._ended:
            self._ended = False
            raise StopIteration
        samples: list[Any] = []
        keys: list[Key] = []
        with sample_context(self._runner.global_index, self._seed):  # what hooks below see as current_batch_index
            for _ in range(self._size):
                try:
                    sample = next(self._inner)
                except StopIteration:
                    if not samples or self._drop_last:
                        raise
                    self._ended = True
                    break
                samples.append(sample)
                keys.append(self._inner.last_key(sample))
        return samples, keys

    def last_key(self, element: Any) -> Key:
        return self._runner.key

    def state_dict(self) -> State:
        runner = self._runner
        if runner.running:
            return {"index": runner.index, **self._before, "offset": runner.offset}
        state = {"index": runner.index, "ended": self._ended, "inner": self._inner.state_dict()}
        return {**state, "offset": runner.skip_outputs} if runner.skip_outputs else state

    def load_state_dict(self, state: State) -> None:
        self._runner.index = count_of(state, "index")
        self._runner.skip_outputs = count_of(state, "offset") if "offset" in state else 0
        self._ended = flag_of(state, "ended")
        self._inner.load_state_dict(state_of(state))

    def close(self) -> None:
        self._inner.close()
