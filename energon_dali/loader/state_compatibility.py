"""Fits a saved state to the dataset of a loader: another batch size, other hooks, and what must be equal."""

from __future__ import annotations

import inspect
import json
import logging
import operator
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.base import SavableDataset, walk
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.step_entries import skipped_by_state
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.errors import StateError
from energon_dali.loader.changed_hooks import ENVIRONMENT_VARIABLE, align_stages, align_state, is_of_hooks

if TYPE_CHECKING:
    from energon_dali.datasets.source import SourceDataset
    from energon_dali.datasets.stream import State

logger = logging.getLogger("energon_dali.loader")

_EPOCHS = ("EpochizeDataset", "LimitDataset")
_BATCHES = ("BatchDataset", "MixBatchDataset")


def adapt_state(
    state: State, saved: dict[str, Any], dataset: SavableDataset[Any], *, allow_changed_hooks: bool = False
) -> State:
    """Returns a state that is counted in batches of the dataset's size, and has a level for each of its hooks.

    Args:
        state: Of a loader.
        saved: Its config.
        dataset: The dataset that is to continue.
        allow_changed_hooks: Continue with other hooks, and log a warning that says which.

    Raises:
        StateError: The state is of another dataset, or of other hooks that are not allowed.
    """
    now = _as_read(dataset.config())
    with_stages, stages = align_stages(saved, now)
    if stages and allow_changed_hooks:
        movable = {type(one).__name__ for one in walk(dataset) if not one.holds_elements}
        state = _with_stages(state, saved, now, movable)
    state, with_stages = _with_batch_size(state, with_stages, now, dataset)
    differences = _differences(with_stages, now, "")
    of_plan = [text for path, text in differences if not is_of_hooks(path)]
    if of_plan:
        raise StateError(
            f"The state is of another dataset. What differs: {_listed(of_plan)}. Build the loader as it was built when "
            "the state was saved."
        )
    of_hooks = stages + [text for _, text in differences]
    if of_hooks and not allow_changed_hooks:
        raise StateError(
            f"The state was saved with other hooks. What differs: {_listed(of_hooks)}. Restore it with the task "
            "encoder that saved it. Or continue with the hooks of this loader, in the same order of samples: "
            "restore_state_rank(state, allow_changed_hooks=True), or the environment variable "
            f"{ENVIRONMENT_VARIABLE}=1 where a trainer restores the state."
        )
    if of_hooks:  # else only the compressed text differs: it depends on the version of zlib
        logger.warning(
            "The state was saved with other hooks, and continues with those of this loader: %s", _listed(of_hooks)
        )
    return state


def check_same_source(saved: dict[str, Any], source: SourceDataset) -> None:
    """Checks that a state with global batches is of a source, whatever the stages after it do.

    Args:
        saved: The config of the state.
        source: The source.

    Raises:
        StateError: It is of another one.
    """
    differences = describe_differences(source_config(saved), source)
    if differences:
        raise StateError(
            f"The state is of another dataset. What differs: {differences}. Give the dataset, and the options that "
            "order its samples, of the job that saved the state."
        )


def describe_differences(saved: dict[str, Any], source: SourceDataset) -> str:
    """Returns how a source differs from the one of a state, as words; "" if it does not.

    Args:
        saved: The part of the state's config that is about what reads the samples.
        source: The source.
    """
    differences = _differences(saved, _as_read(source.config()), "")
    return _listed([text for _, text in differences]) if differences else ""


