"""The callback that records which batches went into the weights, so that a checkpoint holds exactly these.

With it are the states of the global random number generators, which dropout and the like draw from; the place of this
process among the ranks that read different data; and what they send each other.
"""

from __future__ import annotations

import base64
import random
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch import Callback

from energon_dali.datasets.stream import State
from energon_dali.errors import StateError
from energon_dali.loader.loader_state import check_format, merge_states
from energon_dali.worker_config import WorkerConfig

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from energon_dali.tasks.loaders import FollowedSteps

_MAX_STATE_BYTES = 1 << 20
"""What one state unpacks to: the largest, torch's on the CPU, has 5 KiB."""


@dataclass(frozen=True, slots=True)
class RandomState:
    """The generators of Python, numpy and torch, and that of torch for the current CUDA device if CUDA is in use."""

    of_python: tuple[Any, ...]
    """What random.getstate() gave."""
    of_numpy: tuple[Any, ...]
    """What numpy.random.get_state() gave."""
    of_torch: torch.Tensor
    """What torch.get_rng_state() gave: uint8 [n], CPU."""
    of_cuda: torch.Tensor | None
    """What torch.cuda.get_rng_state() gave: uint8 [m], CPU."""

    @classmethod
    def now(cls) -> RandomState:
        """Returns the present states."""
        cuda = torch.cuda.get_rng_state() if _uses_cuda() else None
        numpy_state: Any = np.random.get_state()
        return cls(random.getstate(), numpy_state, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Puts the generators into these states; that of CUDA only where CUDA is in use."""
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)
        torch.set_rng_state(self.of_torch)
        if self.of_cuda is not None and _uses_cuda():
            torch.cuda.set_rng_state(self.of_cuda)

    def as_plain(self) -> dict[str, Any]:
        """Returns the states as plain values that survive JSON, about 10 KB."""
        version, words, gauss = self.of_python
        name, keys, *rest = self.of_numpy
        return {
            "python": [version, _packed(np.array(words, np.uint32).tobytes()), gauss],
            "numpy": [name, _packed(keys.tobytes()), *map(_plain, rest)],
            "torch": _packed(self.of_torch.numpy().tobytes()),
            "cuda": None if self.of_cuda is None else _packed(self.of_cuda.numpy().tobytes()),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> RandomState:
        """Returns what as_plain wrote.

        Raises:
            StateError: It is damaged.
        """
        try:
            version, words, gauss = plain["python"]
            name, keys, *rest = plain["numpy"]
            numbers = np.frombuffer(_unpacked(words), np.uint32).tolist()
            return cls(
                (version, tuple(numbers), gauss),
                (name, np.frombuffer(_unpacked(keys), np.uint32), *rest),
                torch.frombuffer(_unpacked(plain["torch"]), dtype=torch.uint8),
                None if plain["cuda"] is None else torch.frombuffer(_unpacked(plain["cuda"]), dtype=torch.uint8),
            )
        except (KeyError, ValueError, TypeError, zlib.error) as error:
            raise StateError(
                f"The checkpoint's states of the random number generators are damaged ({error}). Restore another one."
            ) from error


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _packed(raw: bytes) -> str:
    return base64.b85encode(zlib.compress(raw)).decode()


def _unpacked(text: str) -> bytearray:
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(base64.b85decode(text), _MAX_STATE_BYTES)
    if not unpacking.eof:
        raise ValueError(f"it is cut off, or unpacks to more than {_MAX_STATE_BYTES:,} bytes")
    return bytearray(content)


def _plain(value: Any) -> int | float:
    return float(value) if isinstance(value, float) else int(value)


class TrainedPosition(Callback):
    """Follows the steps of a trainer: which batches were trained on, and what random numbers they began with.

    A checkpoint is that of the last step of the optimizer: a batch in work, and gradients that were accumulated since,
    are not in it, so that the resumed run does them again.
    """

    def __init__(self) -> None:
        self._trainer: Any = None
        self._loader: FollowedSteps | None = None
        self._step = 0
        self._random: RandomState | None = None
        self._before_validation: RandomState | None = None
        self._to_restore: RandomState | None = None
        self.saved_world_size: int | None = None
        """Ranks of the run that wrote the checkpoint that is being loaded."""
        self.saved_micro_batches: int | None = None
        """Batches of each of these ranks in a step of global batches; None without them."""

    # --- for the data module ---------------------------------------------------------------------------------------

    def attach(self, trainer: Any) -> None:
        """Joins the trainer's callbacks, as the first: what others save has to include the step that ended."""
        self._trainer = trainer
        trainer.callbacks.insert(0, self)

    def detach(self) -> None:
        """Leaves the trainer's callbacks."""
        if self._trainer is not None and self in self._trainer.callbacks:
            # A new list: the trainer may be going through the old one.
            self._trainer.callbacks = [callback for callback in self._trainer.callbacks if callback is not self]

    def watch(self, loader: FollowedSteps) -> None:
        """Follows a loader from now on."""
        self._loader = loader
        loader.follow()

    def resume(self, random: State | None) -> None:
        """Lets training begin with the random number generators that a checkpoint has for this rank."""
        self._to_restore = None if random is None else RandomState.from_plain(random)

    def warn_without_state(self) -> None:
        """Warns that a run continues with old weights and with the data from its beginning, if that is so."""
        if self._trainer.state.fn == "fit" and self._trainer.ckpt_path:
            warnings.warn(
                f"{self._trainer.ckpt_path} holds no position of this data module: training data begins at the "
                "beginning. Checkpoints of a trainer that was given the data module by datamodule=... hold one.",
                stacklevel=2,
            )

    def random_state(self) -> dict[str, Any]:
        """Returns the random number generators as they were after the last step of the optimizer."""
        return (self._random or RandomState.now()).as_plain()

    # --- hooks -----------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore_random()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._restore_random()
        if self._random is None:
            self._random = RandomState.now()
        if self._loader is not None:
            self._loader.take()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Who optimizes by hand steps when it likes; then every batch counts at once.
        stepped = not pl_module.automatic_optimization or trainer.global_step != self._step
        self._step = trainer.global_step
        if self._loader is not None:
            self._loader.trained(stepped=stepped)
        if stepped:
            self._random = None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Validation must not change what training draws: a resumed run may validate at other times.
        if trainer.state.fn == "fit" and not trainer.sanity_checking and self._random is None:
            self._before_validation = self._random = RandomState.now()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._before_validation is not None:
            self._before_validation.restore()
            self._before_validation = self._random = None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Sets the trainer's counts of batches to those that the position holds."""
        progress = _batch_progress(checkpoint)
        if self._loader is None or progress is None:
            return
        in_work = progress["current"]["ready"] - progress["current"]["processed"]
        undone = self._loader.unsettled + in_work
        if undone:
            settled = {name: counts["processed"] - self._loader.unsettled for name, counts in _counts(progress)}
            for name, counts in _counts(progress):
                counts.update(dict.fromkeys(counts, settled[name]))
            progress["is_last_batch"] = False

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Sets the trainer's counts of batches per rank to this number of ranks."""
        progress = _batch_progress(checkpoint)
        if progress is None or self.saved_world_size is None:
            return
        times, over = self.saved_world_size, find_place(trainer)[1]
        if self.saved_micro_batches is not None:  # as many steps as before
            times, over = trainer.accumulate_grad_batches, self.saved_micro_batches
        if times == over:
            return
        # A batch whose callbacks saved the checkpoint is not completed: Lightning sees that by the counts' difference.
        ready = progress["current"]["ready"]
        more = ready * times // over - ready
        for _, counts in _counts(progress):
            counts.update({name: max(0, count + more) for name, count in counts.items()})

    def _restore_random(self) -> None:
        if self._to_restore is not None:
            self._to_restore.restore()
            self._to_restore = None


def _batch_progress(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the counts of training batches in a checkpoint of Lightning: `total` and of the `current` epoch."""
    progress: dict[str, Any] | None = checkpoint.get("loops", {}).get("fit_loop", {}).get("epoch_loop.batch_progress")
    return progress


def _counts(progress: dict[str, Any]) -> list[tuple[str, dict[str, int]]]:
    return [(name, progress[name]) for name in ("total", "current")]


def check_state(state: Mapping[str, Any]) -> State:
    """Returns what a data module saved.

    Raises:
        StateError: It is something else.
    """
    kind = "dataset" if "dataset" in state else "loader"
    if not isinstance(state.get(kind), dict) or not isinstance(state.get("random"), dict):
        raise StateError(
            f"The checkpoint's state of the data module holds {sorted(map(str, state))}, and not the position of a "
            "loader and random numbers. Restore a checkpoint of a TransformerDataModule."
        )
    if kind == "loader":
        check_format(state["loader"])
    return dict(state)


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
