"""How classes and functions travel that the other process cannot import by name: by value."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any, cast

import cloudpickle

Reduced = tuple[Any, ...]
"""What `object.__reduce__` returns."""

_cloudpickle = cloudpickle.cloudpickle


def pickle_task(task: object) -> bytes:
    """Returns a task as bytes that a new interpreter can rebuild, wherever its classes were defined.

    Classes and functions that another process cannot import travel by value: those of `__main__` (cloudpickle does
    that), and those of modules loaded by path, such as test files.

    Raises:
        Exception: Whatever pickle raises for something that cannot be pickled.
    """
    file = io.BytesIO()
    _TaskPickler(file, protocol=5).dump(task)
    return file.getvalue()


class ClassPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Keeps the slots of classes that travel by value.

    cloudpickle 3 rebuilds such a class without its slots. Instances then have a `__dict__` on one side only, and
    cannot be sent back.
    """

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        made_by = getattr(_cloudpickle, "_make_skeleton_class", None)
        dynamic = isinstance(obj, type) and isinstance(reduced, tuple) and reduced[0] is made_by
        # The slots of a tuple are always empty, and the factory of NamedTuple does not accept __slots__.
        if dynamic and "__slots__" in vars(obj) and not issubclass(obj, tuple):
            reduced[1][3].setdefault("__slots__", vars(obj)["__slots__"])
        return reduced


class _TaskPickler(ClassPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) or type(obj) is FunctionType:
            module = sys.modules.get(getattr(obj, "__module__", None) or "")
            if module is not None and module.__name__ != "__main__" and not _is_importable(module.__name__):
                cloudpickle.register_pickle_by_value(module)
                try:
                    return super().reducer_override(obj)
                finally:
                    cloudpickle.unregister_pickle_by_value(module)
        return super().reducer_override(obj)


_importable: dict[str, bool] = {}


def _is_importable(module: str) -> bool:
    """Returns whether a new interpreter with our sys.path finds a module."""
    known = _importable.get(module)
    if known is None:
        known = _importable[module] = module.partition(".")[0] in sys.stdlib_module_names or _find(module)
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


_named: dict[type, bool] = {}
_definitions: dict[type, bytes] = {}
_rebuilt: dict[bytes, type] = {}


def has_importable_name(cls: type) -> bool:
    """Returns whether a class is found under its name in this process, so that pickle needs the name alone."""
    known = _named.get(cls)
    if known is None:
        found: Any = sys.modules.get(cls.__module__)
        for name in cls.__qualname__.split("."):
            found = getattr(found, name, None)
        # pickle has names of its own for the types of None, NotImplemented and Ellipsis.
        known = _named[cls] = found is cls or cls in (type(None), type(NotImplemented), type(...))
    return known


def reduce_class(cls: type) -> Reduced:
    """Returns how to rebuild a class that cannot be imported: its definition, pickled by value once per process."""
    definition = _definitions.get(cls)
    if definition is None:
        definition = _definitions[cls] = cloudpickle.dumps(cls)
    return _rebuild_class, (getattr(_cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {}).get(cls), definition)


def _rebuild_class(tracked: str | None, definition: bytes) -> type:
    """Returns the class of this process that the sender received by value, so that isinstance holds; else a new one.

    The look-up comes first: loading the definition of a class that is known here would replace its methods by copies.
    """
    known = getattr(_cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {}).get(tracked)
    if known is None:
        known = _rebuilt.get(definition)
    if known is None:
        known = _rebuilt[definition] = pickle.loads(definition)
    return cast(type, known)
