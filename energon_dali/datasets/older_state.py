"""States as earlier releases saved them, brought into today's form."""

from __future__ import annotations

from typing import Any

from energon_dali.datasets.batch_count import with_count


def in_todays_form(state: Any, first: Any) -> Any:
    """Returns the state of an iterator in the form that it has today.

    Earlier releases wrote a level `{"inner": state}` for the stage where media are decoded, with None in it as long as
    nothing had come out. Where that level was depended on the decoder, so that a state fitted no other decoder. And
    they did not count what a pipeline gave.

    Args:
        state: What was saved, or a part of it; may be damaged.
        first: The state of the iterator before its first element, or the part of it at the same place: it shows which
            levels there are.
    """
    while (
        isinstance(state, dict)
        and state.keys() == {"inner"}
        and not (isinstance(first, dict) and first.keys() == {"inner"})
    ):
        state = state["inner"]
    if state is None:
        return first
    counts = isinstance(first, dict) and first.keys() == {"given", "inner"}
    if counts and isinstance(state, dict) and "given" not in state:
        state = with_count(state)
    if isinstance(state, dict) and isinstance(first, dict):
        return {name: in_todays_form(value, first[name]) if name in first else value for name, value in state.items()}
    if isinstance(state, list) and isinstance(first, list) and len(state) == len(first):
        return [in_todays_form(part, of_first) for part, of_first in zip(state, first, strict=True)]
    return state


def config_in_todays_form(config: Any) -> Any:
    """Returns the config of a dataset as today's `SavableDataset.config` gives it.

    Earlier releases named the stages that cross processes and decode, which change no order, and DALI's own reader.
    """
    if isinstance(config, list):
        return [config_in_todays_form(member) for member in config]
    if not isinstance(config, dict):
        return config
    if config.get("type") in ("DecodeDataset", "HandOverDataset") and "inner" in config:
        return config_in_todays_form(config["inner"])
    if config.get("type") == "NativeSourceDataset" and "source" in config:
        return config_in_todays_form(config["source"])
    return {name: config_in_todays_form(value) for name, value in config.items()}
