"""Builds the dataset of a job again, in its order, from what its state says."""

from __future__ import annotations

from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.stream import State
from energon_dali.diagnosis.job_history import refuse_streams
from energon_dali.errors import ConfigError
from energon_dali.loader.loader_state import unpack_config
from energon_dali.loader.state_compatibility import source_config


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
    from energon_dali.assembly.datasets import get_train_dataset, get_val_dataset
    from energon_dali.diagnosis.step_plan import uncooked_encoder
    from energon_dali.worker_config import WorkerConfig

    refuse_streams(state)
    config = source_config(unpack_config(state))
    inner = config.get("inner")
    first = inner[0] if inner else config
    order = first["order"]
    options: dict[str, Any] = {
        "worker_config": WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=first["seed"]),
        "task_encoder": task_encoder or uncooked_encoder(),
        "batch_size": 1,
        "global_batch_size": state["global_batch"][0],
        "batch_drop_last": config["drop_last"],
        "parallel_shard_iters": order["parallel_shard_iters"],
        "allow_imports": allow_imports,
        "allow_code": allow_code,
    }
    if "packs" in config:
        options["packs"] = packs_of(config["packs"], task_encoder)
    if config.get("sizes"):
        options["blend_by"] = "tokens"
    if split_part is not None or not inner:
        options["split_part"] = split_part or first["split_part"]
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
