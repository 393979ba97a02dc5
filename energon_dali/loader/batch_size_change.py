"""Continues a state with batches of another size, where the order of samples does not depend on it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.errors import StateError

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State

_EPOCHS = ("EpochizeDataset", "LimitDataset")
_BATCHES = ("BatchDataset", "MixBatchDataset")


def with_batch_size(
    state: State, saved: dict[str, Any], now: dict[str, Any], dataset: SavableDataset[Any]
) -> tuple[State, dict[str, Any]]:
    """Returns (state, its config), counted in batches of this loader's size; both as they are where nothing changed.

    A batch is a run of samples of a stream, so the samples are the same whatever its size, as long as the batches are
    what the loader delivers. What counts batches in the state is multiplied by the old size and divided by the new.

    Args:
        state: Of a loader.
        saved: Its config.
        now: Config of the dataset that is to continue.
        dataset: That dataset.

    Raises:
        StateError: The saved position is not between batches of the new size, or a hook is a generator function, of
            whose outputs nobody knows how many a smaller batch has.
    """
    depth = _depth_of_batches(saved, now)
    if depth is None:
        return state, saved
    change = _Change(*(_batches(config, depth)["batch_size"] for config in (saved, now)))
    generator = _generator_hook(dataset)
    if generator:
        raise StateError(
            f"The state was saved with batch_size={change.old}, and this loader has batch_size={change.new}. "
            f"{generator} is a generator function, so the number of its batches depends on their size: restore with "
            f"batch_size={change.old}."
        )
    hooks = depth - (saved["type"] in _EPOCHS)
    streams = {
        number: {**stream, "count": change.of(stream["count"]), "state": _scaled(stream["state"], hooks, change)}
        for number, stream in state["streams"].items()
    }
    given = {rank: change.of(count) for rank, count in state["given"].items()}
    return {**state, "given": given, "streams": streams}, _resized(saved, depth, change.new)


class _Change:
    """From one batch size to another."""

    def __init__(self, old: int, new: int) -> None:
        self.old = old
        self.new = new

    def of(self, count: Any) -> int:
        """Returns how many batches of the new size a number of batches is.

        Raises:
            StateError: It is no whole number of them.
        """
        if not isinstance(count, int):
            raise StateError(f"The state is damaged: {count!r} stands where batches are counted. Restore another one.")
        batches, left = divmod(count * self.old, self.new)
        if left:
            raise StateError(
                f"The state was saved after {count} batches of {self.old} samples in a stream, which is not a whole "
                f"number of batches of {self.new}. Restore with a batch_size that divides {self.old}, or save after "
                "another number of batches."
            )
        return batches


def _depth_of_batches(saved: Any, now: Any) -> int | None:
    """Returns how many datasets are around the batches, where these are delivered and differ in their size alone."""
    depth = 0
    while isinstance(saved, dict) and isinstance(now, dict) and saved.get("type") == now.get("type"):
        kind = saved.get("type")
        if kind in _BATCHES:
            sizes = [config.get("batch_size") for config in (saved, now)]
            usable = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
            return depth if usable and sizes[0] != sizes[1] else None
        if kind != "MapDataset" and not (kind in _EPOCHS and not depth):
            return None
        saved, now, depth = saved.get("inner"), now.get("inner"), depth + 1
    return None


def _batches(config: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        config = config["inner"]
    return config


def _resized(config: dict[str, Any], depth: int, size: int) -> dict[str, Any]:
    """Returns a config with another batch size."""
    return {**config, "inner": _resized(config["inner"], depth - 1, size)} if depth else {**config, "batch_size": size}


def _generator_hook(dataset: SavableDataset[Any]) -> str:
    """Returns the name of a hook that gives several batches of one, or several of one list; "" if there is none."""
    while not isinstance(dataset, BatchDataset):
        if isinstance(dataset, MapDataset) and inspect.isgeneratorfunction(dataset.map_fn):
            return dataset.stage
        (dataset,) = dataset.children
    return "batch" if inspect.isgeneratorfunction(dataset.hook) else ""


def _scaled(state: Any, hooks: int, change: _Change) -> Any:
    """Returns the state of a stream with other counts of batches.

    Args:
        state: Of a stream, also in the form of earlier releases.
        hooks: How many hooks are around the batches.
        change: The sizes.
    """
    if not isinstance(state, dict) or "inner" not in state:
        return state
    if "index" not in state:  # the count of a pipeline, or a stage of earlier releases
        given = {"given": change.of(state["given"])} if "given" in state else {}
        return {**state, **given, "inner": _scaled(state["inner"], hooks, change)}
    inner = _scaled(state["inner"], hooks - 1, change) if hooks else state["inner"]
    return {**state, "index": change.of(state["index"]), "inner": inner}
