"""Groups elements into batches whose elements share a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from energon_dali.calls import check_count, check_function, explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import GroupingDataset, GroupingIterator
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy
from energon_dali.datasets.restore_key import key_to_json, restore_groups
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError
from energon_dali.samples.base import Key
from energon_dali.shards.documents.state_entries import checked_count, count_of, flag_of, keys_of, state_of
from energon_dali.task_encoder.context import sample_context
from energon_dali.worker_config import WorkerConfig

Criterion = Callable[[Any], "tuple[Hashable, int | None]"]


class GroupBatchDataset(GroupingDataset):
    """Yields `batcher(elements)` for elements that share a group key, as soon as a group is full.

    A sample on which the criterion raises is dropped and counted as failed; `SkipSample` counts as skipped.

    Args:
        dataset: The dataset below.
        fixed_batch_size: Elements per batch; the criterion must then return None as the size. None takes its size.
        sample_group_key: Returns (group key, batch size or None) of an element.
        batcher: Makes a batch of a list; a generator function may yield none or several.
        batcher_stateless: Whether its result depends on its argument (and its seeds) alone.
        batcher_config: Plain values that describe it.
        drop_last: Drop groups that are not full at the end of an epoch.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised.
        worker_config: Default: that of the dataset below.
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
            hook_stateless=batcher_stateless,
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
        """Returns an upper bound, as Energon does, because the groups are not known before the elements are read.

        Every group may end with a smaller batch, so there may be as many batches as elements. If smaller batches are
        dropped and the size is fixed, there are at most as many as without groups.
        """
        elements = self.dataset.len_stream(stream)
        return elements // self.fixed_batch_size if self.fixed_batch_size and self.drop_last else elements

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _GroupIterator(self, context)


@dataclass(slots=True, eq=False)
class _Group:
    """Samples that wait for others with the same key."""

    key: Hashable
    size: int
    """Samples per batch."""
    samples: list[Any] = field(default_factory=list)
    sample_keys: list[Key] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    """What the state holds of each sample: its number in the stream, so that the criterion draws the same random
    numbers again after a restore, and its key."""


class _GroupIterator(GroupingIterator):
    def __init__(self, dataset: GroupBatchDataset, context: StreamContext) -> None:
        super().__init__(dataset, "batch", context)
        self._dataset = dataset
        self._policy = FailurePolicy("batch_group_criterion", dataset.failure_tolerance, context, dataset.worker_config)
        self._stream = context.stream
        self._num_streams = dataset.worker_config.layout.num_streams
        self._seen = 0
        self._ended = False
        self._groups: dict[Hashable, _Group] = {}

    def _join(self, sample: Any, sample_key: Key, number: int) -> _Group | None:
        """Puts sample `number` of the stream into its group and returns the group; None if the sample is dropped."""
        try:
            with sample_context(number * self._num_streams + self._stream, self._dataset.hook_seed):
                given = self._dataset.sample_group_key(sample)
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise ConfigError(
                    f"batch_group_criterion returned {given!r}. Return a pair, such as (key, None): the group, and its "
                    "batch size, which is None if batch_size is set."
                )
            group, size = given
            hash(group)  # a list or a dict raises here, where the sample is known
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
        """Returns how many samples make a batch of a group for which the criterion returned `size`."""
        fixed = self._dataset.fixed_batch_size
        given = f"batch_group_criterion returned the batch size {size!r} for group {group!r}, and"
        if fixed is not None and size is not None:
            raise ConfigError(
                f"{given} batch_size={fixed} is set. Return None with the key to use batch_size, or leave batch_size "
                "out (None) so that each group has its own."
            )
        wanted: Any = size if fixed is None else fixed
        if not isinstance(wanted, Integral) or wanted < 1:
            raise ConfigError(
                f"{given} no batch_size is set. Return a size of at least 1 with the key, or set batch_size."
            )
        return int(wanted)

    def _collect(self) -> tuple[list[Any], list[Key]]:
        """Returns the next full group, or the oldest that is left at the end of an epoch."""
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
        # The groups are read again when the first element is taken, so restoring costs nothing. A state that lacks an
        # entry is refused here.
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
        self._refill_current(state, restore)
        self._seen, self._ended = state["seen"], state["ended"]

    def close(self) -> None:
        self._groups.clear()
        super().close()
