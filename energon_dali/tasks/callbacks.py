"""The callbacks of a run: its speed and whether its data keeps up, the curves of its losses, and its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from energon_dali.errors import ConfigError
from energon_dali.tasks.position import find_place
from energon_dali.tasks.task import count_samples

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer

SPEED = "samples_per_second"
BLOCKED = "data_blocked_share"


class LoaderProgress(Callback):
    """Logs `samples_per_second`, of all ranks together, and `data_blocked_share`: the share of the training time in
    which the trainer waited for data, 0 to 1, from `loader.stats()`.

    Both hold for the batches since they were last renewed; time in validation does not count.

    Args:
        every_n_batches: After how many batches the figures are renewed; None is the trainer's log_every_n_steps, and
            10 at most.

    Raises:
        ConfigError: every_n_batches is not a whole number of at least 1.
    """

    def __init__(self, every_n_batches: int | None = None) -> None:
        if every_n_batches is not None and (not isinstance(every_n_batches, int) or every_n_batches < 1):
            raise ConfigError(f"every_n_batches={every_n_batches!r} is invalid: give a whole number of at least 1.")
        self._wanted = every_n_batches
        self._every = 1
        self._window: _Window | None = None
        self._pause_began: float | None = None
        self._latest: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._every = self._wanted or max(1, min(10, int(getattr(trainer, "log_every_n_steps", 10))))
        self._window, self._latest = None, {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        stats = getattr(trainer.train_dataloader, "stats", None)
        if stats is None:
            return
        if self._window is None:
            # It begins after the first batch, whose time is that of starting the workers.
            self._window = _Window(time.perf_counter(), stats().blocked_seconds)
            return
        self._window.samples += count_samples(batch)
        self._window.batches += 1
        if self._window.batches >= self._every:
            now, blocked = time.perf_counter(), stats().blocked_seconds
            self._latest = self._window.figures(now, blocked, find_place(trainer)[1])
            self._window = _Window(now, blocked)
        if self._latest:
            pl_module.log_dict(self._latest, prog_bar=True, on_step=True, on_epoch=False, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause_began = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._window is not None and self._pause_began is not None:
            self._window.began += time.perf_counter() - self._pause_began
        self._pause_began = None


@dataclass(slots=True)
class _Window:
    """What happened since the figures were last renewed."""

    began: float
    blocked: float
    samples: int = 0
    batches: int = 0

    def figures(self, now: float, blocked: float, world_size: int) -> dict[str, float]:
        seconds = max(now - self.began, 1e-9)
        return {
            SPEED: self.samples * world_size / seconds,
            BLOCKED: min(1.0, max(0.0, blocked - self.blocked) / seconds),
        }


_MAX_POINTS = 1000
"""Per curve: of more, every second one is dropped, so that checkpoints stay small."""


@dataclass(slots=True)
class Curve:
    """Points of a curve; of very many, evenly spread ones."""

    steps: list[int] = field(default_factory=list)
    """Steps of the points, ascending."""
    values: list[float] = field(default_factory=list)
    """Their values."""
    stride: int = 1
    """Every `stride`-th point is kept."""
    seen: int = 0
    """Points that were added."""

    def add(self, step: int, value: float) -> None:
        """Adds a point; steps only grow."""
        self.seen += 1
        if self.seen % self.stride:
            return
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) > _MAX_POINTS:
            self.steps, self.values = self.steps[1::2], self.values[1::2]
            self.stride *= 2


class LossCurve(Callback):
    """Writes loss.png into the trainer's folder when training ends, also where it was interrupted.

    Each logged metric whose name ends in "loss" is a curve over the steps of the optimizer. The points are part of
    checkpoints, so that a resumed run has the whole curve.

    Args:
        filename: Of the image.
    """

    def __init__(self, filename: str = "loss.png") -> None:
        self.filename = filename
        self._curves: dict[str, Curve] = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Takes the training's losses as often as the logger does."""
        # Every look at a loss waits for the GPU.
        every = getattr(trainer, "log_every_n_steps", 1)  # set by its connector of loggers
        if trainer.is_global_zero and every and trainer.global_step % every == 0:
            self._take(trainer, validation=False)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the validation's losses."""
        if trainer.is_global_zero and not trainer.sanity_checking and trainer.state.fn == "fit":
            self._take(trainer, validation=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws."""
        self._draw(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Draws what there is."""
        self._draw(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Returns the points as plain values."""
        return {name: asdict(curve) for name, curve in self._curves.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over points that `state_dict` returned."""
        self._curves = {name: Curve(**points) for name, points in state_dict.items()}

    def _take(self, trainer: Trainer, *, validation: bool) -> None:
        for name, value in trainer.callback_metrics.items():
            if name.endswith("loss") and name.startswith("val") == validation:
                curve = self._curves.setdefault(name, Curve())
                if not curve.steps or curve.steps[-1] < trainer.global_step:
                    curve.add(trainer.global_step, float(value))

    def _draw(self, trainer: Trainer) -> None:
        if trainer.is_global_zero and any(curve.steps for curve in self._curves.values()):
            folder = Path(trainer.default_root_dir)
            folder.mkdir(parents=True, exist_ok=True)
            draw_curves(self._curves, folder / self.filename)


def draw_curves(curves: Mapping[str, Curve], path: Path) -> None:
    """Writes an image of curves over the steps, those of a validation with a mark at each point.

    Args:
        curves: By the name of what they show.
        path: The PNG file.
    """
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss")
    for name, curve in sorted(curves.items()):
        if curve.steps:
            few = name.startswith("val")
            axes.plot(curve.steps, curve.values, label=name, marker="o" if few else None, linewidth=2 if few else 1)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)


class RunCheckpoint(ModelCheckpoint):
    """Lightning's ModelCheckpoint, which with `save_on_exception` also saves where a run is interrupted.

    Saving takes all ranks. With several of them it happens on Ctrl-C and SIGTERM, which reach all; where one rank alone
    fails, it would wait for the others in vain. A run that fails before its training began saves nothing: where it was
    to continue, only a part of the checkpoint is in place, and what it saved could replace the whole one.
    """

    _began = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes that there is something to save."""
        super().on_train_start(trainer, pl_module)
        self._began = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Saves, if training began and all ranks do."""
        shared = isinstance(exception, KeyboardInterrupt | SIGTERMException)
        if self._began and (trainer.world_size == 1 or shared):
            super().on_exception(trainer, pl_module, exception)
