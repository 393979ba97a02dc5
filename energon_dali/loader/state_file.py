"""Files with states of loaders: JSON, or written by torch.save."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_dali.datasets.stream import State
from energon_dali.decode.basic import decode_basic
from energon_dali.errors import StateError, StorageError
from energon_dali.loader.loader_state import check_format
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.documents.state_entries import MAX_STATE_DEPTH
from energon_dali.shards.storage.atomic_file import atomic_file
from energon_dali.shards.storage.local import read_regular

MEGATRON_KEY = "dataloader_state_dict"
"""Megatron-LM keeps the loader's state under this name in a file of its own per rank."""

SUFFIXES = (".json", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class StateFile:
    """The states in one file."""

    path: Path
    """Where it is."""
    states: tuple[State, ...]
    """One state, or the list of all ranks' states."""
    wrapped: bool
    """Whether the file holds `{"dataloader_state_dict": state}`, as Megatron-LM writes it."""


def read_state_file(path: Path) -> StateFile:
    """Reads a file.

    Args:
        path: Ends in .json, .pt or .pth; the latter two are loaded with weights_only=True, so that no code runs.

    Raises:
        StateError: It cannot be read, or does not contain the state of a loader.
    """
    value = _load(path)
    wrapped = isinstance(value, dict) and MEGATRON_KEY in value
    if wrapped:
        value = value[MEGATRON_KEY]
    states = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    try:
        for state in states:
            check_format(state)
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    return StateFile(path, states, wrapped)


def write_state_files(files: Mapping[Path, State], *, wrapped: bool) -> None:
    """Writes states, each in the format of its file name. Old files are replaced only when all new ones are written.

    Args:
        files: States by path; each path ends in .json, .pt or .pth.
        wrapped: Write `{"dataloader_state_dict": state}`.

    Raises:
        StateError: A name has another suffix, or a file cannot be written. All files are unchanged then.
    """
    for path in files:
        _check_suffix(path)
    try:
        with ExitStack() as replaced:
            for path, state in files.items():
                content = _packed(path, {MEGATRON_KEY: state} if wrapped else state)
                replaced.enter_context(atomic_file(path)).write_bytes(content)
    except StorageError as error:
        raise StateError(f"{error} The old files are unchanged.") from error


def _packed(path: Path, value: Any) -> bytes:
    if path.suffix == ".json":
        return (json.dumps(value) + "\n").encode()
    import torch

    content = io.BytesIO()  # given a path, torch.save turns errors into a RuntimeError without the reason
    torch.save(value, content)
    return content.getvalue()


def find_state_files(paths: Sequence[Path]) -> list[Path]:
    """Returns the given files, and for each folder the files in it that may hold states, sorted by name.

    Raises:
        StateError: A folder has none.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise StateError(
                f"{path} holds no file that ends in {', '.join(SUFFIXES)}. Give the files of a checkpoint."
            )
        found += inside
    return found


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise StateError(f"{path} ends in none of {', '.join(SUFFIXES)}, which say how a state is written. Rename it.")


def _load(path: Path) -> Any:
    _check_suffix(path)
    try:
        if path.suffix == ".json":
            return parse_json(read_regular(str(path)), max_depth=MAX_STATE_DEPTH, any_number=True)
        return decode_basic("pth", read_regular(str(path)))
    except Exception as error:  # a damaged pickle raises anything
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StateError(
            f"{path} cannot be read: {text}. Give a file with the state of a loader of energon_dali; states of "
            "Megatron Energon hold pickled classes and cannot be read."
        ) from error
