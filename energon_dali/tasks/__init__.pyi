"""The public names, as type checkers see them; `__init__.py` imports each from its module when it is first used."""

from energon_dali.tasks.checkpoint import (
    load_task as load_task,
)
from energon_dali.tasks.composition import (
    compose as compose,
)
from energon_dali.tasks.data_module import (
    TransformerDataConfig as TransformerDataConfig,
    TransformerDataModule as TransformerDataModule,
    make_decoder as make_decoder,
)
from energon_dali.tasks.instantiator import (
    HydraInstantiator as HydraInstantiator,
    Instantiator as Instantiator,
)
from energon_dali.tasks.task import (
    OptimizerConfig as OptimizerConfig,
    SchedulerConfig as SchedulerConfig,
    TaskTransformer as TaskTransformer,
)
from energon_dali.tasks.training import (
    TrainResult as TrainResult,
    run as run,
)

__all__: list[str]

def check_extra() -> None: ...
