"""Reads which samples failed, from what a run left: logs, debug logs, statistics as JSON, or saved states."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from energon_dali.errors import ConfigError, StateError, StorageError
from energon_dali.loader.failure_report import (
    ENTRY_BEGIN,
    FailureGroup,
    group_failures,
    groups_of_state,
    merge_groups,
)
from energon_dali.loader.state_file import SUFFIXES, read_state_file

_MAX_LINE = 1 << 20
_TEXT_SUFFIXES = (".log", ".txt", ".out", ".err")
_SUFFIXES = ((".jsonl",), SUFFIXES, _TEXT_SUFFIXES)
_WHAT_TO_GIVE = (
    f"Give what a run printed, in a file that ends in {', '.join(_TEXT_SUFFIXES)}; a debug log (.jsonl); a saved "
    "state; or statistics as JSON."
)


def read_failures(paths: Iterable[Path]) -> list[FailureGroup]:
    """Returns the failures in files, the most frequent first.

    Args:
        paths: Logs (text), debug logs (.jsonl), `loader.stats().as_dict()` as JSON, or states (.json, .pt, .pth); or
            folders of them. The failures of several files are added up. A folder may hold several accounts of one run,
            so only its debug logs count, or else its statistics and states, or else its text logs.

    Raises:
        ConfigError: A file holds none of these, or a folder no file.
        StateError: A state cannot be read.
        StorageError: A file cannot be read.
    """
    return merge_groups(_read_folder(path) if path.is_dir() else _read_file(path) for path in paths)


def _read_folder(folder: Path) -> list[FailureGroup]:
    files = sorted(folder.iterdir())
    kinds = [[file for file in files if file.suffix in suffixes] for suffixes in _SUFFIXES]
    if not any(kinds):
        raise ConfigError(
            f"{folder} holds no file that ends in {', '.join(itertools.chain(*_SUFFIXES))}. Give a log, a debug log or "
            "a saved state."
        )
    for chosen in kinds:
        found = merge_groups(map(_read_file, chosen))
        if found:
            return found
    return []


def _read_file(path: Path) -> list[FailureGroup]:
    if path.suffix in (".pt", ".pth"):
        return merge_groups(groups_of_state(state) for state in read_state_file(path).states)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = file.readlines() if path.suffix == ".json" else None
            if lines is None:
                return _read_lines(path, file)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    return _read_json(path, "".join(lines))


def _read_json(path: Path, text: str) -> list[FailureGroup]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not JSON: {error}. Give a state, or what json.dump(loader.stats().as_dict(), file) wrote."
        ) from error
    if isinstance(value, Mapping) and isinstance(value.get("failure_kinds"), Mapping):
        return _groups_of_statistics(value)
    try:
        return merge_groups(groups_of_state(state) for state in read_state_file(path).states)
    except StateError as error:
        raise ConfigError(
            f"{path} is neither the state of a loader nor its statistics. Give a log, a debug log, a saved state, or "
            "what json.dump(loader.stats().as_dict(), file) wrote."
        ) from error


def _groups_of_statistics(value: Mapping[str, Any]) -> list[FailureGroup]:
    examples = value.get("failure_examples")
    record = {"kinds": value["failure_kinds"], "examples": examples if isinstance(examples, Mapping) else {}}
    checked = (FailureGroup.from_dict(group.as_dict()) for group in group_failures(record))
    return [group for group in checked if group is not None]


def _read_lines(path: Path, lines: Iterable[str]) -> list[FailureGroup]:
    """Returns the failures of a log: of each loader the last report, which counts all before it.

    Reports are lines of JSON, whatever launchers write before them. One that was cut off is left out.

    Raises:
        ConfigError: It is not a log.
    """
    groups_of: dict[object, list[FailureGroup]] = {}
    is_log = path.suffix in _TEXT_SUFFIXES
    for line in lines:
        if "\0" in line:
            raise ConfigError(f"{path} is not text. {_WHAT_TO_GIVE}")
        if len(line) > _MAX_LINE:
            continue
        for text in line.split(ENTRY_BEGIN)[1:]:
            entry = _entry(ENTRY_BEGIN + text)
            groups = groups_of_state(entry)
            if groups:
                groups_of[str(entry.get("reporter"))] = groups
        is_log = is_log or (line.startswith("{") and "event" in _entry(line))
    if not groups_of and not is_log:
        raise ConfigError(f"{path} holds no report of failures, and nothing else of a run. {_WHAT_TO_GIVE}")
    return merge_groups(groups_of.values())


def _entry(line: str) -> dict[str, Any]:
    """Returns the JSON object that a line begins with; {} if there is none."""
    try:
        entry, _ = json.JSONDecoder().raw_decode(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}
