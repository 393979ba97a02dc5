"""Names of a package that are imported from their modules when they are first used (PEP 562).

The package writes them once, as imports under `if TYPE_CHECKING:`. Type checkers read them as imports; at run time
nothing of them is imported until it is used.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any


@functools.cache
def homes_of(package: str) -> dict[str, str]:
    """Returns the module of each lazy name of a package, read from the imports in its source.

    Args:
        package: Name of the package, which is imported.
    """
    import ast

    file = sys.modules[package].__file__
    assert file is not None, "it has an __init__.py"
    with open(file, encoding="utf-8") as source:
        (imports,) = (node for node in ast.parse(source.read()).body if isinstance(node, ast.If))
    return {
        alias.name: node.module
        for node in imports.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }


def import_name(package: str, name: str) -> Any:
    """Returns the value of a lazy name of a package, which the package has from now on.

    Raises:
        AttributeError: It has no such name.
    """
    homes = homes_of(package)
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(homes[name]), name)
    setattr(sys.modules[package], name, value)
    return value


def names_of(package: str) -> list[str]:
    """Returns what `dir` says of a package: what it holds, and its lazy names."""
    return sorted({*vars(sys.modules[package]), *homes_of(package)})
