"""Keeps the paths that a dataset names inside the dataset."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import unquote

from energon_dali.shards.documents.content import excerpt

_LEADS_OUT = re.compile(r"(?:^|/)\.\.(?:/|$)|^/|^$|\0|://")


def check_inner_path(name: str) -> None:
    """Raises ValueError, which says why, unless `name` is a path below the folder that it is joined to.

    Symbolic links are not looked at: whoever made the folder made them, not a document in it.
    """
    # A server may decode %2e%2e itself.
    if _LEADS_OUT.search(name) or ("%" in name and _LEADS_OUT.search(unquote(name))):
        raise ValueError(f"{excerpt(name)} leads out of the dataset, which paths in its files must not")


def check_inner_paths(names: Collection[str]) -> None:
    """Raises ValueError unless all are paths below the folder that they are joined to, see `check_inner_path`."""
    text = "\0".join(names)
    # Few names have any of these, and a hundred thousand are looked at faster together.
    if (
        text.count("\0") != len(names) - 1
        or "" in names
        or text.startswith("/")
        or any(mark in text for mark in ("..", "://", "%", "\0/", "\0\0"))
    ):
        for name in names:
            check_inner_path(name)
