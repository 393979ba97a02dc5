"""Reads which samples failed, from what a run left: logs, debug logs, statistics as JSON, or saved states."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from energon_dali.errors import ConfigError, StateError, StorageError
from energon_dali.loader.failure_report import FailureGroup, group_failures, groups_of_state, merge_groups
from energon_dali.loader.state_file import SUFFIXES, read_state_file

_MAX_LINE = 1 << 20
_MAX_TEXT_LINE = 1 << 14
"""Reports have shorter lines, and searching a line takes more time the longer it is."""
_TEXT_SUFFIXES = (".log", ".txt", ".out", ".err")
_SUFFIXES = ((".jsonl",), SUFFIXES, _TEXT_SUFFIXES)
_WHAT_TO_GIVE = (
    f"Give what a run printed, in a file that ends in {', '.join(_TEXT_SUFFIXES)}; a debug log (.jsonl); a saved "
    "state; or statistics as JSON."
)
_HEADER = re.compile(
    r"(?<![\d,])([\d,]{1,30}) samples? (?:was|were) dropped so far because of failures(?: on rank (\d+))?:"
)
_GROUP = re.compile(
    r"^\s*(?:\S.*?)?  (?P<count>[\d,]{1,30}) x (?P<kind>[^:]+: [\w.]+(?: at .+?:\d+)?)(?:: (?P<reason>.*?))?\."
    r"(?: First: (?P<place>.+?)\.)?(?: See it: energon-dali preview (?P<dataset>.+) --index (?P<index>\d+))?\s*$"
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
    """Returns the failures of a log: of each process the last report, which counts all before it.

    Raises:
        ConfigError: It is not a log.
    """
    groups_of: dict[object, list[FailureGroup]] = {}
    is_debug_log = False
    counted: dict[object, int] = {}
    reporter: object = None
    for line in lines:
        if "\0" in line:
            raise ConfigError(f"{path} is not text. {_WHAT_TO_GIVE}")
        if len(line) > _MAX_LINE:
            continue
        if line.startswith("{"):
            entry = _entry(line)
            is_debug_log |= "event" in entry
            if entry.get("event") == "failures" and isinstance(entry.get("failures"), list):
                groups_of["debug", entry.get("rank"), entry.get("pid")] = [
                    group for group in map(FailureGroup.from_dict, entry["failures"]) if group is not None
                ]
            continue
        if len(line) > _MAX_TEXT_LINE:
            continue
        header = _HEADER.search(line)
        if header is not None:
            total = _number(header[1])
            # A run that was started again begins to count again.
            run = counted.setdefault((header[2], "run"), 0)
            if total < counted.get(header[2], 0):
                run = counted[header[2], "run"] = run + 1
            counted[header[2]] = total
            reporter = ("text", header[2], run)
            groups_of[reporter] = []
            continue
        found = _GROUP.match(line) if reporter is not None else None
        if found is not None:
            groups_of[reporter].append(_group_of(found))
    is_log = is_debug_log if path.suffix == ".jsonl" else path.suffix in _TEXT_SUFFIXES
    if not groups_of and not is_log:
        raise ConfigError(f"{path} holds no report of failures, and nothing else of a run. {_WHAT_TO_GIVE}")
    return merge_groups(groups_of.values())


def _entry(line: str) -> dict[str, Any]:
    """Returns a line of a debug log as a dict; {} if it is not one."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _group_of(found: re.Match[str]) -> FailureGroup:
    group = FailureGroup(found["kind"], _number(found["count"]), found["reason"] or "")
    if found["place"]:
        shard, _, key = found["place"].rpartition("/")
        group = replace(group, shard=shard, key=key)
    if found["index"]:
        group = replace(group, dataset=_unquoted(found["dataset"]), index=int(found["index"]))
    return group


def _unquoted(text: str) -> str:
    try:
        (word,) = shlex.split(text)
    except ValueError:
        return text
    return word


def _number(text: str) -> int:
    return int(text.replace(",", ""))
