"""Finds `megatron.energon` and every module below it, and says that Energon 7.4.1 is installed.

The modules, their public names, and what each name is in this package are in `energon_names.ini`.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import energon_dali
from energon_dali.errors import ConfigError

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


ROOT = "megatron.energon"
VERSION = "7.4.1"
"""Version of Energon whose names resolve."""

_DISTRIBUTIONS = frozenset({"megatron-energon", "megatron_energon", "megatron.energon"})
logger = logging.getLogger("energon_dali.compat")


class EnergonFinder(MetaPathFinder):
    """Finds the modules of Energon before any other finder, and `megatron` itself after all others.

    `megatron` stays what it is where another package brings it, such as Megatron-Core, as a regular or as a namespace
    package. Where nothing brings it, it is an empty namespace package.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of `megatron` or of a module of Energon, None for any other module."""
        if fullname == ROOT or fullname.startswith(f"{ROOT}."):
            name = fullname[len(ROOT) :]
            if name not in MODULES:
                return None
            return ModuleSpec(fullname, _EnergonLoader(name), is_package=name in PACKAGES)
        if fullname != "megatron":
            return None
        found = PathFinder.find_spec(fullname)
        if found is not None or any(
            finder is not self and finder is not PathFinder and _finds(finder, fullname) for finder in sys.meta_path
        ):
            return None
        spec = ModuleSpec(fullname, _NamespaceLoader(), is_package=True)
        spec.submodule_search_locations = _MegatronPath()
        return spec

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """Yields the distribution `megatron-energon` where it is asked for, or where all are listed."""
        name = getattr(context, "name", None)
        if name is None or name.lower() in _DISTRIBUTIONS:
            yield _EnergonDistribution()


def _finds(finder: Any, name: str) -> bool:
    find_spec = getattr(finder, "find_spec", None)
    return find_spec is not None and find_spec(name, None) is not None


class _MegatronPath(list[str]):
    """The folders of `megatron`, looked up at each use: a program may extend `sys.path` after the first import."""

    def __iter__(self) -> Iterator[str]:
        spec = PathFinder.find_spec("megatron")
        return iter((spec.submodule_search_locations if spec is not None else None) or ())


class _NamespaceLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class _EnergonLoader(Loader):
    """Makes a module whose names are looked up in this package when they are first used.

    Args:
        name: Name of the module below `megatron.energon`, such as ".flavors.webdataset"; "" for the root.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _EnergonModule(spec.name, f"Energon's `{spec.name}`: its names, as energon_dali has them.")

    def exec_module(self, module: ModuleType) -> None:
        public = MODULES[self._name]
        module.__dict__["__all__"] = [name for name in public if target_of(self._name, name) is not None]
        if not self._name:
            module.__dict__["__version__"] = VERSION

    def is_package(self, fullname: str) -> bool:
        """Returns whether the module has modules below it."""
        return self._name in PACKAGES

    def get_source(self, fullname: str) -> str | None:
        """Returns None: the module has no source of its own."""
        return None


class _EnergonModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        below = self.__name__[len(ROOT) :]
        target = None if name.startswith("__") else target_of(below, name)
        if target is not None:
            value = _load(target)
            self.__dict__[name] = value
            return value
        if f"{below}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(explain_missing(self.__name__, below, name), name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__dict__["__all__"]})


def _load(target: str) -> Any:
    """Returns what "module:name" names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


class _EnergonDistribution(Distribution):
    """What `importlib.metadata` says about megatron-energon."""

    def read_text(self, filename: str) -> str | None:
        if filename not in ("METADATA", "PKG-INFO"):
            return None
        return (
            f"Metadata-Version: 2.1\nName: megatron-energon\nVersion: {VERSION}\n"
            "Summary: The names of Megatron Energon, as energon_dali has them\n"
        )

    def locate_file(self, path: Any) -> Path:
        """Returns the path of a file of this package."""
        return Path(__file__).parent / str(path)


def install_finder() -> None:
    """Makes `megatron.energon` and the modules below it resolve to this package. Further calls do nothing.

    Raises:
        ConfigError: The program has already imported Energon itself.
    """
    if any(isinstance(finder, EnergonFinder) for finder in sys.meta_path):
        return
    loaded = sys.modules.get(ROOT)
    if loaded is not None and not isinstance(loaded, _EnergonModule):
        raise ConfigError(
            f"{ROOT} was imported from {getattr(loaded, '__file__', 'elsewhere')} before energon_dali.compat. Make "
            "`import energon_dali.compat` the first line of the program, or start it with `python -m "
            "energon_dali.compat`."
        )
    installed = _installed_energon()
    if installed is not None:
        logger.warning(
            "Megatron Energon is installed in %s; %s resolves to energon_dali instead, because energon_dali.compat was "
            "imported.",
            installed,
            ROOT,
        )
    sys.meta_path.insert(0, EnergonFinder())


def _installed_energon() -> str | None:
    """Returns the folder of an installed Energon, None if there is none. Imports nothing."""
    megatron = PathFinder.find_spec("megatron")
    folders = megatron.submodule_search_locations if megatron is not None else None
    found = PathFinder.find_spec(ROOT, list(folders)) if folders else None
    return None if found is None or found.origin is None else str(Path(found.origin).parent)
