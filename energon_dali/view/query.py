"""What a page was asked for: split, shard, conditions, page number; from an address, and back to one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlencode

from energon_dali.view.scan_filter import SampleFilter

PAGE_SIZES = (10, 24, 48, 96)
DEFAULT_PAGE_SIZE = 48
MAX_NUMBER = 1 << 53
_MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class GridQuery:
    """What a grid shows."""

    split: str = ""
    """Part of the split; "" takes all samples."""
    shard: str = ""
    """Part of the path of the shards."""
    wanted: SampleFilter = field(default_factory=SampleFilter)
    """Conditions on samples."""
    page: int = 1
    """Number of the page, from 1."""
    page_size: int = DEFAULT_PAGE_SIZE
    """Samples of a page."""

    @property
    def start(self) -> int:
        """Position of the first sample of the page."""
        return (self.page - 1) * self.page_size

    def fields(self) -> dict[str, str]:
        """Returns the conditions as an address has them; what is not given is left out."""
        values: dict[str, Any] = {"split": self.split, "shard": self.shard}
        values |= {name: getattr(self.wanted, name) for name in FILTER_FIELDS}
        found = {name: _written(value) for name, value in values.items() if value not in (None, "")}
        if self.page_size != DEFAULT_PAGE_SIZE:
            found["size"] = str(self.page_size)
        return found

    def address(self, **changes: Any) -> str:
        """Returns the query of an address that asks for this, "" if it asks for nothing.

        Args:
            **changes: Further fields, such as page or position; None leaves one out.
        """
        pairs: dict[str, str] = self.fields()
        if self.page > 1:
            pairs["page"] = str(self.page)
        for name, value in changes.items():
            pairs.pop(name, None)
            if value is not None:
                pairs[name] = str(value)
        return f"?{urlencode(pairs)}" if pairs else ""

    def on_page(self, page: int) -> GridQuery:
        """Returns the same for another page."""
        return replace(self, page=page)


FILTER_FIELDS = {one.name: str(one.type) for one in fields(SampleFilter)}
"""The conditions that an address may hold, and their types."""


def read_query(given: Mapping[str, str]) -> tuple[GridQuery, list[str]]:
    """Returns (what an address asks for, what of it could not be understood).

    Args:
        given: The fields of the address.
    """
    wrong: list[str] = []
    values: dict[str, Any] = {}
    for name, kind in FILTER_FIELDS.items():
        text = given.get(name, "").strip()[:_MAX_TEXT]
        if not text:
            continue
        try:
            values[name] = _parsed(text, kind)
        except ValueError:
            wrong.append(f"{_label(name)} is {text[:50]!r}, which cannot be understood.")
    page, size = _whole(given.get("page")) or 1, _whole(given.get("size"))
    query = GridQuery(
        given.get("split", "")[:_MAX_TEXT],
        given.get("shard", "").strip()[:_MAX_TEXT],
        SampleFilter(**values),
        max(1, page),
        size if size in PAGE_SIZES else DEFAULT_PAGE_SIZE,
    )
    return query, wrong


def describe(query: GridQuery) -> Iterable[tuple[str, str]]:
    """Yields (name, value) of each condition, for people."""
    for name, value in query.fields().items():
        if name != "size":
            yield _label(name), "" if value == "1" and FILTER_FIELDS.get(name, "").startswith("bool") else value


def _label(name: str) -> str:
    return name.replace("min_", "least ").replace("max_", "most ").replace("_", " ")


def _parsed(text: str, kind: str) -> Any:
    if kind.startswith("bool"):
        return {"1": True, "0": False}.get(text)
    if kind.startswith("bytes"):
        return bytes.fromhex(text)
    if kind.startswith("int"):
        number = int(text)
        if abs(number) > MAX_NUMBER:
            raise ValueError(text)
        return number
    if kind.startswith("float"):
        real = float(text)
        if not math.isfinite(real):
            raise ValueError(text)
        return real
    return text


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, bytes):
        return value.hex()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _whole(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if abs(number) < MAX_NUMBER else None
