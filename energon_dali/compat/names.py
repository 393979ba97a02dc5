"""The modules of Energon 7.4.1, their public names, and what each name is in this package: see `energon_names.ini`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

import energon_dali

_TABLES = ConfigParser(delimiters=("=",), interpolation=None)
_TABLES.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their capitals
_TABLES.read_string(Path(__file__).with_name("energon_names.ini").read_text(encoding="ascii"))

TYPE_VARIABLE = re.compile(r"[BFPTV](?:_[a-z_]+)?|TType|TMetadata")
"""Names that are type variables in Energon's modules."""

MODULES: Mapping[str, list[str]] = {
    "" if name == "." else name: words.split() for name, words in _TABLES["modules"].items()
}
"""Public names of each module of Energon, by its name below `megatron.energon`, such as ".flavors.webdataset"."""

PACKAGES = frozenset(name.rpartition(".")[0] for name in MODULES if name)
"""Those modules that have modules below them."""

_TARGETS = {
    theirs: f"{module}:{ours or theirs}"
    for module, words in _TABLES["homes"].items()
    for theirs, _, ours in (word.partition("=") for word in words.split())
}


def target_of(module: str, name: str) -> str | None:
    """Returns what a name of a module of Energon is here, as "module:name"; None if there is nothing like it.

    Names are found in every module, since programs also take them from modules that only import them.

    Args:
        module: Name of the module below `megatron.energon`.
        name: The name.
    """
    if name in _TARGETS:
        return _TARGETS[name]
    if name in energon_dali.__all__ and name != "__version__":
        return f"energon_dali:{name}"
    if name == "logger" or TYPE_VARIABLE.fullmatch(name):
        return f"energon_dali.compat.constants:{name}"
    return None


def explain_missing(full: str, module: str, name: str) -> str:
    """Returns the message for a name that a module of Energon does not have here.

    Args:
        full: Full name of the module.
        module: Its name below `megatron.energon`.
        name: The name.
    """
    message = f"module {full!r} (of energon_dali.compat) has no attribute {name!r}"
    if name.startswith("_"):
        return f"{message}: private names of Energon do not exist here"
    for reason, modules in _TABLES["reasons"].items():
        if any(module == known or module.startswith(f"{known}.") for known in modules.split()):
            return f"{message}: in Energon it {reason}. See docs/from-energon.md"
    return message
