"""The state of a loader as plain values: what it contains, which layouts it fits, and how to merge and split it."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.step_entries import ENDS_EPOCH, SKIPPED, as_entry, cursor_entry, cursor_of, skipped_by_state
from energon_dali.datasets.stream import State
from energon_dali.errors import ConfigError, LayoutError, StateError
from energon_dali.loader.changed_hooks import ENVIRONMENT_VARIABLE
from energon_dali.loader.delivery_log import history_of, merge_logs, packed, parts_of, split_log, unpacked
from energon_dali.loader.failure_report import as_state_entry, groups_of_state, merge_groups
from energon_dali.loader.state_compatibility import adapt_state, as_plain
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.layout import MAX_STREAMS
from energon_dali.shards.documents.content import excerpt, excerpt_names
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.documents.state_entries import (
    MAX_COUNT,
    MAX_STATE_DEPTH,
    DamagedStateError,
    check_plain,
    list_of,
)
from energon_dali.worker_config import Layout

FORMAT = "energon_dali.loader"
VERSION = 1

_ENERGON_STATES = ("SavableDataLoaderState", "SavableDatasetCheckpoint", "SavableDatasetState", "FlexState")
"""Classes of Energon's states, as `energon_dali.compat` or Energon itself loads them."""

MAX_CONFIG_BYTES = 64 << 20
"""Most bytes that a state's config may unpack to: ten thousand datasets with long paths take 10 MiB."""


