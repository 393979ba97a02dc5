"""The loss of a run over its steps: read from a CSV file or TensorBoard's event files, and drawn as a chart."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_dali.calls import import_extra, nearest_names
from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.documents.content import excerpt, excerpt_names

MAX_LOSS_BYTES = 1 << 30
"""Largest CSV file."""
MAX_POINTS = 20_000_000
"""Most steps of a loss."""
COLUMNS_OF_CHART = 240
_STEP_NAMES = ("step", "global_step", "trainer/global_step", "iteration", "iter", "global step")
_LOSS_NAMES = ("loss", "train_loss", "train/loss", "lm loss", "lm_loss", "training_loss")
_EVENTS = "events.out.tfevents"


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of each step that was logged."""

    name: str
    """Name of the column or tag."""
    origin: str
    """Path that it was read from."""
    steps: Int64Array
    """int64[n]: ascending, all different."""
    values: npt.NDArray[np.float64]
    """float64[n]: NaN where it was not a number."""

    def at(self, step: int) -> float | None:
        """Returns the loss of a step; None if it was not logged, NaN if it was not a number."""
        at = int(np.searchsorted(self.steps, step))
        return float(self.values[at]) if at < len(self.steps) and self.steps[at] == step else None

    def columns(self, first: int, last: int, most: int = COLUMNS_OF_CHART) -> list[ChartColumn]:
        """Returns the columns of a chart.

        Args:
            first: First step of the chart.
            last: Last step of it.
            most: Most columns.
        """
        start, stop = np.searchsorted(self.steps, [first, last + 1]).tolist()
        if start == stop:
            return []
        width = max(1, -(-(last - first + 1) // most))
        groups = (self.steps[start:stop] - first) // width
        borders = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
        found = []
        for low, high in zip(borders, [*borders[1:], stop - start], strict=True):
            steps, values = self.steps[start + low : start + high], self.values[start + low : start + high]
            finite = np.isfinite(values)
            # What stands out is what people look for: not a number, or else the highest.
            top = int(np.argmin(finite)) if not finite.all() else int(np.argmax(values))
            known = values[finite]
            found.append(
                ChartColumn(
                    first=int(steps[0]),
                    last=int(steps[-1]),
                    step=int(steps[top]),
                    value=float(values[top]),
                    mean=float(known.mean()) if len(known) else math.nan,
                    low=float(known.min()) if len(known) else math.nan,
                    high=float(known.max()) if len(known) else math.nan,
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """Neighbouring steps in a chart."""

    first: int
    """The first of them that was logged."""
    last: int
    """The last one."""
    step: int
    """The one that the column leads to: where the loss is not a number, or else the highest."""
    value: float
    """Its loss."""
    mean: float
    """Mean of the losses that are numbers; NaN if none is."""
    low: float
    """The least of them."""
    high: float
    """The greatest of them."""


@dataclass(frozen=True, slots=True)
class LossChart:
    """A loss as coordinates, from 0 to 1."""

    columns: list[ChartColumn]
    """The columns."""
    places: list[tuple[float, float, float, float, float]]
    """(left, right, mean, low, high) of each, from the left and from the bottom; NaN where none is known."""
    least: float
    """Loss at the bottom."""
    most: float
    """Loss at the top."""

    @property
    def lines(self) -> Iterator[list[tuple[float, float]]]:
        """Yields the points of each unbroken line of means."""
        line: list[tuple[float, float]] = []
        for left, right, mean, _, _ in self.places:
            if math.isfinite(mean):
                line.append(((left + right) / 2, mean))
            elif line:
                yield line
                line = []
        if line:
            yield line


def chart_of(loss: Loss, first: int, last: int) -> LossChart:
    """Returns the chart of a loss.

    Args:
        loss: The loss.
        first: First step of the chart.
        last: Last step of it.
    """
    columns = loss.columns(first, last)
    known = [value for column in columns for value in (column.low, column.high) if math.isfinite(value)]
    least, most = min(known, default=0.0), max(known, default=1.0)
    span = (most - least) or 1.0
    total = last - first + 1
    width = max(1, -(-total // COLUMNS_OF_CHART))
    places = []
    for column in columns:
        left = (column.first - first) // width * width / total
        heights = [(value - least) / span if most > least else 0.5 for value in (column.mean, column.low, column.high)]
        heights = [
            height if math.isfinite(value) else math.nan
            for height, value in zip(heights, (column.mean, column.low, column.high), strict=True)
        ]
        places.append((left, min(1.0, left + width / total), *heights))
    return LossChart(columns, places, least, most)  # type: ignore[arg-type]


def read_loss(path: str, name: str = "") -> Loss:
    """Returns a loss.

    Args:
        path: A CSV file, an event file of TensorBoard, or a folder of event files.
        name: Column or tag; "" takes the one that is called loss, or the only one whose name has this word.

    Raises:
        ConfigError: There is no such file, column or tag, or TensorBoard is not installed.
        DatasetFormatError: A file is too large, or holds no steps.
        StorageError: A file cannot be read.
    """
    local = Path(path).expanduser()
    if not local.exists():
        raise ConfigError(f"--loss {path} does not exist. Give a CSV file, or a file or folder of TensorBoard.")
    if not local.is_dir() and not local.is_file():
        raise ConfigError(f"--loss {path} is a pipe, a socket or a device. Give a regular file, or a folder.")
    loss = _of_events(local, name) if local.is_dir() or _EVENTS in local.name else _of_csv(local, name)
    if not len(loss.steps):
        raise DatasetFormatError(f"{path} holds no step with a {loss.name}.")
    return loss


def _of_csv(path: Path, name: str) -> Loss:
    steps: dict[int, float] = {}
    try:
        if os.path.getsize(path) > MAX_LOSS_BYTES:
            raise DatasetFormatError(f"{path} has more than {MAX_LOSS_BYTES >> 30} GiB: give a shorter log.")
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.reader(file)
            header = [text.strip() for text in next(rows, [])]
            step_at = _find(header, _STEP_NAMES, "", str(path), "column of steps", allow_part=False)
            loss_at = _find(header, _LOSS_NAMES, name, str(path), "column")
            for row in rows:
                if len(row) <= max(step_at, loss_at) or not row[loss_at].strip():
                    continue  # trackers leave cells empty where another number was logged
                step = _number(row[step_at])
                if step.is_integer():
                    steps[int(step)] = _number(row[loss_at])
                if len(steps) > MAX_POINTS:
                    raise DatasetFormatError(f"{path} has more than {MAX_POINTS:,} steps: give a shorter log.")
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.") from error
    except csv.Error as error:
        raise DatasetFormatError(f"{path} is not CSV: {error}.") from error
    return _loss(header[loss_at], path, steps)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _find(
    names: Sequence[str], usual: Sequence[str], wanted: str, path: str, what: str, *, allow_part: bool = True
) -> int:
    """Returns the number of the column or tag that is wanted, or has a usual name.

    Raises:
        ConfigError: There is none, or several that may be meant.
    """
    if wanted:
        if wanted in names:
            return list(names).index(wanted)
        near = nearest_names(wanted, names)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else f" It has {excerpt_names(list(names))}."
        raise ConfigError(f"{path} has no {what} {wanted!r}.{hint}")
    lower = [name.lower() for name in names]
    for one in usual:
        if one in lower:
            return lower.index(one)
    found = [number for number, name in enumerate(lower) if usual[0] in name] if allow_part else []
    if len(found) == 1:
        return found[0]
    several = (
        f"several that may be meant: {excerpt_names([names[number] for number in found])}"
        if found
        else (f"none called {usual[0]}, and has {excerpt_names(list(names)) or 'none at all'}")
    )
    advice = "Name one with --loss-name" if allow_part else "Name it in the first line, and put commas between columns"
    raise ConfigError(f"Of {path}, no {what} can be taken: it has {several}. {advice}.")


def _of_events(path: Path, name: str) -> Loss:
    events = import_extra(
        "tensorboard.backend.event_processing.event_accumulator", "Reading files of TensorBoard", "tensorboard"
    )
    accumulator = events.EventAccumulator(str(path), {events.SCALARS: 0, events.TENSORS: 0})
    try:
        accumulator.Reload()
        tags = sorted(accumulator.Tags()["scalars"])
        tag = tags[_find(tags, _LOSS_NAMES, name, str(path), "tag")]
        found = accumulator.Scalars(tag)
    except (ConfigError, StorageError):
        raise
    except Exception as error:  # a damaged file raises anything
        raise DatasetFormatError(f"{path} cannot be read as files of TensorBoard: {excerpt(str(error))}.") from error
    return _loss(tag, path, {int(event.step): float(event.value) for event in found})


def _loss(name: str, path: Path, found: dict[int, float]) -> Loss:
    kept = sorted(step for step in found if 0 <= step < 1 << 53)
    values = np.array([found[step] for step in kept], np.float64)
    return Loss(name, str(path), np.array(kept, np.int64), values)
