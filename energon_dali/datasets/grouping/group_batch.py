"""Groups elements of one kind to batches: each batch holds elements that share a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_count, check_function
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.gathering import GatheringDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, NOTHING, FailurePolicy, HookRunner
from energon_dali.datasets.restore_key import Key, key_to_json, restore_groups
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError
from energon_dali.shards.documents.state_entries import checked_count, count_of, flag_of, keys_of, state_of
from energon_dali.task_encoder.context import sample_context
from energon_dali.worker_config import WorkerConfig

Criterion = Callable[[Any], "tuple[Hashable, int | None]"]


class GroupBatchDataset(GatheringDataset):
    """Gives `batcher(elements)` for elements that share a group key, as soon as a group is full.

    A sample whose criterion raises is dropped and counted (`SkipSample`: silently); it joins no group.

    Args:
        dataset: The dataset below.
        fixed_batch_size: Elements per batch; None takes the size that the criterion gives, which else has to be None.
        sample_group_key: Gives (group key, batch size or None) of an element.
        batcher: Makes a batch of a list; a generator function may give none or several.
        batcher_stateless: Whether its result depends on its argument (and its seeds) alone.
        batcher_config: Plain values that describe it.
        drop_last: Drop groups that are not full at the end of an epoch.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised.
        worker_config: Left out, the inner dataset's.
    """

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        fixed_batch_size: int | None,
        sample_group_key: Criterion,
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
        if fixed_batch_size is not None:
            advice = "None lets the criterion give the size"
            fixed_batch_size = check_count("fixed_batch_size", fixed_batch_size, advice)
        check_function("sample_group_key", sample_group_key, "from a sample to (key, batch size or None)")
        self.fixed_batch_size = fixed_batch_size
        self.sample_group_key = sample_group_key
        self.batcher_config = batcher_config
        self.drop_last = drop_last

    def describe(self) -> str:
        return f"GroupBatchDataset(fixed_batch_size={self.fixed_batch_size}, drop_last={self.drop_last})"

    @property
    def options(self) -> dict[str, Any]:
        return {"fixed_batch_size": self.fixed_batch_size, "drop_last": self.drop_last, "batcher": self.batcher_config}

    def len_stream(self, stream: int) -> int:
        """Returns an upper bound, as Energon does: how the elements group is only known once they are there.

        Every group may end with a smaller batch, so that there may be as many batches as elements. Where smaller
        batches are dropped and the size is fixed, there are at most as many as without groups.
        """
        elements = self.dataset.len_stream(stream)
        return elements // self.fixed_batch_size if self.fixed_batch_size and self.drop_last else elements

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _GroupIterator(self, context)


@dataclass(slots=True, eq=False)
class _Group:
    """Samples that wait for others of their kind."""

    key: Hashable
    size: int
    """How many of them make a batch."""
    samples: list[Any] = field(default_factory=list)
    sample_keys: list[Key] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    """What the state says of each one: which sample of the stream it was, so that a criterion that is asked again draws
    the same random numbers, and its key."""


class _GroupIterator(StreamIterator[Any]):
    def __init__(self, dataset: GroupBatchDataset, context: StreamContext) -> None:
        self._dataset = dataset
        self._inner = dataset.dataset.open(context)
        self._runner = HookRunner(dataset, dataset.gather, "batch", dataset.failure_tolerance, context)
        self._policy = FailurePolicy("batch_group_criterion", dataset.failure_tolerance, context, dataset.worker_config)
        self._stream = context.stream
        self._num_streams = dataset.worker_config.layout.num_streams
        self._seen = 0
        self._ended = False
        self._groups: dict[Hashable, _Group] = {}
        self._current: list[Key] = []
        self._saved: State | None = None

    def __next__(self) -> Any:
        if self._saved is not None:
            self._refill(self._saved)
            self._saved = None
        runner = self._runner
        while True:
            if not runner.running:
                samples, self._current = self._collect()
                runner.load(samples, tuple(self._current))
            batch = runner.step()
            if not runner.running:
                self._current = []
            if batch is not NOTHING:
                return batch

    def _join(self, sample: Any, sample_key: Key, number: int) -> _Group | None:
        """Puts a sample, number `number` of the stream, into its group and returns that; None if it is dropped."""
        try:
            with sample_context(number * self._num_streams + self._stream, self._dataset.place_seed):
                given = self._dataset.sample_group_key(sample)
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise ConfigError(
                    f"batch_group_criterion returned {given!r}. Return a pair, such as (key, None): the group, and its "
                    "batch size, which is None where batch_size is set."
                )
            group, size = given
            hash(group)  # raises here, where the sample is known, for a list or a dict
            wanted = self._size(group, size)
        except ConfigError:
            raise
        except Exception as error:
            self._policy.on_failure(error, sample)
            return None
        self._policy.on_success()
        joined = self._groups.setdefault(group, _Group(group, 0))
        joined.size = wanted
        joined.samples.append(sample)
        joined.sample_keys.append(sample_key)
        joined.rows.append([number, *key_to_json(sample_key)])
        return joined

    def _size(self, group: Hashable, size: Any) -> int:
        """Returns how many samples make a batch of a group, where the criterion gave `size`."""
        fixed = self._dataset.fixed_batch_size
        given = f"batch_group_criterion gave the batch size {size!r} for group {group!r}, and"
        if fixed is not None and size is not None:
            raise ConfigError(
                f"{given} batch_size={fixed} is set. Return None with the key where batch_size is to hold, or leave "
                "batch_size out (None), so that each group has its own."
            )
        wanted: Any = size if fixed is None else fixed
        if not isinstance(wanted, Integral) or wanted < 1:
            raise ConfigError(
                f"{given} no batch_size is set. Return a size of at least 1 with the key, or set batch_size."
            )
        return int(wanted)

    def _collect(self) -> tuple[list[Any], list[Key]]:
        """Returns the next full group, or at the end of an epoch the oldest that is left."""
        while not self._ended:
            try:
                sample = next(self._inner)
            except StopIteration:
                self._ended = True
                break
            self._seen += 1
            group = self._join(sample, self._inner.last_key(sample), self._seen - 1)
            if group is not None and len(group.samples) >= group.size:
                del self._groups[group.key]
                return group.samples, group.sample_keys
        if self._dataset.drop_last:
            self._groups.clear()
        if not self._groups:
            self._ended = False
            raise StopIteration
        oldest = self._groups.pop(next(iter(self._groups)))
        return oldest.samples, oldest.sample_keys

    def last_key(self, element: Any) -> Key:
        return self._runner.key

    def state_dict(self) -> State:
        if self._saved is not None:
            return self._saved
        return {
            "index": self._runner.index,
            "offset": self._runner.offset,
            "seen": self._seen,
            "ended": self._ended,
            "current": key_to_json(self._current),
            "waiting": [row for group in self._groups.values() for row in group.rows],
            "inner": self._inner.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        # What the groups hold is read again at the first element, so that restoring itself costs nothing; a state that
        # lacks something is refused here.
        for name in ("index", "offset", "seen"):
            count_of(state, name)
        for number, *_ in keys_of(state, "waiting"):
            checked_count(number, "waiting")
        keys_of(state, "current")
        flag_of(state, "ended")
        self._saved = {name: state[name] for name in self.state_dict()}
        self._inner.load_state_dict(state_of(state))

    def _refill(self, state: State) -> None:
        restore = self._dataset.dataset.restore_samples
        handler = self._dataset.worker_config.restore_error_handler
        made = restore_groups(restore, [[key] for _, *key in state["waiting"]], handler)
        for (number, *_), pairs in zip(state["waiting"], made, strict=True):
            for key, sample in pairs:
                self._join(sample, key, number)
        if state["current"]:
            (pairs,) = restore_groups(restore, [state["current"]], handler)
            self._current = [key for key, _ in pairs]
            if pairs:
                self._runner.load([sample for _, sample in pairs], tuple(self._current))
                self._runner.skip_outputs = state["offset"]
        self._seen, self._ended, self._runner.index = state["seen"], state["ended"], state["index"]

    def close(self) -> None:
        self._groups.clear()
        self._inner.close()
