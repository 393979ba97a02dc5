"""The packages of the extra `tasks`."""

from __future__ import annotations

from importlib.util import find_spec

from energon_dali.errors import ConfigError

_PACKAGES = ("hydra", "lightning", "matplotlib", "omegaconf")


def check_extra() -> None:
    """Makes sure that what tasks need is installed.

    Raises:
        ConfigError: A package is missing; the message names it and the extra.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"energon_dali.tasks needs packages that are not installed: {', '.join(missing)}. "
            'Install the extra: pip install "energon-dali[tasks]".'
        )
