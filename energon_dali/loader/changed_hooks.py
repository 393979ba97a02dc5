"""Continues a state with other hooks: fits its levels to the stages of today's hooks, and says what changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from energon_dali.errors import StateError

if TYPE_CHECKING:
    from energon_dali.datasets.stream import State

ENVIRONMENT_VARIABLE = "ENERGON_DALI_ALLOW_CHANGED_HOOKS"
"""1 allows other hooks where a program, not its user, restores the state."""

_FUNCTIONS = frozenset({"map_fn", "batcher", "packer", "filter_fn", "iter_map_fn"})
"""Entries of configs that describe a function of the user."""
_NAMES = frozenset({*_FUNCTIONS, "stage"})


def is_of_hooks(path: str) -> bool:
    """Returns whether an entry of a config describes a hook.

    Args:
        path: Names of entries, as in "inner.map_fn.hooks.encode_sample".
    """
    return not _NAMES.isdisjoint(path.replace("[", ".").split("."))


def align_stages(saved: Any, now: Any) -> tuple[Any, list[str]]:
    """Returns (a saved config with the stages that today's config has, what was added and removed).

    Args:
        saved: Config of the dataset that a state is of.
        now: Config of the dataset that is to continue.
    """
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        pairs = [align_stages(old, new) for old, new in zip(saved, now, strict=True)]
        return [config for config, _ in pairs], [text for _, texts in pairs for text in texts]
    if not (isinstance(saved, dict) and isinstance(now, dict)):
        return saved, []
    if _is_extra(saved, now):
        aligned, changes = align_stages(saved["inner"], now)
        return aligned, [f"{_title(saved)} is gone", *changes]
    if _is_extra(now, saved):
        aligned, changes = align_stages(saved, now["inner"])
        return {**now, "inner": aligned}, [f"{_title(now)} is new", *changes]
    if "inner" not in saved or "inner" not in now:
        return saved, []
    aligned, changes = align_stages(saved["inner"], now["inner"])
    return {**saved, "inner": aligned}, changes


def align_state(state: State, saved: Any, now: Any, movable: Collection[str]) -> State:
    """Returns the state of a stream with a level for each stage of today's config.

    A hook that is new counts its samples from 0.

    Args:
        state: Of a stream of the saved dataset.
        saved: Its config.
        now: Today's config.
        movable: Names of the datasets whose states hold no elements that hooks below made.

    Raises:
        StateError: A buffer holds samples that went through another series of hooks, or a generator hook that is gone
            was in the middle of its outputs.
    """
    if not isinstance(state, dict) or not isinstance(saved, dict) or not isinstance(now, dict):
        return state
    if state.keys() == {"given", "inner"}:  # the count of a pipeline, which configs do not show
        return _with_entry(state, "inner", align_state(state["inner"], saved, now, movable))
    if _is_extra(saved, now):
        if state.get("offset"):  # the state below is that before the hook's input
            raise StateError(
                f"The state was saved between two outputs of {_title(saved)}, a generator function, and this hook is "
                "gone. Keep the hook, which may be another function now, or restore with the encoder that saved it."
            )
        return align_state(state.get("inner", {}), saved["inner"], now, movable)
    if _is_extra(now, saved):
        return {"index": 0, "inner": align_state(state, saved, now["inner"], movable)}
    name = "members" if isinstance(saved.get("inner"), list) else "inner"
    aligned: Any
    if name == "members":
        aligned = _aligned_members(state.get(name), saved["inner"], now.get("inner"), movable)
    else:
        aligned = align_state(state.get(name, {}), saved.get("inner"), now.get("inner"), movable)
    if name not in state or aligned is state[name]:
        return state
    if str(saved.get("type")) not in movable:
        raise StateError(
            f"{saved.get('type')} holds samples that went through another series of hooks, so the state cannot go on "
            "with hooks that were added or removed below it. Restore it with the task encoder that saved it."
        )
    return {**state, name: aligned}


def _aligned_members(states: Any, saved: list[Any], now: Any, movable: Collection[str]) -> Any:
    if not isinstance(states, list) or not isinstance(now, list) or not len(states) == len(saved) == len(now):
        return states
    aligned = [align_state(*member, movable) for member in zip(states, saved, now, strict=True)]
    same = all(one is other for one, other in zip(aligned, states, strict=True))
    return states if same else aligned


def _with_entry(state: State, name: str, value: Any) -> State:
    return state if value is state[name] else {**state, name: value}


def _is_extra(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether a config begins with the stage of a hook that the other config lacks."""
    return _is_stage(config) and all(stage["stage"] != config["stage"] for stage in _stages(other))


def _stages(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the stages of hooks in a config, from the outside in, down to the first mixture."""
    while isinstance(config, dict):
        if _is_stage(config):
            yield config
        config = config.get("inner")


def _is_stage(config: Mapping[str, Any]) -> bool:
    """Returns whether a config is of a stage that a task encoder adds for a hook."""
    function = config.get("map_fn")
    return (
        config.get("type") == "MapDataset"
        and isinstance(function, dict)
        and "hooks" in function
        and isinstance(config.get("stage"), str)
        and "inner" in config
    )


def _title(stage: Mapping[str, Any]) -> str:
    """Returns the name of a hook, with the function that it calls, for messages."""
    hooks = stage["map_fn"]["hooks"]
    names = hooks.values() if isinstance(hooks, dict) else hooks if isinstance(hooks, list) else [hooks]
    return f"{stage['stage']} ({', '.join(map(str, names))})"
