"""The type variables and loggers of Energon's modules, made when a program asks for one."""

from __future__ import annotations

import logging
from typing import Any, ParamSpec, TypeVar

_made: dict[str, Any] = {"logger": logging.getLogger("energon_dali.compat"), "P": ParamSpec("P")}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name not in _made:
        _made[name] = TypeVar(name)
    return _made[name]
