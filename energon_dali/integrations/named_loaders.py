"""The loaders that something observes, by name."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.loader.basic_loader import BasicDataLoader

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
