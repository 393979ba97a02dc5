"""The attributes of samples and batches: the fields of their class, and what hooks added to one of them."""

from __future__ import annotations

import dataclasses
from typing import Any


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of a dataclass instance by name: the fields that are set, then what was added."""
    own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}
    return {**own, **getattr(value, "__dict__", {})}
