"""What the datasets that make one element of several have in common: a hook, its config, and restoring by key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from energon_dali.datasets.arguments import check_function
from energon_dali.datasets.base import SavableDataset, WrapperDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, rerun
from energon_dali.datasets.restore_key import Key, try_restore
from energon_dali.worker_config import WorkerConfig


class GatheringDataset(WrapperDataset[Any]):
    """A dataset that makes one element of a list of elements.

    Args:
        dataset: The dataset below.
        gather: Makes an element of a list; a generator function may give none or several.
        gather_stateless: Whether its result depends on its argument (and its seeds) alone.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.
        worker_config: Left out, the inner dataset's.

    Raises:
        ConfigError: What is given as the hook cannot be called.
    """

    gather_name = "batcher"
    """What the hook is called among the arguments."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        gather: Callable[[list[Any]], Any],
        *,
        gather_stateless: bool,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        check_function(type(self).gather_name, gather, "from a list of elements to one")
        self.gather = gather
        self.gather_stateless = gather_stateless
        self.failure_tolerance = failure_tolerance

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What decides which elements come together, as plain values, by name."""

    def config(self) -> dict[str, Any]:
        return {**super().config(), **self.options}

    def can_restore_sample(self) -> bool:
        return self.gather_stateless and super().can_restore_sample()

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key of this dataset, made anew.

        Raises:
            StateError: The key is not of this dataset, or the hook gives no such element any more.
            DecodeError: A sample cannot be decoded.
        """
        return rerun(self, self.gather, restore_key, lambda keys: [self.restore_part(key) for key in keys])

    def restore_part(self, key: Key) -> Any:
        """Returns one element of the list that the hook is given, made anew.

        Raises:
            StateError: The key is not of the dataset below.
        """
        return self.dataset.restore_sample(key)

    def restore_parts(self, keys: Sequence[Key]) -> list[Any]:
        """Returns several elements of the list that the hook is given, made anew; errors in place of lost ones."""
        return [try_restore(self.restore_part, key) for key in keys]


def distinct(sample: Any, present: set[int]) -> Any:
    """Returns a sample, or a copy of one that is in the buffer already, and notes its id in `present`.

    A hook may give one object several times. A restore makes as many objects of it, each with a key of its own, and
    what comes then must not differ from what comes without the restore.
    """
    if id(sample) in present:
        sample = copy(sample)
    present.add(id(sample))
    return sample