def source_config(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a state's config that describes what reads the units of global batches.

    Raises:
        StateError: There is none.
    """
    config: Any = saved
    while isinstance(config, dict) and "global_batches" not in config:
        config = config.get("inner")
    if not isinstance(config, dict):
        raise StateError("The state is damaged: its config has no global batches. Restore another one.")
    return config


def _as_read(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config as a state holds it."""
    plain: dict[str, Any] = json.loads(json.dumps(config, sort_keys=True, default=as_plain))
    return plain


def _with_stages(state: State, saved: Any, now: Any, movable: Collection[str]) -> State:
    """Returns the state of a loader with a level for each stage of today's config."""
    if saved.get("type") in _EPOCHS:  # counted outside the streams
        saved, now = saved.get("inner"), now.get("inner")
    streams = {
        number: {**stream, "state": align_state(stream["state"], saved, now, movable)}
        for number, stream in state["streams"].items()
    }
    return {**state, "streams": streams}


def _listed(differences: list[str]) -> str:
    return "; ".join(differences[:5]) + ("; ..." if len(differences) > 5 else "")


def as_plain(value: Any) -> Any:
    """Returns another library's number as an int, so that np.int64(8) and 8 are the same; anything else as text."""
    try:
        return operator.index(value)
    except TypeError:
        return str(value)


# --- another batch size --------------------------------------------------------------------------------------------


def _with_batch_size(
    state: State, saved: dict[str, Any], now: dict[str, Any], dataset: SavableDataset[Any]
) -> tuple[State, dict[str, Any]]:
    """Returns (state, its config), counted in batches of this loader's size; both unchanged if the size is the same.

    A batch is a run of samples of a stream, so the samples are the same whatever its size, as long as the loader
    delivers batches. Counts of batches in the state are multiplied by the old size and divided by the new one.

    Args:
        state: Of a loader.
        saved: Its config.
        now: Config of the dataset that is to continue.
        dataset: That dataset.

    Raises:
        StateError: The saved position is not between batches of the new size, or a hook is a generator function, so
            that the number of outputs of a smaller batch is unknown.
    """
    depth = _depth_of_batches(saved, now)
    if depth is None:
        return state, saved
    change = _Change(*(_batches(config, depth)["batch_size"] for config in (saved, now)))
    if skipped_by_state(state):
        raise StateError(
            f"The state leaves out steps that are still to come, and steps were counted with batch_size={change.old}, "
            f"while this loader has batch_size={change.new}. Restore it with batch_size={change.old}, and save after "
            "these steps to change the size."
        )
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
    """A change from one batch size to another."""

    def __init__(self, old: int, new: int) -> None:
        self.old = old
        self.new = new

    def of(self, count: Any) -> int:
        """Converts a number of batches to batches of the new size.

        Raises:
            StateError: It is not a whole number of them.
        """
        if not isinstance(count, int):
            raise StateError(f"The state is damaged: it counts batches as {count!r}. Restore another one.")
        batches, left = divmod(count * self.old, self.new)
        if left:
            raise StateError(
                f"The state was saved after {count} batches of {self.old} samples in a stream, which is not a whole "
                f"number of batches of {self.new}. Restore with a batch_size that divides {self.old}, or save after "
                "another number of batches."
            )
        return batches


def _depth_of_batches(saved: Any, now: Any) -> int | None:
    """Returns how many datasets surround the batches, if the loader delivers these and only their size differs."""
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
    """Returns the name of a hook that may yield several batches for one; "" if there is none."""
    while not isinstance(dataset, BatchDataset):
        if isinstance(dataset, MapDataset) and inspect.isgeneratorfunction(dataset.map_fn):
            return dataset.stage
        (dataset,) = dataset.children
    return "batch" if inspect.isgeneratorfunction(dataset.hook) else ""


def _scaled(state: Any, hooks: int, change: _Change) -> Any:
    """Returns the state of a stream with its counts of batches converted.

    Args:
        state: Of a stream.
        hooks: Number of hooks around the batches.
        change: The sizes.
    """
    if not isinstance(state, dict) or "inner" not in state:
        return state
    if "given" in state:  # the count of a pipeline
        return {**state, "given": change.of(state["given"]), "inner": _scaled(state["inner"], hooks, change)}
    inner = _scaled(state["inner"], hooks - 1, change) if hooks else state["inner"]
    return {**state, "index": change.of(state["index"]), "inner": inner}


# --- what differs --------------------------------------------------------------------------------------------------


def _differences(saved: Any, now: Any, path: str) -> list[tuple[str, str]]:
    """Returns (where, what) two configs differ."""
    if isinstance(saved, dict) and isinstance(now, dict) and saved.get("type") == now.get("type"):
        found = []
        for name in sorted(saved.keys() | now.keys()):
            where = f"{path}.{name}" if path else name
            found += _differences(saved.get(name), now.get(name), where)
        return found
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        return [
            difference
            for i, (old, new) in enumerate(zip(saved, now, strict=True))
            for difference in _differences(old, new, f"{path}[{i}]")
        ]
    if saved == now:
        return []
    hints = {
        "uuid": " (another dataset, or the same, prepared again)",
        "ranges": " (other samples: the split, its exclusions, the keys of a subset or a join index changed)",
        "batch_size": " (what comes next depends on it; only batches that the loader delivers may change their size)",
        "fixed_batch_size": " (which samples share a batch depends on it, and some of them wait)",
    }
    hint = hints.get(path.rpartition(".")[2], "")
    return [(path, f"{path or 'the outermost dataset'} was {_short(saved)}, is {_short(now)}{hint}")]


def _short(value: Any) -> str:
    if isinstance(value, dict) and "type" in value:
        return str(value["type"])
    if isinstance(value, list) and value and all(isinstance(member, dict) for member in value):
        return f"a list of {len(value)} datasets"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
