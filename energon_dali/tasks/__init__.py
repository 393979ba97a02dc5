"""Trainable tasks on Lightning: a data module, a backbone, an optional tokenizer and a task, each swapped from the
command line. They need the extra `tasks`; the names below are imported when they are first used.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError
from energon_dali.lazy_names import import_name, names_of

if TYPE_CHECKING:
    from energon_dali.tasks.checkpoint import load_task
    from energon_dali.tasks.composition import compose
    from energon_dali.tasks.data_module import TransformerDataConfig, TransformerDataModule, make_decoder
    from energon_dali.tasks.instantiator import HydraInstantiator, Instantiator
    from energon_dali.tasks.task import OptimizerConfig, SchedulerConfig, TaskTransformer
    from energon_dali.tasks.training import TrainResult, run

__all__ = [
    "HydraInstantiator",
    "Instantiator",
    "OptimizerConfig",
    "SchedulerConfig",
    "TaskTransformer",
    "TrainResult",
    "TransformerDataConfig",
    "TransformerDataModule",
    "compose",
    "load_task",
    "make_decoder",
    "run",
]

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
    return import_name(__name__, name)


def __dir__() -> list[str]:
    return names_of(__name__)
