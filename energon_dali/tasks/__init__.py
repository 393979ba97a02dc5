"""Trainable tasks on Lightning: a data module, a backbone, an optional tokenizer and a task, each swapped from the
command line. They need the extra `tasks`; the names below are imported when they are first used.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.lazy_names import attach

_import_name, __dir__, __all__ = attach(
    __name__,
    {
        "checkpoint": "load_task",
        "composition": "compose",
        "data_module": "TransformerDataConfig TransformerDataModule make_decoder",
        "instantiator": "HydraInstantiator Instantiator",
        "task": "OptimizerConfig SchedulerConfig TaskTransformer",
        "training": "TrainResult run",
    },
)

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


def __getattr__(name: str) -> Any:
    if name in __all__:
        check_extra()
    return _import_name(name)
