"""Integrations with other trainers and data tools, which iterate a loader of this package and save its position.

Each module imports its library when it is imported. Nothing else of this package imports these modules but `callers`,
which imports no library, and which datasets use where one is loaded.
What several of them share is here: the loaders that they observe, by name, and their statistics as numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.loader.basic_loader import BasicDataLoader
from energon_dali.loader.metric_declarations import scalars_between
from energon_dali.loader.statistics import LoaderStatistics

Loaders = BasicDataLoader[Any] | Mapping[str, BasicDataLoader[Any]]
"""A loader, which is called "train", or several by name."""


class LoaderReferences:
    """Loaders by name, which are not kept alive. Iterating yields the name and the loader of those that live.

    Args:
        loaders: A loader, which is called "train"; or several by name.

    Raises:
        ConfigError: Something else was given.
    """

    def __init__(self, loaders: Loaders) -> None:
        found = {"train": loaders} if isinstance(loaders, BasicDataLoader) else loaders
        if not isinstance(found, Mapping) or not all(isinstance(loader, BasicDataLoader) for loader in found.values()):
            raise ConfigError(
                f"loaders={loaders!r} is neither a loader nor a dict of loaders by name. Give what get_loader or "
                'get_savable_loader returned, or {"train": train_loader, "val": val_loader}.'
            )
        self._references = {name: weakref.ref(loader) for name, loader in found.items()}

    def __iter__(self) -> Iterator[tuple[str, BasicDataLoader[Any]]]:
        for name, reference in self._references.items():
            loader = reference()
            if loader is not None:
                yield name, loader


class LoaderScalars:
    """Reads loaders as numbers by name, each time for the time since it was read before.

    Args:
        loaders: A loader, whose names begin with "loader/"; or several by name: "loader_NAME/".

    Raises:
        ConfigError: `loaders` is something else.
    """

    def __init__(self, loaders: Loaders) -> None:
        self._loaders = LoaderReferences(loaders)
        self._is_one = not isinstance(loaders, dict)
        self._before: dict[str, LoaderStatistics] = {}

    def read(self) -> dict[str, float]:
        """Returns the numbers of the time since the last call, see `scalars_between`.

        There are none of a loader that was not asked for a batch since then.
        """
        scalars: dict[str, float] = {}
        for name, loader in self._loaders:
            now = loader.stats()
            before = self._before.get(name, _NOTHING)
            if now.batches == before.batches and not now.waiting_seconds:
                continue
            self._before[name] = now
            prefix = "loader" if self._is_one else f"loader_{name}"
            scalars.update({f"{prefix}/{key}": value for key, value in scalars_between(before, now).items()})
        return scalars


_NOTHING = LoaderStatistics(batches=0, elapsed_seconds=0.0, blocked_seconds=0.0, first_batch_seconds=None)
