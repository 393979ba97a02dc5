"""Reads debug logs: which sample each step of each rank delivered, and how well the samples are mixed.

Logs of this package and of Megatron Energon are read, so the orders of the two can be compared.
"""

from __future__ import annotations

import colorsys
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from energon_dali.datasets.debug_log import mode_of
from energon_dali.errors import ConfigError, StorageError

_COLOURS = 24
_ENERGON_LOADERS = ("SavableDataLoader.yield", "BasicDataLoader.yield")
_ENERGON_STARTS = ("SavableLoader.__init__", "BasicDataLoader.__init__")
_ENERGON_READS = "WebdatasetSampleLoaderDataset._slices_iter.yield"


@dataclass(frozen=True)
class Deliveries:
    """Which sample was delivered when. The three arrays have one entry per delivered sample."""

    steps: NDArray[np.int64]
    """Number of the step, from 0."""
    ranks: NDArray[np.int64]
    """Rank that the sample was delivered to; the number of the file where samples are in the order of loading."""
    samples: NDArray[np.int64]
    """Number of the sample, in the order in which samples appear first."""
    unreadable_lines: int
    """Lines that are not JSON, as when a process died while it wrote."""

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return int(self.steps.max()) + 1 if len(self.steps) else 0

    @property
    def num_samples(self) -> int:
        """Number of different samples."""
        return int(self.samples.max()) + 1 if len(self.samples) else 0

    def heatmap(self, height_px: int, width_px: int, gain: float, *, colours: bool) -> Image.Image:
        """Returns an image with a step per column and a sample per row, scaled down to at most the given size.

        Args:
            height_px: Most rows.
            width_px: Most columns.
            gain: Factor of the brightness: 1 gives the brightest point its full colour.
            colours: One colour per rank, instead of white.
        """
        per_row, per_column = (
            -(-number // size) for number, size in ((self.num_samples, height_px), (self.num_steps, width_px))
        )
        rows, columns = self.samples // per_row, self.steps // per_column
        heat = np.zeros((int(rows.max()) + 1, int(columns.max()) + 1, 3), np.float64)
        for rank in np.unique(self.ranks):
            mine = self.ranks == rank
            flat = np.bincount(rows[mine] * heat.shape[1] + columns[mine], minlength=heat.shape[0] * heat.shape[1])
            heat += flat.reshape(*heat.shape[:2], 1) * np.array(_colour(int(rank)) if colours else (1.0, 1.0, 1.0))
        return Image.fromarray((heat * (255 * gain / heat.max())).clip(0, 255).astype(np.uint8))


def _colour(rank: int) -> tuple[float, float, float]:
    """Returns the colour of a rank; ranks with neighbouring numbers differ clearly."""
    return colorsys.hsv_to_rgb(rank * 0.618034 % 1, 0.5 + 0.5 * (rank // _COLOURS % 2), 1)


def find_logs(paths: Iterable[Path]) -> list[Path]:
    """Returns the log files among the paths and in the folders among them, oldest first.

    Raises:
        ConfigError: There is none.
        StorageError: A path does not exist.
    """
    given = list(paths)
    try:
        found = [file for path in given for file in (path.glob("*.jsonl") if path.is_dir() else [path])]
        # A job that was restarted wrote the later file of a rank.
        found = sorted(dict.fromkeys(found), key=lambda file: (file.stat().st_mtime_ns, str(file)))
    except OSError as error:
        raise StorageError(f"A debug log cannot be read: {error}.") from error
    if not found:
        raise ConfigError(
            f"There is no debug log in {', '.join(map(str, given)) or 'an empty list of paths'}. Give files, or "
            "folders of .jsonl files, as WorkerConfig(worker_log_level=1, worker_debug_path=...) names them."
        )
    return found


class DebugLogs:
    """The debug logs of a job.

    Args:
        files: All of them, the later ones of a rank last.

    Raises:
        StorageError: A file cannot be read.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = list(files)
        self._unreadable = 0
        self._has_delivered = False
        self._place = (0, 0)
        """(number of the file, byte at which the line begins) of the entry that is looked at."""
        self._modes: dict[int, str | None] = {}
        self._steps: dict[int, int] = {}
        for _, entry in self._entries():
            if entry.get("t") in _ENERGON_STARTS:
                self._modes[entry["id"]] = mode_of(entry.get("config"))
            elif entry.get("t") in _ENERGON_LOADERS:
                self._steps[entry["id"]] = max(self._steps.get(entry["id"], 0), entry["global_idx"] + 1)
            elif "keys" in entry and "stream" in entry:
                self._has_delivered |= _is_delivered(entry)

    def loaders(self, modes: Iterable[str]) -> dict[int, str]:
        """Returns Energon's loaders of the given modes by their id, described in words; logs of this package name none.

        Args:
            modes: "train", "val".
        """
        wanted = set(modes)
        return {
            loader: f"{self._modes.get(loader) or 'mode unknown'}, {steps:,} steps"
            for loader, steps in sorted(self._steps.items())
            if (self._modes.get(loader) or "train") in wanted
        }

    def deliveries(self, modes: Iterable[str], *, loader: int | None = None, skip: int = 0) -> Deliveries:
        """Returns what was delivered.

        Args:
            modes: "train", "val". Lines that do not name their mode always count.
            loader: Id of one of Energon's loaders; None reads lines of this package alone.
            skip: Steps of each rank to leave out at the beginning.
        """
        return self._collect(self._delivered(set(modes), loader), skip)

    def loading_order(self, *, skip: int = 0) -> Deliveries:
        """Returns the order in which Energon's workers read samples, before shuffle buffers and batches.

        Args:
            skip: Samples of each file to leave out at the beginning.

        Raises:
            ConfigError: The logs do not hold it.
        """
        found = self._collect(self._read(), skip)
        if not len(found.steps):
            raise ConfigError(
                "These logs do not hold the order of loading: only Energon's workers write it. energon_dali logs what "
                "was delivered. Leave --force-loading-order out."
            )
        return found

    def _delivered(self, modes: set[str], loader: int | None) -> Iterator[tuple[int, int, Any]]:
        steps: dict[int, int] = {}
        for _, entry in self._entries():
            if loader is not None:
                if entry.get("t") in _ENERGON_LOADERS and entry["id"] == loader:
                    yield entry["global_idx"], entry["r"], entry.get("keys")
                continue
            if "keys" not in entry or "stream" not in entry or _is_delivered(entry) != self._has_delivered:
                continue
            if entry.get("mode") is None or entry["mode"] in modes:
                rank = entry["rank"]
                yield steps.setdefault(rank, 0), rank, entry["keys"]
                steps[rank] += 1

    def places(self, modes: Iterable[str], *, loader: int | None = None) -> Iterator[tuple[int, int, int, int]]:
        """Yields (step, rank, number of the file, byte at which the line begins) of each line that says what was
        delivered; see `deliveries`.

        Args:
            modes: "train", "val". Lines that do not name their mode always count.
            loader: Id of one of Energon's loaders; None reads lines of this package alone.
        """
        for step, rank, _ in self._delivered(set(modes), loader):
            yield step, rank, *self._place

    def keys_at(self, file: int, offset: int) -> list[str]:
        """Returns the keys of the samples that a line names.

        Args:
            file: Number of the file.
            offset: Byte at which the line begins.

        Raises:
            StorageError: It cannot be read, or the file changed.
        """
        path = self._files[file]
        try:
            with path.open("rb") as opened:
                opened.seek(offset)
                entry = self._parse(opened.readline().decode("utf-8", "replace"))
        except OSError as error:
            raise StorageError(f"The debug log {path} cannot be read: {error}.") from error
        if entry is None:
            raise StorageError(f"The debug log {path} changed since it was opened. Open it again.")
        return list(_flat(entry.get("keys")))

    def _read(self) -> Iterator[tuple[int, int, Any]]:
        for number, entry in self._entries():
            if entry.get("t") == _ENERGON_READS:
                yield entry["count"], number, entry["key"]

    def _collect(self, entries: Iterable[tuple[int, int, Any]], skip: int) -> Deliveries:
        numbers: dict[str, int] = {}
        rows = array("q")
        for step, rank, keys in entries:
            if step >= skip:
                for key in _flat(keys):
                    rows.extend((step - skip, rank, numbers.setdefault(key, len(numbers))))
        steps, ranks, samples = np.array(rows, np.int64).reshape(-1, 3).T
        order = np.lexsort((ranks, steps))
        _, first, inverse = np.unique(samples[order], return_index=True, return_inverse=True)
        position = np.empty(len(first), np.int64)
        position[np.argsort(first)] = np.arange(len(first))
        return Deliveries(steps[order], ranks[order], position[inverse.reshape(-1)], self._unreadable)

    def _entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (number of the file, entry) of each line that holds an entry."""
        self._unreadable = 0
        for number, path in enumerate(self._files):
            try:
                with path.open("rb") as file:
                    offset = 0
                    for line in file:
                        self._place = (number, offset)
                        offset += len(line)
                        entry = self._parse(line.decode("utf-8", "replace"))
                        if entry is not None:
                            yield number, entry
            except OSError as error:
                raise StorageError(f"The debug log {path} cannot be read: {error}.") from error

    def _parse(self, line: str) -> dict[str, Any] | None:
        try:
            entry = json.loads(line)
        except ValueError:
            self._unreadable += bool(line.strip())
            return None
        if isinstance(entry, dict) and _is_sound(entry):
            return entry
        self._unreadable += 1
        return None


def _is_delivered(entry: Mapping[str, Any]) -> bool:
    """Returns whether the loader wrote this line of ours, and not a LogSampleDataset."""
    return bool(entry.get("event", "logged" if "mode" in entry else "delivered") == "delivered")


_NUMBERS = {
    **dict.fromkeys(_ENERGON_STARTS, ("id",)),
    **dict.fromkeys(_ENERGON_LOADERS, ("id", "r", "global_idx")),
    _ENERGON_READS: ("count",),
}
"""What must be a whole number, by the type of a line of Energon."""


def _is_sound(entry: dict[str, Any]) -> bool:
    kind = entry.get("t")
    names = _NUMBERS.get(kind, ()) if isinstance(kind, str) else ("rank",) if "stream" in entry else ()
    if kind == _ENERGON_READS and not isinstance(entry.get("key"), str):
        return False
    return all(type(entry.get(name)) is int and 0 <= entry[name] < 1 << 62 for name in names)


def _flat(keys: Any) -> Iterator[str]:
    """Yields the keys of an element: a text, a list of them (a pack in a batch nests lists), or None."""
    if isinstance(keys, (list, tuple)):
        for key in keys:
            yield from _flat(key)
    elif keys is not None:
        yield str(keys)
