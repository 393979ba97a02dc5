"""Compares, over the ranks of a job with global batches, what decides who takes which samples."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from energon_dali.datasets.base import SavableDataset, walk
from energon_dali.datasets.grouping.global_batch import GlobalBatchDataset
from energon_dali.datasets.step_entries import cursor_entry
from energon_dali.errors import ConfigError
from energon_dali.loader.changed_hooks import is_of_hooks
from energon_dali.loader.state_compatibility import as_plain
from energon_dali.plan.global_step import Cursor

logger = logging.getLogger("energon_dali.loader")


def compare_ranks(dataset: SavableDataset[Any], cursor: Cursor) -> None:
    """Checks that all ranks deal the same steps. A collective call over the data-parallel group.

    Without a process group of world_size ranks nothing is compared, and the log says so.

    Args:
        dataset: The tree of this rank, with global batches.
        cursor: Where this rank continues.

    Raises:
        ConfigError: Ranks differ: their steps would hold other samples, or samples would come twice or never.
    """
    config = dataset.worker_config
    if config.world_size == 1:
        return
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        logger.info(
            "The ranks do not compare what they will read, because torch.distributed is not initialised: nothing "
            "notices if they were given different datasets or options."
        )
        return
    group = config.data_parallel_group
    if dist.get_world_size(group) != config.world_size:
        logger.warning(
            "The ranks do not compare what they will read, because the data-parallel group has %d members and "
            "WorkerConfig world_size=%d. Give the group of the ranks that read different data as data_parallel_group.",
            dist.get_world_size(group),
            config.world_size,
        )
        return
    gathered: list[Any] = [None] * config.world_size
    dist.all_gather_object(gathered, parts_of(dataset, cursor), group=group)
    for rank, other in enumerate(gathered):
        differing = [name for name in gathered[0] if other.get(name) != gathered[0][name]]
        if differing:
            shown = "; ".join(f"{name} ({gathered[0][name]} and {other.get(name)})" for name in differing)
            raise ConfigError(
                f"Ranks 0 and {rank} of the data-parallel group would take different steps. What differs: {shown}. "
                "Build the dataset and the loader in the same way on every rank, restore the same state, and call "
                "skip_steps and resize on all of them. check_plan=False turns this check off."
            )


def parts_of(dataset: SavableDataset[Any], cursor: Cursor) -> dict[str, Any]:
    """Returns what the ranks have to agree on, by name: numbers, and digests of what is longer.

    Args:
        dataset: A tree with global batches.
        cursor: Where its rank continues.
    """
    batches = dataset.global_batches
    assert batches is not None
    config = json.loads(json.dumps(dataset.config(), default=as_plain))
    return {
        "the datasets, their order or weights": _digest(_without_hooks(config, "")),
        "the hooks": _digest(config),
        "the cursor": cursor_entry(batches.folded(cursor)[0]),
        "world_size": batches.world_size,
        "batch_size": batches.micro_batch_size,
        "global_batch_size": batches.global_batch_size,
        "uneven": batches.uneven,
        "balance": batches.dealt_by,
        "on_missing": next((one.on_missing for one in walk(dataset) if isinstance(one, GlobalBatchDataset)), None),
    }


def _digest(config: Any) -> str:
    return hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=6).hexdigest()


def _without_hooks(config: Any, path: str) -> Any:
    """Returns a config without the entries that describe hooks."""
    if isinstance(config, Mapping):
        return {
            name: _without_hooks(value, f"{path}.{name}")
            for name, value in config.items()
            if not is_of_hooks(f"{path}.{name}")
        }
    return [_without_hooks(value, path) for value in config] if isinstance(config, list) else config
