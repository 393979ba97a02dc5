"""Finds the task encoder that an option `--encoder module:Class` names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from energon_dali.errors import ConfigError


def find_object(name: str, option: str) -> Any:
    """Returns what `module:name` names; modules in the current folder are found as well.

    Args:
        name: Such as "training.encoder:Encoder".
        option: The option that was given, for messages.

    Raises:
        ConfigError: It cannot be imported, or the module has no such name.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"{option} {name} is invalid: give MODULE:NAME, such as training.encoder:Encoder.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(
            f"{option} {name}: importing {module} failed with {type(error).__name__}: {error}. Run the command in the "
            "folder of the module, or set PYTHONPATH."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{option} {name}: {getattr(found, '__name__', found)} has no {part!r}.")
        found = getattr(found, part)
    return found


def find_encoder(name: str | None) -> Any:
    """Returns the task encoder that an option names, as `view --encoder` finds it; None for None.

    Raises:
        ConfigError: It cannot be imported, or does not name a task encoder that can be made without arguments.
    """
    if name is None:
        return None
    from energon_dali.view.encoder_session import load_encoder  # imported here: other commands start without it

    return load_encoder(name)
