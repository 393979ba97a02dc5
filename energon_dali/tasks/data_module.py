"""The data module of a task: a Lightning data module over prepared shards, whose position is part of checkpoints.

With it is the decoder of a task: the run chooses the backend, the task in which form images come.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, Dataset, IterableDataset

from energon_dali.assembly.datasets import AnyPath, get_train_dataset, get_val_dataset
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.stream import State
from energon_dali.datasets.wrappers.epochize import LimitDataset
from energon_dali.decode import DaliDecoder, Decoder, MediaDecoder, SampleDecoder
from energon_dali.decode.media_decoder import options_of
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.global_job import check_accumulation
from energon_dali.plan.global_step import Uneven
from energon_dali.samples.transfer import move
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.task_encoder.encoder import TaskEncoder
from energon_dali.tasks.loaders import EvalLoader, TrainLoader
from energon_dali.tasks.map_loader import EpochPlan, MapLoader, PlanSampler
from energon_dali.tasks.position import (
    TrainedPosition,
    check_state,
    find_place,
    gather_states,
    warn_between_steps,
)
from energon_dali.worker_config import WorkerConfig

DecoderChoice = str | Decoder | Callable[..., Decoder] | None
"""A name of `DECODERS`, a decoder, or what makes one of keyword options: a class, or a `functools.partial` of one."""

DECODERS: dict[str, Callable[..., MediaDecoder]] = {
    "dali": DaliDecoder,
    "dali_cpu": partial(DaliDecoder, image_decode_device="cpu", video_decode_device="cpu"),
    "dali_gpu": partial(DaliDecoder, image_decode_device="gpu", video_decode_device="gpu"),
    "pil": SampleDecoder,
}
"""The backends by name: "dali" takes a GPU where there is one."""


def make_decoder(choice: DecoderChoice = None, **options: Any) -> Decoder:
    """Returns the decoder of a task encoder.

    Args:
        choice: The backend; None is DaliDecoder(). A decoder that was made already keeps all that `options` leave open.
        **options: What the task needs of images: `image_decode`, `operations` and the other options of
            `MediaDecoder`. They win over those of the choice.

    Raises:
        ConfigError: The choice makes no decoder, or an option cannot work.
    """
    if isinstance(choice, str):
        if choice not in DECODERS:
            raise ConfigError(f"decoder={choice!r} is unknown. Choose one of {', '.join(DECODERS)}, or give a decoder.")
        choice = DECODERS[choice]
    if isinstance(choice, MediaDecoder):
        return type(choice)(**{**options_of(choice), **options}) if options else choice
    if isinstance(choice, Decoder):
        if options:
            raise ConfigError(
                f"A {type(choice).__name__} does not take {', '.join(options)}, which this task needs of its images. "
                "Give what makes the decoder, such as its class, and not the decoder itself."
            )
        return choice
    if choice is not None and not callable(choice):
        raise ConfigError(
            f"decoder={choice!r} makes no decoder. Give one of the names {', '.join(DECODERS)}, a decoder, or its "
            "class; in a config, _target_ with _partial_: true."
        )
    decoder = (choice or DaliDecoder)(**options)
    if not isinstance(decoder, Decoder):
        raise ConfigError(f"{choice!r} made a {type(decoder).__name__}, which is not a decoder of energon_dali.")
    return decoder


@dataclass(kw_only=True)
class TransformerDataConfig:
    """What every task can say of its data; tasks derive from it and add theirs."""

    train: AnyPath | None = None
    """Prepared dataset or metadataset for training, as in `get_train_dataset`."""
    val: AnyPath | None = None
    """The same for validation; None does not validate."""
    test: AnyPath | None = None
    """The same for the test; None does not test."""
    train_split: str = "train"
    """Part of the split of `train`."""
    val_split: str = "val"
    """Part of the split of `val`."""
    test_split: str = "test"
    """Part of the split of `test`."""
    batch_size: int = 32
    """Samples per batch and rank."""
    val_batch_size: int | None = None
    """Samples per batch in validation and test; None is batch_size."""
    num_workers: int = 2
    """Reading processes per rank and loader; 0 reads in the rank's process."""
    global_batch_size: int | None = None
    """Samples per step of the optimizer over all ranks, the same on any number of them; the trainer's
    accumulate_grad_batches has to be global_batch_size / (ranks x batch_size). None has batches of ranks alone."""
    uneven: Uneven = "error"
    """What happens to a global_batch_size that the ranks cannot share equally; see `get_train_dataset`."""
    num_streams: int | None = None
    """Logical streams of the job: ranks x workers must divide it. None is ranks x workers at the first start, and that
    of the checkpoint where a run is resumed."""
    shuffle_buffer_size: int | None = 10_000
    """Window of the sample shuffle per stream; costs no memory to speak of."""
    max_samples_per_sequence: int | None = 100
    """Longest run of training samples that is read in file order; None is a whole shard."""
    parallel_shard_iters: int | None = None
    """Places of a stream that are read in turn; None is 16 for training and 1 else."""
    packing_buffer_size: int | None = None
    """Samples from which the task encoder chooses packs; None does not pack."""
    virtual_epoch_length: int | None = None
    """Batches per epoch of training and rank, or steps with global_batch_size; None is one pass over the data, 0 never
    ends."""
    limit_val_batches: int | None = None
    """Most batches per rank of a validation or test; None takes all."""
    seed: int = 0
    """Seed of the order of the data and of every random draw on it."""
    prefetch_factor: int = 2
    """Batches that wait for the trainer."""
    decode_process: bool | str = False
    """Decode and run hooks in a process of their own; "auto" where there is something to gain. See BasicDataLoader."""
    dataset_options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `get_train_dataset` and `get_val_dataset`, such as subset or allow_imports."""
    loader_options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the loaders, such as watchdog_timeout_seconds."""


