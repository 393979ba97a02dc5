"""`transformers.Trainer` with the loaders of this package, whose positions are saved in each checkpoint."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.errors import ConfigError, StateError
from energon_dali.integrations import LoaderScalars
from energon_dali.integrations.trainer_batches import EvaluationBatches, TrainingBatches, gather_rows, of_all_ranks
from energon_dali.loader.basic_loader import BasicDataLoader
from energon_dali.loader.get_loader import get_savable_loader
from energon_dali.loader.global_job import check_accumulation
from energon_dali.loader.loader_options import LoaderArguments
from energon_dali.loader.savable_loader import SavableDataLoader
from energon_dali.loader.state_file import read_state_file, write_state_files

_DEFAULTS = {
    "dataloader_num_workers": (0, "WorkerConfig(num_workers=...)"),
    "dataloader_prefetch_factor": (None, "loader_options={'prefetch_factor': ...}"),
    "dataloader_persistent_workers": (False, "workers always live as long as the loader"),
    "dataloader_drop_last": (False, "get_train_dataset(batch_drop_last=True)"),
    "data_seed": (None, "WorkerConfig(seed_offset=...)"),
    "group_by_length": (False, "get_train_dataset(packing_buffer_size=...), or batch_group_criterion of the encoder"),
    "train_sampling_strategy": ("random", "get_train_dataset(shuffle_buffer_size=...)"),
}
"""Arguments without effect on our loaders: the default of each, and what to set instead."""


class LoaderTrainerMixin:
    """Lets a `transformers.Trainer` take its batches from datasets of this package.

    Derive from it before Trainer: `class MyTrainer(LoaderTrainerMixin, Trainer)`, and give what `get_train_dataset` and
    `get_val_dataset` return as `train_dataset` and `eval_dataset`. Batches must be dicts or dataclasses whose names are
    arguments of the model; names that begin with two underscores are left out. Other datasets work as without it.

    Each checkpoint gets the position of each rank, `loader_state_RANK.json`. `train(resume_from_checkpoint=...)`
    continues there with the next batch; nothing is read twice or skipped. The number of ranks may change as the streams
    allow, and freely with global batches, whose steps are those of the optimizer. An evaluation counts every sample
    once, also where ranks have different numbers of samples.

    Args:
        *args: Those of Trainer.
        loader_options: The options of `get_savable_loader` for all loaders.
        log_loader: Whether what the Trainer logs during training gets the statistics of the loader, as "loader/...".
        **kwargs: Those of Trainer.

    Raises:
        ConfigError: A loader was given in place of a dataset.
    """

    args: Any
    accelerator: Any
    train_dataset: Any
    eval_dataset: Any
    gather_function: Any
    is_in_train: bool

    def __init__(
        self, *args: Any, loader_options: LoaderArguments | None = None, log_loader: bool = False, **kwargs: Any
    ) -> None:
        self.loader_options: LoaderArguments = loader_options or {}
        """The options of all loaders."""
        self.train_loader: SavableDataLoader[Any] | None = None
        """The loader of the training that runs, or ran last."""
        self._training: TrainingBatches | None = None
        self._log_loader = log_loader
        self._scalars: LoaderScalars | None = None
        self._evaluations: dict[int, EvaluationBatches] = {}
        self._resumed_from: str | None = None
        for name in ("train_dataset", "eval_dataset"):
            _refuse_loader(name, kwargs.get(name))
        self._parent.__init__(*args, **kwargs)

    # --- training --------------------------------------------------------------------------------------------------

    @property
    def _parent(self) -> Any:
        """The Trainer that the class derives from besides this one, which type checkers do not see."""
        return super()

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains, see `Trainer.train`; a resumed training continues with the next batch.

        Raises:
            ConfigError: `ignore_data_skip` or `auto_find_batch_size` is set, which cannot work with a loader, or
                `gradient_accumulation_steps` is not the number of batches in a step of global batches.
            StateError: The checkpoint has no position of the loader, or it is of another dataset.
            LayoutError: The position does not fit this number of ranks and workers.
        """
        if not isinstance(self.train_dataset, SavableDataset):
            return self._parent.train(resume_from_checkpoint, *args, **kwargs)
        self._check_arguments(resumes=bool(resume_from_checkpoint))
        check_accumulation(self.train_dataset, self.args.gradient_accumulation_steps, "gradient_accumulation_steps")
        folder = resume_from_checkpoint
        if folder is True:
            from transformers import trainer_utils

            tools: Any = trainer_utils
            folder = tools.get_last_checkpoint(self.args.output_dir)
        self._resumed_from = folder or None
        try:
            return self._parent.train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._resumed_from = self._training = None
            self._close_loaders()

    def get_train_dataloader(self) -> Any:
        """Returns what yields one epoch of the loader's batches each time it is iterated.

        An epoch of the Trainer has the number of batches that `len(loader)` says, the same on all ranks. The loader
        goes on from epoch to epoch, so that no batch is lost where hooks skip samples.

        Raises:
            StateError: The checkpoint has no position of the loader, or it is of another dataset.
            LayoutError: The position does not fit this number of ranks and workers.
        """
        if not isinstance(self.train_dataset, SavableDataset):
            return self._parent.get_train_dataloader()
        if self.train_loader is not None:
            self.train_loader.close()
        self.train_loader = loader = get_savable_loader(self.train_dataset, **self.loader_options)
        if self._resumed_from is not None:
            _restore(loader, Path(self._resumed_from))
        self._scalars = LoaderScalars(loader) if self._log_loader else None
        # The least of all ranks, so that all take the same number of steps.
        length = min(of_all_ranks(len(loader), self.accelerator, self.args.world_size))
        if self.train_dataset.global_batches is not None:  # whole steps
            length -= length % loader.micro_batches_per_step
        self._training = TrainingBatches(loader, length or None)
        return self._training

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *args: Any, **kwargs: Any) -> Any:
        """Takes the next batches from the loader; its position is right even if the Trainer believes it skips some."""
        if self._training is not None:
            epoch_iterator = self._training.endless()
        return self._parent.get_batch_samples(epoch_iterator, num_batches, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs, see `Trainer.log`; with log_loader=True, the loss comes with the statistics of the loader."""
        if self._scalars is not None and "loss" in logs:
            logs = {**logs, **self._scalars.read()}
        self._parent.log(logs, *args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves this rank's position next to its random number generators."""
        self._parent._save_rng_state(output_dir)
        if self._training is not None:
            os.makedirs(output_dir, exist_ok=True)
            loader, folder = self._training.loader, Path(output_dir)
            write_state_files({_state_path(folder, loader): loader.save_state_rank()}, wrapped=False)
            for path in folder.glob("loader_state_*.json"):  # of more ranks, which had begun the same checkpoint
                number = path.stem.rpartition("_")[2]
                if number.isdigit() and int(number) >= loader.worker_config.world_size:
                    path.unlink(missing_ok=True)

    def _check_arguments(self, *, resumes: bool) -> None:
        if self.args.ignore_data_skip and resumes:
            raise ConfigError(
                "ignore_data_skip=True starts a new epoch when a training is resumed, and the loader continues within "
                "its epoch. Leave ignore_data_skip out: the position is restored at once, and no batch is read to be "
                "skipped."
            )
        if getattr(self.args, "auto_find_batch_size", False):
            raise ConfigError(
                "auto_find_batch_size=True cannot change the batches of the loader. Leave it out, and choose the size "
                "with get_train_dataset(batch_size=...)."
            )
        ignored = [
            f"{name}={getattr(self.args, name)!r} ({instead})"
            for name, (default, instead) in _DEFAULTS.items()
            if getattr(self.args, name, default) != default
        ]
        if ignored:
            warnings.warn(
                f"These arguments have no effect on the loader, which makes the batches itself: {'; '.join(ignored)}.",
                stacklevel=3,
            )

    # --- evaluation ------------------------------------------------------------------------------------------------

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Returns what yields the batches of one evaluation; see `Trainer.get_eval_dataloader`.

        Raises:
            ConfigError: A loader was given in place of a dataset, or `batch_eval_metrics` is set.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(eval_dataset, str):
            dataset = self.eval_dataset[eval_dataset]
        if not isinstance(dataset, SavableDataset):
            _refuse_loader("eval_dataset", dataset)
            return self._parent.get_eval_dataloader(eval_dataset)
        return self._evaluated(dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Returns what yields the batches of one prediction; see `Trainer.get_test_dataloader`.

        Raises:
            ConfigError: A loader was given in place of a dataset, or `batch_eval_metrics` is set.
        """
        if not isinstance(test_dataset, SavableDataset):
            _refuse_loader("test_dataset", test_dataset)
            return self._parent.get_test_dataloader(test_dataset)
        return self._evaluated(test_dataset)

    def _evaluated(self, dataset: SavableDataset[Any]) -> EvaluationBatches:
        if getattr(self.args, "batch_eval_metrics", False):
            raise ConfigError(
                "batch_eval_metrics=True needs the last batch marked in advance, which a loader cannot do. Leave it "
                "out; eval_accumulation_steps saves GPU memory."
            )
        known = self._evaluations.get(id(dataset))
        if known is None or known.dataset is not dataset:
            known = EvaluationBatches(dataset, self.loader_options, self.accelerator, self.args)
            self._evaluations[id(dataset)] = known
        return known

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluates, see `Trainer.evaluation_loop`; batches of different sizes on the ranks are gathered whole."""
        if not isinstance(dataloader, EvaluationBatches):
            return self._parent.evaluation_loop(dataloader, *args, **kwargs)
        before = self.gather_function
        self.gather_function = lambda values: gather_rows(values, dataloader)
        try:
            output = self._parent.evaluation_loop(dataloader, *args, **kwargs)
        finally:
            self.gather_function = before
        if not self.is_in_train:
            dataloader.close()
        return output._replace(num_samples=dataloader.num_samples)

    def _close_loaders(self) -> None:
        if self.train_loader is not None:
            self.train_loader.close()
        for batches in self._evaluations.values():
            batches.close()


def _refuse_loader(name: str, given: Any) -> None:
    """Raises ConfigError for a loader where the Trainer takes a dataset."""
    values: Iterable[Any] = given.values() if isinstance(given, dict) else (given,)
    if any(isinstance(value, BasicDataLoader) for value in values):
        raise ConfigError(
            f"{name} is a loader. Give the dataset that get_train_dataset or get_val_dataset returned: the trainer "
            "makes the loader, with the options of loader_options={...}."
        )


def _state_path(folder: Path, loader: SavableDataLoader[Any], rank: int | None = None) -> Path:
    return folder / f"loader_state_{loader.worker_config.rank if rank is None else rank}.json"


def _restore(loader: SavableDataLoader[Any], folder: Path) -> None:
    """Restores the position of a checkpoint; from the files of all its ranks if their number has changed."""
    own, first = _state_path(folder, loader), _state_path(folder, loader, 0)
    if not own.exists() and not first.exists():
        raise StateError(
            f"{folder} has no loader_state_0.json: the checkpoint was written by a Trainer without LoaderTrainerMixin, "
            "or with save_only_model=True. Resume from one that has it, or start a new training from its weights "
            "(from_pretrained)."
        )
    (state,) = read_state_file(own if own.exists() else first).states
    world_size = state["world_size"]
    if world_size == loader.worker_config.world_size and own.exists():
        loader.restore_state_rank(state)
        return
    paths = [_state_path(folder, loader, rank) for rank in range(world_size)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise StateError(
            f"{folder} lacks {', '.join(missing[:20])}. On another number of ranks, each rank needs the files of all "
            f"{world_size} ranks that wrote the checkpoint: put them into one folder that all ranks see."
        )
    loader.restore_state_global(list(itertools.chain.from_iterable(read_state_file(path).states for path in paths)))
