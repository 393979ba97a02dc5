"""The place of this process among the ranks that read different data, and what they tell each other."""

from __future__ import annotations

import warnings
from typing import Any

from energon_dali.datasets.stream import State
from energon_dali.loader.loader_state import merge_states
from energon_dali.worker_config import WorkerConfig


def find_place(trainer: Any | None) -> tuple[int, int]:
    """Returns (rank, world size) among the data-parallel ranks.

    Args:
        trainer: A Lightning trainer; None takes torch.distributed, or torchrun's environment before it is set up.

    Raises:
        ConfigError: RANK or WORLD_SIZE in the environment make no sense.
    """
    if trainer is None:
        config = WorkerConfig.default_worker_config(0)
        return config.rank, config.world_size
    # Strategies that split a model say here which ranks have to read the same.
    place = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
    if isinstance(place, dict):
        return int(place["rank"]), int(place["num_replicas"])
    return int(trainer.global_rank), int(trainer.world_size)


def warn_between_steps(state: State, config: WorkerConfig) -> None:
    """Warns where a checkpoint is within a step of these ranks, as half of one of two ranks does.

    Args:
        state: What a data module saved.
        config: The place of this rank.
    """
    counts = [0] * config.world_size
    for stream, position in state["loader"]["streams"].items():
        counts[int(stream) % config.world_size] += position["count"]
    whole = len(state["loader"]["streams"]) == state["loader"]["num_streams"]
    if whole and len(set(counts)) > 1:
        warnings.warn(
            f"The checkpoint of {state['loader']['world_size']} rank(s) falls within a step of {config.world_size}, of "
            f"which they have done {min(counts)} to {max(counts)}. No batch is lost or comes twice, but steps hold "
            "other batches than without the interruption. Save at whole steps of both, or accumulate gradients.",
            stacklevel=2,
        )


def gather_states(own: State) -> State:
    """Returns the states of all ranks as one. A collective call where torch.distributed is set up.

    Args:
        own: `loader`, the state of this rank's loader, or `dataset`, its position in a map-style dataset; and
            `random`, the generators of this rank by its number. One that holds all ranks already is returned as it
            is.

    Raises:
        StateError: The states are not of one job.
    """
    import torch.distributed as dist

    if "loader" in own and len(own["loader"]["given"]) == own["loader"]["world_size"]:
        return own
    if not (dist.is_available() and dist.is_initialized()):
        return own
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    random = {rank: each for state in gathered for rank, each in state["random"].items()}  # some may read the same
    if "loader" not in own:
        return {**own, "random": random}  # the position in a map-style dataset is that of all ranks
    of_ranks = {next(iter(state["loader"]["given"])): state["loader"] for state in gathered}
    return {"loader": merge_states(list(of_ranks.values())), "random": random}
