"""Composes configs, and says which name was probably meant where Hydra refuses one."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_dali.calls import describe_nearest
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF = Path(__file__).resolve().parent / "conf"
"""Folder of the package's configs."""

_OWN_FOLDERS: list[str | Path | None] = []
"""What `own_configs` was given, the innermost last."""
_KEY = re.compile(r"\+{0,2}[\w./@:-]+")
_GROUP = re.compile(r"\w+(?:/\w+)*")
_OLD_BACKBONE = re.compile(r"In '(task/[^']+)': Could not override 'backbone[^']*'")
"""What Hydra says of a task's config that overrides the backbone, which configs of runs listed once."""
_REFUSED_KEY = re.compile(r"Could not (?:override|delete from config\.) '([^'@]+)")


def compose(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> DictConfig:
    """Returns the config that the train command would use.

        run(compose(["+task=vision/igpt", "+dataset=vision/igpt/cifar", "dataset.cfg.data_dir=/data"]))

    Args:
        overrides: The arguments of the command, one string each.
        config_dir: Folder of configs of your own, as the command's --config-dir; they win over the package's configs
            of the same name.

    Raises:
        ConfigError: Hydra refuses an override; its message, and the name that was probably meant. Or a group is null.
    """
    check_groups(overrides, config_dir)
    try:
        return _compose(overrides, config_dir)
    except refusals() as error:
        raise ConfigError(f"{error}\n{explain(error, overrides, config_dir)}".rstrip()) from error


def check_groups(overrides: Sequence[str], config_dir: str | Path | None = None) -> None:
    """Raises an error that says what to do where a group is to be null, of which Hydra gives a traceback alone.

    Likewise where nothing follows the sign, which Hydra takes for an empty text.

    Raises:
        ConfigError: A group is to be null, or a name or a value was left out.
    """
    for override in overrides:
        if override.startswith("="):
            raise ConfigError(f"{override} has no name before the sign. Write NAME{override}.")
        if override.endswith("=") and _KEY.fullmatch(override[:-1]):
            raise ConfigError(
                f"{override} has no value after the sign. Write {override}VALUE, {override}null for none, or leave it "
                f"out; an empty text is \"{override}''\"."
            )
        group, _, name = override.lstrip("+").partition("=")
        options = options_of(group, config_dir) if name.lower() == "null" and _GROUP.fullmatch(group) else []
        if options:
            named = ", ".join(f"{group}={option}" for option in options)
            raise ConfigError(f"{override} chooses nothing. Leave it out, or give one of {named}.")


def refusals() -> tuple[type[Exception], ...]:
    """Returns the errors with which Hydra refuses a command line or a config."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return HydraException, OmegaConfBaseException


def explain_refusal(overrides: Sequence[str], config_dir: str | Path | None = None) -> str:
    """Returns what to write in place of the override that Hydra refuses first; "" if it refuses none."""
    try:
        _compose(overrides, config_dir)
    except refusals() as error:
        return explain(error, overrides, config_dir)
    return ""


def explain(error: Exception, overrides: Sequence[str], config_dir: str | Path | None = None) -> str:
    """Returns what was probably meant by the name that Hydra refused, "" if there is nothing to add.

    Args:
        error: What Hydra raised.
        overrides: What it was given.
        config_dir: Folder of configs of the user's own.
    """
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.partition("/")
        options = options_of(group, config_dir)
        longer = " or ".join(f"{group}={option}" for option in options if name in option)
        return f"Did you mean {longer}?" if longer else describe_nearest(name, options, f"{group}=")
    refused = _REFUSED_KEY.match(str(error))
    if refused is None:
        return _explain_old_backbone(error)
    key = refused.group(1)
    remaining, cfg = _composed_without(key, overrides, config_dir)
    group = key.partition(".")[0]
    if cfg is None and group == "backbone":
        try:
            _compose(remaining, config_dir)
        except refusals() as inner:
            return _explain_old_backbone(inner)
    if cfg is None or group in remaining:
        return ""
    options = options_of(group, config_dir)
    if cfg.get(group) is None and options:
        if group == "backbone" and cfg.get("task") is None:
            return (
                "The backbone comes with the task: add +task=NAME. There are: "
                f"{', '.join(options_of('task', config_dir))}."
            )
        return f"The run has no {group} yet: add +{group}=NAME. There are: {', '.join(options)}."
    keys = list(_keys(cfg))
    parent, dot, name = key.rpartition(".")
    siblings = [each.rpartition(".")[2] for each in keys if each.rpartition(".")[0] == parent]
    if siblings:
        return describe_nearest(name, siblings, parent + dot)
    return describe_nearest(key, keys)  # what holds it is wrong already


def _explain_old_backbone(error: Exception) -> str:
    """Returns how a task's config names its backbone, where it still overrides one; "" where it does not."""
    found = _OLD_BACKBONE.match(str(error))
    if found is None:
        return ""
    return (
        f"A task brings its backbone itself: in the defaults of {found.group(1)}.yaml write "
        '"- /backbone@_group_: NAME" in place of "- override /backbone...: NAME".'
    )


def options_of(group: str, config_dir: str | Path | None = None) -> list[str]:
    """Returns the names that a config group can be set to, such as "vision/igpt" for task.

    Args:
        group: Name of the group.
        config_dir: Folder of configs of the user's own, in addition to the package's.
    """
    folders = [CONF, *([Path(config_dir)] if config_dir is not None else [])]
    found = {
        path.relative_to(folder / group).with_suffix("").as_posix()
        for folder in folders
        for path in (folder / group).rglob("*.yaml")
    }
    if group in ("task", "dataset"):
        found.discard("default")  # what the others list first
    return sorted(found)


@contextmanager
def own_configs(folder: str | Path | None) -> Iterator[None]:
    """While it lasts, Hydra takes a config from this folder before the package's of the same name.

    Hydra's own --config-dir comes after the package's configs, so that a file of the same name would have no effect.

    Args:
        folder: Folder of configs of the user's own; None has no effect.
    """
    _register_own_configs()
    _OWN_FOLDERS.append(folder)
    try:
        yield
    finally:
        _OWN_FOLDERS.pop()


@cache
def _register_own_configs() -> None:
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class OwnConfigs(SearchPathPlugin):
        def manipulate_search_path(self, search_path: Any) -> None:
            if _OWN_FOLDERS and _OWN_FOLDERS[-1] is not None:
                search_path.prepend("energon_dali.own", f"file://{Path(_OWN_FOLDERS[-1]).resolve()}")

    Plugins.instance().register(OwnConfigs)


def _compose(overrides: Sequence[str], config_dir: str | Path | None) -> DictConfig:
    import hydra

    with _quiet(), own_configs(config_dir), hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", list(overrides))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the search path plugin of multi-storage-client, which warns with a traceback that it is not set up."""
    logger = logging.getLogger("multistorageclient")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "provider=.* is not available", UserWarning)
            yield
    finally:
        logger.setLevel(level)


def _composed_without(
    key: str, overrides: Sequence[str], config_dir: str | Path | None
) -> tuple[list[str], DictConfig | None]:
    """Returns the overrides without those of a key, and of others that Hydra refuses, and their config."""
    remaining = [override for override in overrides if _key_of(override) != key]
    while True:
        try:
            return remaining, _compose(remaining, config_dir)
        except refusals() as error:
            refused = _REFUSED_KEY.match(str(error))
            fewer = [override for override in remaining if refused and _key_of(override) != refused.group(1)]
            if len(fewer) in (0, len(remaining)):
                return remaining, None
            remaining = fewer


def _key_of(override: str) -> str:
    return re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]


def _keys(cfg: Any, before: str = "") -> Iterator[str]:
    from omegaconf import OmegaConf

    for name in cfg:
        yield f"{before}{name}"
        # An interpolation is not followed: it may need what only a run has.
        if OmegaConf.is_missing(cfg, name) or OmegaConf.is_interpolation(cfg, name):
            continue
        if OmegaConf.is_dict(cfg[name]) and cfg[name] is not None:
            yield from _keys(cfg[name], f"{before}{name}.")
