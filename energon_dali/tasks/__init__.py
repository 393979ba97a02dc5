"""Trainable tasks on Lightning: a data module, a backbone, an optional tokenizer and a task, each swapped from the
command line. They need the extra `tasks`; the names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from energon_dali.tasks.extra import check_extra

if TYPE_CHECKING:
    from energon_dali.tasks.checkpoint import load_task
    from energon_dali.tasks.composition.compose import compose
    from energon_dali.tasks.core.data_module import TransformerDataConfig, TransformerDataModule
    from energon_dali.tasks.core.decoder import make_decoder
    from energon_dali.tasks.core.instantiator import HydraInstantiator, Instantiator
    from energon_dali.tasks.core.task import OptimizerConfig, SchedulerConfig, TaskTransformer
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

_HOME_OF = {
    "HydraInstantiator": "core.instantiator",
    "Instantiator": "core.instantiator",
    "OptimizerConfig": "core.task",
    "SchedulerConfig": "core.task",
    "TaskTransformer": "core.task",
    "TrainResult": "training",
    "TransformerDataConfig": "core.data_module",
    "TransformerDataModule": "core.data_module",
    "compose": "composition.compose",
    "load_task": "checkpoint",
    "make_decoder": "core.decoder",
    "run": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_extra()
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
