"""The losses of a trainer by dataset, as it reports them for its batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from energon_dali.datasets.source import MIXTURE_NAME, NAME
from energon_dali.errors import ConfigError
from energon_dali.loader.statistics import losses_of
from energon_dali.samples.base import Key, get_restore_key


class SourceLosses:
    """Sums of losses and of what they are means over, for each dataset. May be used by several threads.

    Args:
        names: Of the datasets.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._names = names
        self._sums = dict.fromkeys(names, 0.0)
        self._weights = dict.fromkeys(names, 0.0)

    def add(self, batch: Any, losses: Iterable[Any], weights: Iterable[Any] | None) -> None:
        """Adds the losses of a batch; see `SavableDataLoader.report_losses`.

        Raises:
            ConfigError: The batch has no restore key, or there is not one loss, or weight, for each of its samples.
        """
        key = get_restore_key(batch)
        if not key:
            raise ConfigError(
                f"report_losses was given a {type(batch).__name__} without a __restore_key__, which names its samples. "
                "Give the class of your batches such a field."
            )
        if getattr(batch, "num_units", 1) == 0:
            return  # it only fills an empty place
        sources = list(sources_of_key(key))
        given = [float(loss) for loss in losses]
        counts = [1.0] * len(given) if weights is None else [float(weight) for weight in weights]
        if not len(sources) == len(given) == len(counts):
            raise ConfigError(
                f"report_losses was given {len(given)} losses and {len(counts)} weights for a batch of {len(sources)} "
                "samples. Give one for each, in the order of the batch; of a pack, for each of its samples."
            )
        if not all(map(math.isfinite, counts)) or min(counts, default=0.0) < 0:
            raise ConfigError(f"report_losses was given the weights {counts[:20]}: give numbers of at least 0.")
        with self._lock:
            for source, loss, weight in zip(sources, given, counts, strict=True):
                self._sums[self._names[source]] += loss * weight
                self._weights[self._names[source]] += weight

    def totals(self) -> dict[str, dict[str, float]]:
        """Returns what `LoaderStatistics.losses` holds."""
        with self._lock:
            return losses_of(self._sums, self._weights)


def sources_of_key(key: Key) -> Iterator[int]:
    """Yields the number of the dataset of each sample of a batch, from its restore key, in order."""
    if MIXTURE_NAME in key:
        yield key[key.index(MIXTURE_NAME) + 1]
    elif NAME in key:
        yield 0
    else:
        for part in key:
            if isinstance(part, tuple):
                yield from sources_of_key(part)
