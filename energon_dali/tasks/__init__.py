"""Trainable tasks on Lightning: a data module, a backbone, an optional tokenizer and a task, each swapped from the
command line. They need the extra `tasks`; the names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.lazy_names import import_name, names_of
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


def __getattr__(name: str) -> Any:
    if name in __all__:
        check_extra()
    return import_name(__name__, name)


def __dir__() -> list[str]:
    return names_of(__name__)