class LoaderIdentity:
    """What the states of a loader say of its job and its dataset, computed once: 15 ms for a thousand datasets.

    Args:
        dataset: The outermost dataset of the loader.
    """

    def __init__(self, dataset: SavableDataset[Any]) -> None:
        self._dataset = dataset
        self._batches = dataset.global_batches
        worker_config = dataset.worker_config
        self._rank, self._world_size = worker_config.rank, worker_config.world_size
        self._num_streams, self._streams = worker_config.layout.num_streams, worker_config.streams
        self._num_workers = worker_config.num_workers
        self._config = pack_config(dataset.config())
        limit = dataset.rank_limit
        self._epoch_length = 0 if limit is None else limit.length

    def make_state(self, position: State, log: Mapping[str, Any] | None = None) -> State:
        """Returns the state of a rank's loader.

        Args:
            position: The state of its RankIterator.
            log: With global batches, the entry of its `DeliveryLog`.
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "num_streams": self._num_streams,
            "world_size": self._world_size,
            "config": self._config,
            **position,
            "given": {str(self._rank): position["given"]},
            **self._of_steps(),
            **(log or {}),
        }

    def _of_steps(self) -> State:
        """Returns what a state says of the steps that the job dealt when it was saved; {} without global batches."""
        batches = self._batches
        if batches is None:
            return {}
        return {
            "micro_batches": batches.micro_batches_per_step,
            "global_batch": self._global_batch(batches),
            "balance": batches.dealt_by,
            "epoch_length": self._epoch_length,
        }

    def position(self, state: State, *, allow_changed_hooks: bool = False) -> State:
        """Returns what the RankIterator of this rank restores from a rank's or a merged state.

        Args:
            state: The state.
            allow_changed_hooks: Continue with other hooks than those of the state. ENERGON_DALI_ALLOW_CHANGED_HOOKS=1
                does the same.

        Raises:
            StateError: The state is not a loader's, or is of another dataset, or of other hooks that are not allowed.
            LayoutError: The state has other streams than this loader, or lacks some of this rank.
        """
        check_format(state)
        batches = self._batches
        if batches is None and "cursor" in state:
            raise StateError(
                "The state is of a job with global batches. Build the dataset with global_batch_size, as it was built "
                "when the state was saved."
            )
        if batches is None:
            self._check_streams(state)
        if state["config"] != self._config:
            allowed = allow_changed_hooks or os.environ.get(ENVIRONMENT_VARIABLE) == "1"
            state = adapt_state(state, unpack_config(state), self._dataset, allow_changed_hooks=allowed)
        if batches is not None:
            cursor = cursor_of(state)
            try:
                _ = batches.continued(cursor, batches.world_size, batches.workers).resolved_units
            except ConfigError as error:
                raise DamagedStateError(f"the weights in its cursor do not fit this blend. {error}") from error
            given, length = self._given(state), state.get("epoch_length", self._epoch_length)
            saved = state["micro_batches"], state["world_size"], state["global_batch"], state["balance"]
            own = batches.micro_batches_per_step, self._world_size, self._global_batch(batches), batches.dealt_by
            if saved != own:
                # Another deal: what a rank had of the step is not what it will have. The step begins again.
                given, length = (one // max(1, saved[0]) * batches.micro_batches_per_step for one in (given, length))
                cursor = batches.rebased(replace(cursor, micro_batch=0), saved[2][0])
            if length != self._epoch_length and given > self._epoch_length > 0:
                given %= self._epoch_length  # the position in the current one of the epochs, which became shorter
            ends = {ENDS_EPOCH: True} if ENDS_EPOCH in state else {}
            return {"given": given, "cursor": cursor_entry(cursor), "streams": {}, **ends}
        return {
            "given": self._given(state),
            **({SKIPPED: state[SKIPPED]} if SKIPPED in state else {}),
            "streams": {str(stream): state["streams"][str(stream)] for stream in self._streams},
        }

    @staticmethod
    def _global_batch(batches: GlobalBatchPlan) -> list[int]:
        return [batches.step_size, batches.micro_batch_size]

    def _check_streams(self, state: State) -> None:
        saved = state["num_streams"]
        divisors = [str(count) for count in range(1, saved + 1) if saved % count == 0]  # of at most MAX_STREAMS
        if saved != self._num_streams:
            raise LayoutError(
                f"The state is of a job with {saved} streams; this loader has {self._num_streams} streams, on "
                f"world_size={self._world_size} with num_workers={self._num_workers}. Pass "
                f"WorkerConfig(num_streams={saved}) with a rank x worker product that divides {saved}: "
                f"{', '.join(divisors)}."
            )
        missing = [stream for stream in self._streams if str(stream) not in state["streams"]]
        if missing:
            raise LayoutError(
                f"The state holds the streams {sorted(map(int, state['streams']))} of a job with world_size "
                f"{state['world_size']}, but rank {self._rank} of {self._world_size} runs {self._streams}. A rank's "
                "state restores onto the same rank of the same world; a global state (save_state_global, or "
                f"merge_states of all ranks) restores onto any rank x worker product of {', '.join(divisors)}."
            )

    def _given(self, state: State) -> int:
        """Returns how many elements of its epoch this rank has delivered; with another number of ranks, its share."""
        given: dict[str, int] = state["given"]
        if "cursor" in state:  # all ranks deliver equally many, and one of them may save for all
            return max(given.values(), default=0)
        if state["world_size"] == self._world_size and str(self._rank) in given:
            return given[str(self._rank)]
        return sum(given.values()) // self._world_size


def merge_states(states: Sequence[State]) -> State:
    """Merges the states of all ranks into one, which restores onto every layout that fits its streams.

    Raises:
        StateError: They are not the states of one job at one time.
    """
    if not states:
        raise StateError("There are no states to merge: give the state of every rank.")
    for state in states:
        check_format(state)
    first = states[0]
    for name in ("num_streams", "world_size", "config", "cursor", ENDS_EPOCH, "global_batch", "balance"):
        if any(state.get(name) != first.get(name) for state in states):
            raise StateError(f"These states are not of one job: their {name!r} differ. Give the states of one save.")
    skipped = as_entry(one for state in states for one in skipped_by_state(state))
    merged: State = {**first, "given": {}, **skipped, "streams": {}}
    for state in states:
        twice = sorted(merged["streams"].keys() & state["streams"].keys())
        if twice:
            raise StateError(f"Streams {twice} are in more than one of the states. Give the state of each rank once.")
        merged["given"].update(state["given"])
        merged["streams"].update(state["streams"])
    needed = set() if "cursor" in first else set(map(str, range(first["num_streams"])))
    missing = sorted(needed - merged["streams"].keys(), key=int)
    if missing:
        raise StateError(
            f"Streams {missing[:20]}{' ...' if len(missing) > 20 else ''} are in none of the states. Give the states "
            f"of all {first['world_size']} ranks."
        )
    merged["streams"] = {number: merged["streams"][number] for number in sorted(merged["streams"], key=int)}
    return {**merged, **merge_logs(states), **as_state_entry(merge_groups(map(groups_of_state, states)))}


def split_state(state: State, world_size: int) -> list[State]:
    """Splits a state for the ranks of a job of another size; each restores its own with `restore_state_rank`.

    Args:
        state: The state of all ranks, as `merge_states` returns it.
        world_size: Number of ranks; it must divide the number of streams.

    Raises:
        StateError: The state is not a loader's, or lacks streams.
        LayoutError: The streams cannot be divided among the ranks.
    """
    whole = merge_states([state])
    layout = Layout(world_size, 1, world_size if "cursor" in whole else whole["num_streams"])
    given: dict[str, int] = whole["given"]
    share = sum(given.values()) // world_size
    failures = whole.pop("failures", None)
    same = whole["world_size"] == world_size and len(given) == world_size
    if "cursor" in whole:
        # All ranks have delivered equally many. Other ranks begin the step again: its units are dealt in another way.
        share = max(given.values(), default=0)
        if whole["world_size"] != world_size:
            share -= share % whole["micro_batches"]
            whole["cursor"] = {**whole["cursor"], "micro_batch": 0}
    return [
        {
            **whole,
            "world_size": world_size,
            "given": {str(rank): given[str(rank)] if same else share},
            "streams": {
                str(stream): whole["streams"][str(stream)]
                for stream in layout.rank_streams(rank)
                if "cursor" not in whole
            },
            **split_log(whole, rank, world_size),
            **({"failures": failures} if failures and rank == 0 else {}),
        }
        for rank in range(world_size)
    ]


def unpack_config(state: State) -> dict[str, Any]:
    """Returns the config of a state's dataset, as its `SavableDataset.config` gave it.

    Raises:
        StateError: It cannot be read.
    """
    try:
        text = unpacked(state["config"], MAX_CONFIG_BYTES)
        config = parse_json(text, max_depth=MAX_STATE_DEPTH, any_number=True)
        if not isinstance(config, dict):
            raise ValueError(f"it holds {excerpt(config)}")
    except (ValueError, TypeError, zlib.error) as error:
        raise StateError(
            f"The state is damaged: its config cannot be read ({str(error)[:200]}). Restore another one."
        ) from error
    return config


def check_format(state: Any) -> None:
    """Raises StateError unless `state` is a loader's, in a version that this release reads."""
    if type(state).__name__ in _ENERGON_STATES:
        raise StateError(
            f"This is a state of Megatron Energon ({type(state).__name__}). Its position cannot be carried over: "
            "Energon reads the samples in another order. To start at the same step, restore nothing, and call "
            "loader.skip_steps(0, n) with the number n of steps that this rank has trained."
        )
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        what = excerpt(sorted(map(str, state))) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(
            f"This is not a loader state ({what}): give what save_state_rank, save_state_global or state_dict returned."
        )
    if state.get("version") != VERSION:
        raise StateError(
            f"The state has version {excerpt(state.get('version'))}; this release reads version {VERSION}."
        )
    kinds = {"config": str, "given": Mapping, "streams": Mapping}
    damaged = [name for name, kind in kinds.items() if not isinstance(state.get(name), kind)]
    damaged += [name for name in ("num_streams", "world_size") if not _is_count(state.get(name), 1, MAX_STREAMS)]
    if not damaged and len(state["config"]) > MAX_CONFIG_BYTES:
        damaged = ["config"]
    if not damaged:
        check_plain(state)
        if SKIPPED in state:
            skipped_by_state(state)
        ranks, numbers = state["world_size"], state["num_streams"]
        if "cursor" in state:
            cursor = cursor_of(state)
            parts_of(state)
            history_of(state)
            sizes = [state.get("micro_batches"), *list_of(state, "global_batch")]
            if len(sizes) != 3 or not all(_is_count(size, 1) for size in sizes) or sizes[0] > sizes[1]:
                damaged.append("global_batch")
            elif cursor.micro_batch >= sizes[0]:
                damaged.append("cursor.micro_batch")
            if not isinstance(state.get("balance"), str):
                damaged.append("balance")
            if state.get(ENDS_EPOCH, True) is not True:
                damaged.append(ENDS_EPOCH)
            if not _is_count(state.get("epoch_length", 0)):
                damaged.append("epoch_length")
        damaged += [
            f"given[{rank}]"
            for rank, count in state["given"].items()
            if not (_is_index(rank, ranks) and _is_count(count))
        ]
        damaged += [
            f"streams[{name}]"
            for name, value in state["streams"].items()
            if not (_is_index(name, numbers) and _is_stream(value))
        ]
    if damaged:
        raise StateError(
            f"The state is damaged: {excerpt_names(damaged)} is missing or cannot be used. Restore another one."
        )


def _is_index(name: str, count: int) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10 and str(int(name)) == name and int(name) < count


def _is_count(value: Any, least: int = 0, most: int = MAX_COUNT) -> bool:
    return type(value) is int and least <= value <= most


def _is_stream(value: Any) -> bool:
    kinds: dict[str, Any] = {"count": int, "ended": bool, "state": (Mapping, type(None))}
    return (
        isinstance(value, Mapping)
        and all(name in value and isinstance(value[name], kind) for name, kind in kinds.items())
        and _is_count(value["count"])
    )


def pack_config(config: dict[str, Any]) -> str:
    """Returns a config as compressed text: a hundred similar datasets take a few kilobytes."""
    return packed(json.dumps(config, sort_keys=True, default=as_plain).encode(), 9)
