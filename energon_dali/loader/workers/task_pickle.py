"""Pickles what a worker runs, so that a fresh interpreter can rebuild it, wherever its classes were defined."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import cloudpickle


def pickle_task(task: object) -> bytes:
    """Returns a task as bytes; classes and functions that another process could not import travel by value.

    Those of `__main__` always do (cloudpickle); so do those of modules that were loaded by path, such as test files.

    Raises:
        Exception: Whatever pickle raises for what cannot be pickled.
    """
    file = io.BytesIO()
    _TaskPickler(file, protocol=5).dump(task)
    return file.getvalue()


class ClassPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Keeps the slots of classes that travel by value.

    cloudpickle 3 makes them anew without: instances then have a `__dict__` on one side only, and cannot come back.
    """

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        made_by = getattr(cloudpickle.cloudpickle, "_make_skeleton_class", None)
        dynamic = isinstance(obj, type) and isinstance(reduced, tuple) and reduced[0] is made_by
        # Slots of a tuple are always empty, and what makes a NamedTuple refuses to be told of them.
        if dynamic and "__slots__" in vars(obj) and not issubclass(obj, tuple):
            reduced[1][3].setdefault("__slots__", vars(obj)["__slots__"])
        return reduced


class _TaskPickler(ClassPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) or type(obj) is FunctionType:
            module = sys.modules.get(getattr(obj, "__module__", None) or "")
            if module is not None and module.__name__ != "__main__" and not _importable(module.__name__):
                cloudpickle.register_pickle_by_value(module)
                try:
                    return super().reducer_override(obj)
                finally:
                    cloudpickle.unregister_pickle_by_value(module)
        return super().reducer_override(obj)


_known: dict[str, bool] = {}


def _importable(module: str) -> bool:
    """Returns whether a new interpreter with our sys.path finds a module."""
    known = _known.get(module)
    if known is None:
        known = _known[module] = module.partition(".")[0] in sys.stdlib_module_names or _find(module)
    return known


def _find(module: str) -> bool:
    path: Sequence[str] | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = None
        for finder in sys.meta_path:
            found = finder.find_spec(name, path)
            if found is not None:
                break
        if found is None:
            return False
        path = found.submodule_search_locations
    return True