Split = Literal["train", "val", "test"]

__all__ = ["DecoderChoice", "Split", "TransformerDataConfig", "TransformerDataModule", "make_decoder"]


class TransformerDataModule(LightningDataModule):
    """Loads data for a Lightning trainer: prepared datasets, or map-style datasets that a subclass sets itself.

    Tasks on prepared datasets override `task_encoder` and `model_data_kwargs`, and `prepare_data` where the data has to
    be made first. Others set `dataset_train`, `dataset_val` and `dataset_test` in `setup`; torch's DataLoader then
    loads them with the config's batch size, number of workers and seed.

    Checkpoints contain the position after the last batch that went into an optimizer step, of all ranks, and the
    states of the random number generators: a resumed run continues as if it had never stopped, on any number of
    processes that fits the streams.

    Args:
        cfg: Paths, sizes and seeds; None is a TransformerDataConfig().
        decoder: Backend for media, see `make_decoder`.
        tokenizer: For task encoders that need one.
    """

    dataset_train: Dataset[Any] | None = None
    """Map-style dataset to train on, set in `setup`; it takes the place of cfg.train."""
    dataset_val: Dataset[Any] | None = None
    """The same for validation, in the place of cfg.val."""
    dataset_test: Dataset[Any] | None = None
    """The same for the test, in the place of cfg.test."""
    train_transforms: Callable[..., Any] | None = None
    """What `setup` may give the dataset of training as its transform; override it or set it."""
    val_transforms: Callable[..., Any] | None = None
    """The same for validation."""
    test_transforms: Callable[..., Any] | None = None
    """The same for the test."""

    def __init__(
        self, cfg: TransformerDataConfig | None = None, *, decoder: DecoderChoice = None, tokenizer: Any | None = None
    ) -> None:
        super().__init__()
        self.cfg = TransformerDataConfig() if cfg is None else cfg
        self.decoder = decoder
        self.tokenizer = tokenizer
        self._train: TrainLoader[Any] | MapLoader | None = None
        self._evals: dict[Split, EvalLoader[Any]] = {}
        self._state: State | None = None
        self._state_of: weakref.ref[Any] | None = None
        self._position: TrainedPosition | None = None

    # --- for tasks to override -------------------------------------------------------------------------------------

    def task_encoder(self, split: Split) -> TaskEncoder[Any, Any, Any, Any]:
        """Returns the hooks and the decoder for a split; by default samples are only decoded and batched.

        Classes of task encoders travel to the reading processes: keep them in a module that imports neither torch nor
        lightning when it is loaded, so that these start quickly.
        """
        encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
        encoder.decoder = make_decoder(self.decoder)
        return encoder

    @property
    def model_data_kwargs(self) -> dict[str, Any]:
        """Facts about the data that the model needs, as keyword arguments for it."""
        return {}

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any] | None:
        """What makes a batch of the samples of `dataset_train`, `dataset_val` and `dataset_test`; None is torch's."""
        return None

    def prepare_data(self, *args: Any, **kwargs: Any) -> None:
        """Makes or fetches the data, where a task has to; several processes may call it at once."""

    # --- loaders ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> TrainLoader[Any] | EvalLoader[Any] | DataLoader[Any]:
        """Returns the loader of training; while it is in use, the same one: a trainer that reloads continues with it.

        With the trainer's overfit_batches it repeats the first batches in each epoch.

        Raises:
            ConfigError: There is no data, or an option cannot work.
            LayoutError: The streams cannot be divided over these ranks and workers.
            StateError: The checkpoint is of another dataset.
        """
        position = self._attach()
        overfit = getattr(self.trainer, "overfit_batches", 0)
        if self.dataset_train is not None:
            return self._open_map_train(self.dataset_train, position, overfit)
        _ignore_warning_of_lengths()
        if overfit:
            return self._open_overfit(overfit)
        if self._train is None:
            state = self._state_to_load("loader")
            streams = None if state is None or self.cfg.global_batch_size else state["loader"]["num_streams"]
            self._train = self._open_train(self._worker_config(self.cfg.num_streams or streams))
            if state is not None:
                warn_between_steps(state, self._train.worker_config)
                self._train.restore_state_global(state["loader"])
            self._resume(position, state)
        return self._train

    def _resume(self, position: TrainedPosition | None, state: State | None) -> None:
        """Lets the callback of a trainer follow the loader of training, which was just opened."""
        assert self._train is not None
        if position is None:
            return
        if state is not None:
            position.resume(state["random"].get(str(find_place(self.trainer)[0])))
        else:
            position.warn_without_state()
        position.watch(self._train)

    def val_dataloader(self) -> EvalLoader[Any] | DataLoader[Any] | list[Any]:
        """Returns the loader of validation; nothing where there is neither dataset_val nor cfg.val.

        Raises:
            ConfigError: An option cannot work, or a rank would have no batch.
            LayoutError: The streams cannot be divided over these ranks and workers.
        """
        if self.dataset_val is not None:
            return self._open_map_eval(self.dataset_val)
        if self.cfg.val is None:
            # Lightning asks whether this was meant; it was.
            warnings.filterwarnings("ignore", "Total length of `list` across ranks is zero")
            return []
        return self._open_eval("val", self.cfg.val, self.cfg.val_split)

    def test_dataloader(self) -> EvalLoader[Any] | DataLoader[Any] | list[Any]:
        """Returns the loader of the test; nothing where there is neither dataset_test nor cfg.test.

        Raises:
            ConfigError: An option cannot work, or a rank would have no batch.
            LayoutError: The streams cannot be divided over these ranks and workers.
        """
        if self.dataset_test is not None:
            return self._open_map_eval(self.dataset_test)
        return [] if self.cfg.test is None else self._open_eval("test", self.cfg.test, self.cfg.test_split)

    def _open_map_train(
        self, dataset: Dataset[Any], position: TrainedPosition | None, overfit: int | float
    ) -> DataLoader[Any]:
        options = self._map_options()
        if overfit or isinstance(dataset, IterableDataset):
            # Lightning takes the first batches of it in each epoch.
            return DataLoader(dataset, self.cfg.batch_size, **options)
        if not isinstance(self._train, MapLoader):
            rank, world_size = find_place(self.trainer)
            plan = EpochPlan(len(dataset), self.cfg.batch_size, rank, world_size, self.cfg.seed, shuffle=True)  # type: ignore[arg-type]
            self._train = MapLoader(dataset, plan, limit=self._limit_of_epoch(plan.num_batches), **options)
            state = self._state_to_load("dataset")
            if state is not None:
                self._train.restore_position(state["dataset"])
            self._resume(position, state)
        return self._train

    def _limit_of_epoch(self, num_batches: int) -> int | None:
        """Returns the batches of each rank after which the trainer ends an epoch."""
        limit: int | float | None = getattr(self.trainer, "limit_train_batches", None)
        return int(limit * num_batches) if isinstance(limit, float) else limit

    def _open_map_eval(self, dataset: Dataset[Any]) -> DataLoader[Any]:
        cfg, options = self.cfg, self._map_options()
        batch_size = cfg.val_batch_size or cfg.batch_size
        overfit = getattr(self.trainer, "overfit_batches", 0)
        if overfit or isinstance(dataset, IterableDataset):
            return DataLoader(dataset, batch_size, **options)
        rank, world_size = find_place(self.trainer)
        count = len(dataset)  # type: ignore[arg-type]
        plan = EpochPlan(count, batch_size, rank, world_size, cfg.seed, shuffle=False)
        if cfg.limit_val_batches is not None:
            plan = replace(plan, num_samples=min(count, cfg.limit_val_batches * batch_size * world_size))
        return DataLoader(dataset, batch_size, sampler=PlanSampler(dataset, plan), **options)

    def _map_options(self) -> dict[str, Any]:
        cfg = self.cfg
        workers = {"prefetch_factor": cfg.prefetch_factor, "persistent_workers": True} if cfg.num_workers else {}
        # DataLoader draws a number whenever an iteration begins; from the global generator, that would change dropout.
        own = {"generator": torch.Generator().manual_seed(cfg.seed), "collate_fn": self.collate_fn}
        return {"num_workers": cfg.num_workers, **own, **workers, **cfg.loader_options}

    def _open_train(self, config: WorkerConfig) -> TrainLoader[Any]:
        dataset = self._train_dataset(config)
        check_accumulation(dataset, getattr(self.trainer, "accumulate_grad_batches", 1), "accumulate_grad_batches")
        length = self._epoch_length(dataset)
        return TrainLoader(dataset, length=length, **self._loader_options())

    def _open_overfit(self, amount: int | float) -> EvalLoader[Any]:
        if "train" not in self._evals:
            dataset = self._train_dataset(self._worker_config(self.cfg.num_streams))
            batches = amount if isinstance(amount, int) else int(amount * (self._epoch_length(dataset) or 1))
            self._evals["train"] = EvalLoader(LimitDataset(dataset, max(1, batches)), **self._loader_options())
        return self._evals["train"]

    def _train_dataset(self, config: WorkerConfig) -> SavableDataset[Any]:
        cfg = self.cfg
        if cfg.train is None:
            raise ConfigError(
                "There is nothing to train on: cfg.train is None, and setup() set no dataset_train. Give the path of a "
                "prepared dataset as dataset.cfg.train, or set self.dataset_train in setup()."
            )
        return get_train_dataset(
            cfg.train,
            split_part=cfg.train_split,
            worker_config=config,
            batch_size=cfg.batch_size,
            global_batch_size=cfg.global_batch_size,
            uneven=cfg.uneven,
            packing_buffer_size=cfg.packing_buffer_size,
            shuffle_buffer_size=cfg.shuffle_buffer_size,
            max_samples_per_sequence=cfg.max_samples_per_sequence,
            parallel_shard_iters=cfg.parallel_shard_iters,
            task_encoder=self.task_encoder("train"),
            **cfg.dataset_options,
        )

    def _epoch_length(self, dataset: SavableDataset[Any]) -> int | None:
        """Returns the batches of an epoch of each rank, the same for all; None where epochs never end."""
        cfg = self.cfg
        if cfg.virtual_epoch_length is not None:
            if cfg.virtual_epoch_length < 0:
                raise ConfigError(
                    f"virtual_epoch_length={cfg.virtual_epoch_length} is invalid: give a number of batches, 0 for "
                    "epochs that never end, or None for one pass over the data."
                )
            steps = dataset.global_batches
            return cfg.virtual_epoch_length * (1 if steps is None else steps.micro_batches_per_step) or None
        if cfg.packing_buffer_size is not None:
            raise ConfigError(
                "How many packs the data will make is not known, and virtual_epoch_length is None, which means one "
                "pass over the data. Set virtual_epoch_length to a number of batches per rank, or to 0 and stop by "
                "max_steps."
            )
        steps = dataset.global_batches
        if steps is not None:
            return max(1, steps.steps_per_pass()) * steps.micro_batches_per_step
        layout = dataset.worker_config.layout
        batches = sum(dataset.len_stream(stream) for stream in range(layout.num_streams))
        # Whole rounds over the streams, so that an epoch holds the same batches on any number of ranks.
        return max(1, batches // layout.num_streams) * (layout.num_streams // layout.world_size)

    def _open_eval(self, split: Split, path: AnyPath, part: str) -> EvalLoader[Any]:
        _ignore_warning_of_lengths()
        if split not in self._evals:
            cfg = self.cfg
            train = self._train if isinstance(self._train, TrainLoader) else None
            streams = None if train is None or cfg.global_batch_size else train.worker_config.layout.num_streams
            dataset = get_val_dataset(
                path,
                split_part=part,
                worker_config=self._worker_config(cfg.num_streams or streams),
                batch_size=cfg.val_batch_size or cfg.batch_size,
                packing_buffer_size=cfg.packing_buffer_size,
                limit=cfg.limit_val_batches,
                parallel_shard_iters=cfg.parallel_shard_iters,
                task_encoder=self.task_encoder(split),
                **cfg.dataset_options,
            )
            if not self.allow_zero_length_dataloader_with_multiple_devices:
                _check_ranks(dataset, split)
            self._evals[split] = EvalLoader(dataset, **self._loader_options())
        return self._evals[split]

    def _loader_options(self) -> dict[str, Any]:
        cfg = self.cfg
        return {"prefetch_factor": cfg.prefetch_factor, "decode_process": cfg.decode_process, **cfg.loader_options}

    def _worker_config(self, num_streams: int | None) -> WorkerConfig:
        rank, world_size = find_place(self.trainer)
        return WorkerConfig(
            rank=rank,
            world_size=world_size,
            num_workers=self.cfg.num_workers,
            num_streams=num_streams,
            seed_offset=self.cfg.seed,
        )

    # --- what belongs to a run -------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Returns the position of all ranks; a collective call with several ranks."""
        if self._train is not None:
            return gather_states(self._own_state())
        # Closed already, or not opened yet.
        return {} if self._state is None else gather_states(self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Lets the next training begin at the position of a checkpoint.

        Raises:
            StateError: It holds none.
        """
        position = self._attach()
        self._keep(check_state(state_dict) if state_dict else None)
        if position is not None and self._state is not None:
            saved = self._state["loader"] if "loader" in self._state else self._state["dataset"]
            position.saved_world_size = saved["world_size"]
            position.saved_micro_batches = saved.get("micro_batches")

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Returns the batch with its tensors on the device; those that are there already stay as they are."""
        if hasattr(batch, "__dataclass_fields__"):
            return move(batch, device)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def teardown(self, stage: str) -> None:
        """Ends the workers of all loaders."""
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """Ends the workers of all loaders, after callbacks have saved what they save."""
        self.close()

    def close(self) -> None:
        """Ends the workers of all loaders; the same trainer continues where it was, another one begins again."""
        if self._train is not None:
            self._keep(self._own_state())
            if isinstance(self._train, TrainLoader):
                self._train.close()
            self._train = None
        for loader in self._evals.values():
            loader.close()
        self._evals.clear()
        if self._position is not None:
            self._position.detach()
            self._position = None

    def _attach(self) -> TrainedPosition | None:
        """Returns the callback that follows the trainer; None without one."""
        if self._position is None and isinstance(self.trainer, Trainer):
            self._position = TrainedPosition()
            self._position.attach(self.trainer)
        return self._position

    def _own_state(self) -> State:
        """Returns the state of this rank."""
        assert self._train is not None
        random = None if self._position is None else self._position.random_state()
        own = {"random": {str(find_place(self.trainer)[0]): random}}
        if isinstance(self._train, MapLoader):
            return {"dataset": self._train.save_position(), **own}
        return {"loader": self._train.save_state_rank(), **own}

    def _keep(self, state: State | None) -> None:
        self._state = state
        self._state_of = None if self.trainer is None else weakref.ref(self.trainer)

    def _state_to_load(self, kind: str) -> State | None:
        """Returns the state to begin with: "loader" for prepared datasets, "dataset" for one that `setup` set.

        Raises:
            StateError: It is of the other kind.
        """
        # A state that was kept for one trainer means nothing to the next, which begins again.
        if self._state is None or (self._state_of is not None and self._state_of() is not self.trainer):
            return None
        if kind not in self._state:
            raise StateError(
                "The checkpoint's training data was "
                f"{'a prepared dataset' if kind == 'dataset' else 'the dataset_train of a data module'}, and this "
                "run's is not. Train on the same data."
            )
        return self._state


def _ignore_warning_of_lengths() -> None:
    """Ignores Lightning's warning about every IterableDataset with a length, which torch's workers could repeat.

    These loaders divide the streams, and their length is that of the rank.
    """
    warnings.filterwarnings("ignore", "Your `IterableDataset` has `__len__` defined")


def _check_ranks(dataset: SavableDataset[Any], split: Split) -> None:
    """Raises an error, the same on all ranks, where some of them have no batch: means over ranks wait for each.

    Raises:
        ConfigError: A rank has no batch.
    """
    layout = dataset.worker_config.layout
    batches = [sum(map(dataset.len_stream, layout.rank_streams(rank))) for rank in range(layout.world_size)]
    without = [rank for rank, count in enumerate(batches) if not count]
    if without and any(batches):
        raise ConfigError(
            f"The part {split!r} of the data is too small for {layout.world_size} ranks: it gives no batch to "
            f"{len(without)} of them. Hold back more samples, train on fewer ranks, or do without it "
            f"(trainer.limit_{split}_batches=0)."
        )
