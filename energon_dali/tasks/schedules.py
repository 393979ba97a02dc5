"""Learning rates over the steps of a run: a linear warm-up, then a decay by cosine or in a line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


def cosine_with_warmup(
    optimizer: Optimizer, num_training_steps: int, num_warmup_steps: float = 0, min_ratio: float = 0.0
) -> LambdaLR:
    """Returns a scheduler that rises in a line over the warm-up and falls by half a cosine to the end.

    Args:
        optimizer: Its learning rates are the highest of the run.
        num_training_steps: Optimizer steps of the run; later steps have the last rate.
        num_warmup_steps: Steps of the warm-up; below 1 a share of `num_training_steps`.
        min_ratio: The last rate, as a share of the highest.

    Raises:
        ConfigError: A number is outside what it may be.
    """
    return _schedule(
        optimizer,
        num_training_steps,
        num_warmup_steps,
        min_ratio,
        lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
    )


def linear_with_warmup(
    optimizer: Optimizer, num_training_steps: int, num_warmup_steps: float = 0, min_ratio: float = 0.0
) -> LambdaLR:
    """Returns a scheduler that rises in a line over the warm-up and falls in a line to the end.

    Arguments and errors are those of `cosine_with_warmup`.
    """
    return _schedule(optimizer, num_training_steps, num_warmup_steps, min_ratio, lambda share: 1.0 - share)


def _schedule(
    optimizer: Optimizer, steps: int, warmup: float, min_ratio: float, decay: Callable[[float], float]
) -> LambdaLR:
    from torch.optim.lr_scheduler import LambdaLR

    if steps < 1:
        raise ConfigError(
            f"num_training_steps={steps} leaves nothing to train. Give at least 1, or null to take it from the trainer."
        )
    warmup_steps = round(warmup * steps) if 0 < warmup < 1 else int(warmup)
    if not 0 <= warmup_steps <= steps:
        raise ConfigError(
            f"num_warmup_steps={warmup} does not fit into num_training_steps={steps}. "
            "Give a number of steps in that range, or a share below 1."
        )
    if not 0 <= min_ratio <= 1:
        raise ConfigError(f"min_ratio={min_ratio} is not a share of the highest rate. Give a number from 0 to 1.")

    # A function, because LambdaLR would save the fields of an object in the checkpoint and a run that is continued
    # with more steps would keep the old schedule.
    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        if step >= steps:
            return min_ratio
        return min_ratio + (1.0 - min_ratio) * decay((step - warmup_steps) / (steps - warmup_steps))

    return LambdaLR(optimizer, factor)
