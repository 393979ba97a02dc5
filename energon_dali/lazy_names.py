"""Names of a package that are imported from their modules when they are first used (PEP 562).

The package has a stub, `__init__.pyi`, in which type checkers see the same names as imports.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attach(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the `__getattr__`, the `__dir__` and the `__all__` of a package.

    Args:
        package: Its name.
        modules: The names of each of its modules, by the name of the module below the package; ".name" is next to it.
    """
    homes = {
        name: importlib.util.resolve_name(f".{module}", package)
        for module, names in modules.items()
        for name in names.split()
    }

    def import_name(name: str) -> Any:
        """Returns the value of a name, which the package has from now on.

        Raises:
            AttributeError: The package has no such name.
        """
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return import_name, names, sorted(homes)
