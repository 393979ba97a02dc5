"""A callback that draws the losses of a run as a PNG file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer

_MAX_POINTS = 1000
"""Per curve: of more, every second one is dropped, so that checkpoints stay small."""


class Curve:
    """Points of a curve; of very many, evenly spread ones.

    Args:
        state: What `state_dict` returned; None begins again.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        known = state or {"steps": [], "values": [], "stride": 1, "seen": 0}
        self.steps: list[int] = list(known["steps"])
        self.values: list[float] = list(known["values"])
        self._stride: int = known["stride"]
        self._seen: int = known["seen"]

    def state_dict(self) -> dict[str, Any]:
        """Returns what makes the same curve again, as plain values."""
        return {"steps": list(self.steps), "values": list(self.values), "stride": self._stride, "seen": self._seen}

    def add(self, step: int, value: float) -> None:
        """Adds a point; steps only grow."""
        self._seen += 1
        if self._seen % self._stride:
            return
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) > _MAX_POINTS:
            self.steps, self.values = self.steps[1::2], self.values[1::2]
            self._stride *= 2


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
        return {name: curve.state_dict() for name, curve in self._curves.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over points that `state_dict` returned."""
        self._curves = {name: Curve(points) for name, points in state_dict.items()}

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
