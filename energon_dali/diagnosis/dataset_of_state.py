"""Builds the dataset of a job again, in its order, from what its state says."""

from __future__ import annotations

from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.stream import State
from energon_dali.diagnosis.job_history import refuse_streams
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.loader_state import unpack_config
from energon_dali.loader.state_compatibility import describe_differences, source_config


def open_dataset_of(
    state: State,
    path: str,
    *,
    split_part: str | None = None,
    task_encoder: Any = None,
    allow_imports: bool = False,
    allow_code: bool = False,
) -> SavableDataset[Any]:
    """Returns the dataset of the job that saved a state, in its order.

    Args:
        state: A state of a job with global batches.
        path: The dataset, metadataset or JSONL.
        split_part: Part of the split; None is that of the state.
        task_encoder: The encoder of the job; None is one without hooks: crude samples are counted
            without the cookers of the job.
        allow_imports: Import what the dataset names, as in `get_train_dataset`.
        allow_code: Run code that is in the dataset, as there.

    Raises:
        StateError: The state has no global batches.
        DatasetError: The dataset cannot be read.
    """
    from energon_dali.diagnosis.step_plan import uncooked_encoder
    from energon_dali.worker_config import WorkerConfig

    refuse_streams(state)
    config = source_config(unpack_config(state))
    inner = config.get("inner")
    first = inner[0] if inner else config
    options: dict[str, Any] = {
        "worker_config": WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=first["seed"]),
        "task_encoder": task_encoder or uncooked_encoder(),
        "batch_size": 1,
        "global_batch_size": state["global_batch"][0],
        "batch_drop_last": config["drop_last"],
        "allow_imports": allow_imports,
        "allow_code": allow_code,
    }
    if "packs" in config:
        options["packs"] = packs_of(config["packs"], task_encoder)
    if config.get("sizes"):
        options["blend_by"] = "tokens"
    if split_part is not None or not inner:
        options["split_part"] = split_part or first["split_part"]
    return _opened(path, config, first, options)


def open_streams_of(
    state: State, path: str, *, allow_imports: bool = False, allow_code: bool = False
) -> SavableDataset[Any]:
    """Returns the dataset of a job of streams that saved a state, in its order, without its hooks.

    Args:
        state: A state of a job without global batches.
        path: The dataset, metadataset or JSONL.
        allow_imports: Import what the dataset names, as in `get_train_dataset`.
        allow_code: Run code that is in the dataset, as there.

    Raises:
        StateError: The order of the job was decided while it ran, or the state is of another dataset.
        DatasetError: The dataset cannot be read.
    """
    from energon_dali.datasets.source import source_of
    from energon_dali.diagnosis.step_plan import uncooked_encoder
    from energon_dali.worker_config import WorkerConfig

    saved = unpack_config(state)
    levels, config = _levels_of(saved)
    inner = config.get("inner")
    first = inner[0] if inner else config
    options: dict[str, Any] = {
        "worker_config": WorkerConfig(
            rank=0,
            world_size=state["world_size"],
            num_workers=0,
            num_streams=state["num_streams"],
            seed_offset=first["seed"],
        ),
        "task_encoder": uncooked_encoder(),
        "batch_size": next((level["batch_size"] for level in levels if level["type"] == _BATCHES), None),
        "batch_drop_last": any(level.get("drop_last", False) for level in levels),
        "allow_imports": allow_imports,
        "allow_code": allow_code,
    }
    if not inner:
        options["split_part"] = first["split_part"]
    dataset = _opened(path, config, first, options)
    differences = describe_differences(config, source_of(dataset))
    if differences:
        raise StateError(
            f"The state is of another dataset. What differs: {differences}. Give the dataset of the job that saved the "
            "state."
        )
    return dataset


_BATCHES = "BatchDataset"
_PLANNED = frozenset((_BATCHES, "MapDataset", "DecodeDataset", "WorkerBorder", "GcDataset", "LogSampleDataset"))
"""Stages above the source that neither drop nor group samples by what they see."""


def _levels_of(config: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns (the stages of a tree, the config of its source).

    Raises:
        StateError: A stage decides about the order while the job runs, or the config is damaged.
    """
    levels = []
    while isinstance(config, dict) and config.get("type") in _PLANNED:
        levels.append(config)
        config = config.get("inner")
    inner = config.get("inner") if isinstance(config, dict) else None
    first = inner[0] if isinstance(inner, list) and inner else config
    if not isinstance(config, dict) or not isinstance(first, dict) or "order" not in first:
        what = config.get("type", "a stage") if isinstance(config, dict) else "a stage"
        raise StateError(
            f"The state is of a job in which {what} decided which batch has a sample while it ran, and does not say "
            "what its steps had. Give the debug logs of the job (WorkerConfig(worker_log_level=1)), or train with "
            "global_batch_size."
        )
    return levels, config


def _opened(path: str, config: dict[str, Any], first: dict[str, Any], options: dict[str, Any]) -> SavableDataset[Any]:
    """Returns a dataset with the order that the config of its source describes.

    Args:
        path: The dataset.
        config: What reads the samples.
        first: The first dataset of it.
        options: The other options of the call.
    """
    from energon_dali.assembly.datasets import get_train_dataset, get_val_dataset

    order = first["order"]
    options["parallel_shard_iters"] = order["parallel_shard_iters"]
    if not first["training"]:
        return get_val_dataset(path, **options)
    return get_train_dataset(
        path,
        repeat=config["repeat"],
        shuffle_buffer_size=order["shuffle_buffer_size"],
        max_samples_per_sequence=order["max_samples_per_sequence"],
        shuffle_over_epochs_multiplier=order["shuffle_over_epochs"],
        **options,
    )


def packs_of(entry: dict[str, Any], task_encoder: Any) -> Any:
    """Returns how the samples of a job were packed.

    Args:
        entry: What the config of a state has on it.
        task_encoder: The encoder of the job; None if it was not given.

    Raises:
        ConfigError: It was not given.
    """
    from energon_dali.task_encoder.planned_packs import PlannedPacks

    if task_encoder is None:
        raise ConfigError(
            "The job planned its packs from what its task encoder measured. Give that encoder: --encoder module:Class."
        )
    names = ("max_length", "window", "length", "multiple", "max_samples")
    return PlannedPacks(**{name: entry[name] for name in names}, real_length=None)
