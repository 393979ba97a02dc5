"""Whether a trainer accumulates gradients over the micro-batches of a step of global batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset


def check_accumulation(dataset: SavableDataset[Any], given: int, name: str) -> None:
    """Checks that a step of the optimizer is a step of the job; without global batches it may be any.

    Args:
        dataset: What the trainer trains on.
        given: Batches over which the trainer accumulates gradients.
        name: What the trainer calls that number.

    Raises:
        ConfigError: It is not the number of batches that each rank has in a step.
    """
    batches = dataset.global_batches
    if batches is None or given == batches.micro_batches_per_step:
        return
    needed, size, ranks = batches.micro_batches_per_step, batches.step_size, batches.world_size
    other = "" if size % (ranks * given) else f", or batch_size={size // (ranks * given)}"
    raise ConfigError(
        f"{name}={given}, and a step of global_batch_size={size} is {needed} batches of at most "
        f"{batches.micro_batch_size} samples on each of {ranks} ranks. Give {name}={needed}{other}: then a step of the "
        "optimizer is a step of the job."
    )
