"""How fast a run is, and whether its data keeps up: in the progress bar and in the logger."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

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
            raise ConfigError(f"every_n_batches={every_n_batches!r} cannot be: give a whole number of at least 1.")
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
            self._latest = self._window.figures(now, blocked, trainer.world_size)
            self._window = _Window(now, blocked)
        if self._latest:
            pl_module.log_dict(self._latest, prog_bar=True, on_step=True, on_epoch=False, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause_began = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._window is not None and self._pause_began is not None:
            self._window.began += time.perf_counter() - self._pause_began
        self._pause_began = None


class _Window:
    """What happened since the figures were last renewed."""

    def __init__(self, began: float, blocked: float) -> None:
        self.began = began
        self.blocked = blocked
        self.samples = 0
        self.batches = 0

    def figures(self, now: float, blocked: float, world_size: int) -> dict[str, float]:
        seconds = max(now - self.began, 1e-9)
        return {
            SPEED: self.samples * world_size / seconds,
            BLOCKED: min(1.0, max(0.0, blocked - self.blocked) / seconds),
        }


def count_samples(batch: Any) -> int:
    """Returns the number of samples in a batch: of its keys, or of the rows of its first tensor; else 1."""
    keys = batch.get("__key__") if isinstance(batch, Mapping) else getattr(batch, "__key__", None)
    if isinstance(keys, (list, tuple)):
        return len(keys)
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else (batch,)
    for value in values:
        shape = getattr(value, "shape", None)
        if shape:
            return int(shape[0])
    return 1
