"""Trains a task of energon_dali on Ray: the train command's parts, on workers that Ray starts.

    python examples/ray_train.py --workers 2 --storage runs --name igpt \
        +task=vision/igpt +dataset=vision/igpt/cifar trainer.max_epochs=4

Run it again with more epochs, and it continues from the last checkpoint; so does Ray when a worker fails. Each epoch
ends with a checkpoint, which contains the positions of all ranks in the data. A configuration that cannot work ends the
run at once. Several machines need a --storage that all of them can reach.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from omegaconf import OmegaConf

from energon_dali.errors import ConfigError, LayoutError, StateError
from energon_dali.tasks import HydraInstantiator, compose, run

if TYPE_CHECKING:
    from lightning import Trainer


class RayInstantiator(HydraInstantiator):
    """Makes the parts of a run as the train command does, and a trainer that takes its ranks from Ray."""

    def trainer(self, cfg: Any, **given: Any) -> Trainer:
        from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer

        cfg = {name: value for name, value in cfg.items() if name not in ("strategy", "devices", "num_nodes")}
        trainer = super().trainer(cfg, strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()], **given)
        trainer.callbacks.append(RayTrainReportCallback())
        return prepare_trainer(trainer)


def train_on_worker(told: dict[str, Any]) -> None:
    """Trains on one worker, from start to end.

    An error in the configuration would occur on every worker and at every attempt, and Ray would start all workers
    again. So it is written to a file for the driver instead of being raised.

    Args:
        told: `config`, the composed config; `folder`, which relative paths in it start from; and `error_file`.
    """
    if Path(told["folder"]).is_dir():
        os.chdir(told["folder"])
    cfg = OmegaConf.create(told["config"])
    checkpoint = ray.train.get_checkpoint()
    try:
        if checkpoint is None:
            run(cfg, RayInstantiator())
            return
        with checkpoint.as_directory() as folder:
            cfg.ckpt_path = str(Path(folder) / "checkpoint.ckpt")
            run(cfg, RayInstantiator())
    except (ConfigError, LayoutError, StateError) as error:
        if ray.train.get_context().get_world_rank() == 0:
            Path(told["error_file"]).write_text(str(error))


def train_on_ray(cfg: Any, *, workers: int, storage: Path, name: str, use_gpu: bool = False) -> ray.train.Result:
    """Trains a composed config on Ray, from its last checkpoint if `storage` has one of that name.

    Args:
        cfg: What `compose` returned.
        workers: Ranks; each has a GPU or a CPU.
        storage: Folder of checkpoints, which all workers can reach.
        name: The folder of this run in it.
        use_gpu: Whether each rank has a GPU.

    Raises:
        ConfigError: The configuration cannot work.
    """
    from ray.train.torch import TorchTrainer

    error_file = storage.absolute() / f"{name}-error.txt"
    error_file.parent.mkdir(parents=True, exist_ok=True)
    error_file.unlink(missing_ok=True)
    trainer = TorchTrainer(
        train_on_worker,
        train_loop_config={
            "config": OmegaConf.to_container(cfg),
            "folder": os.getcwd(),
            "error_file": str(error_file),
        },
        scaling_config=ray.train.ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=ray.train.RunConfig(
            name=name, storage_path=str(storage.absolute()), failure_config=ray.train.FailureConfig(max_failures=2)
        ),
    )
    result = trainer.fit()
    if error_file.exists():
        raise ConfigError(error_file.read_text())
    return result


def main(arguments: Sequence[str] | None = None) -> ray.train.Result:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Trains a task of energon_dali on Ray.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--storage", type=Path, default=Path("runs"))
    parser.add_argument("--name", default="energon_dali")
    parser.add_argument("--config-dir", help="folder of configs of your own")
    options, overrides = parser.parse_known_args(arguments)
    output = options.storage.absolute() / options.name / "outputs"
    cfg = compose([f"output_dir={output}", *overrides], options.config_dir)
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init()
    return train_on_ray(cfg, workers=options.workers, storage=options.storage, name=options.name, use_gpu=options.gpu)


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"Error: {error}")
