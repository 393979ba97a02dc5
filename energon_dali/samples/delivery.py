"""Which fields a rank receives of a batch: pixels where the vision encoder runs, labels where the loss is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from energon_dali.errors import ConfigError
from energon_dali.samples.context_parallel import ContextCut, fields_of, with_fields

T = TypeVar("T")

Role = Literal["all", "first_stage", "last_stage", "ends"]
ROLES: tuple[Role, ...] = ("all", "first_stage", "last_stage", "ends")
"""Which ranks receive a field: all; those of the first or last pipeline stage; or those of both."""

MEGATRON: Mapping[str, Role] = {
    **dict.fromkeys(
        ("imgs", "images", "image", "pixel_values", "pixel_values_videos", "videos", "audio"), "first_stage"
    ),
    **dict.fromkeys(("tokens", "input_ids", "labels", "loss_mask"), "ends"),
}
"""What Megatron's models read in which stage: media in the first stage, tokens and labels in the first and the last."""


@dataclass(frozen=True)
class Place:
    """Where a rank is in a pipeline and in a context-parallel group."""

    stage: int = 0
    stages: int = 1
    context_rank: int = 0
    context_size: int = 1

    def has(self, role: Role) -> bool:
        """Returns whether this rank has a role."""
        is_first, is_last = self.stage == 0, self.stage == self.stages - 1
        return {"all": True, "first_stage": is_first, "last_stage": is_last, "ends": is_first or is_last}[role]


class Delivery:
    """What a rank receives of each batch.

    Args:
        place: Where the rank is.
        deliver: Roles by field; fields that are not named go to all. "megatron" stands for `MEGATRON`.
        cut: How context-parallel ranks divide a batch; None leaves sequences whole.

    Raises:
        ConfigError: A role is unknown.
    """

    def __init__(
        self, place: Place, deliver: Mapping[str, Role] | Literal["megatron"] | None, cut: ContextCut | None
    ) -> None:
        self.place = place
        self._cut = cut
        roles = checked_roles(deliver)
        self._left_out = frozenset(name for name, role in roles.items() if not place.has(role))

    @property
    def changes_nothing(self) -> bool:
        """Whether this rank receives whole batches."""
        return not self._left_out and (self._cut is None or self.place.context_size == 1)

    def of(self, batch: T) -> T:
        """Returns what this rank receives of a batch.

        Args:
            batch: A dict or a dataclass. Fields for other ranks are then absent from a dict, and None in a dataclass.

        Raises:
            ConfigError: The batch is neither, or a sequence cannot be cut.
        """
        if self._left_out:
            batch = with_fields(batch, {}, self._left_out & set(fields_of(batch)))
        if self._cut is not None:
            batch = self._cut.of(batch, self.place.context_rank, self.place.context_size)
        return batch


def checked_roles(deliver: Any) -> Mapping[str, Role]:
    """Returns the roles by field that a user gave.

    Raises:
        ConfigError: A role is unknown, or `deliver` is neither a dict, "megatron" nor None.
    """
    if deliver is None:
        return {}
    if deliver == "megatron":
        return MEGATRON
    if not isinstance(deliver, Mapping):
        raise ConfigError(f'deliver={deliver!r} is unknown: give a dict from fields to roles, "megatron" or None.')
    unknown: Iterable[tuple[Any, Any]] = [(name, role) for name, role in deliver.items() if role not in ROLES]
    for name, role in unknown:
        raise ConfigError(f"deliver={{{name!r}: {role!r}}} is unknown: a role is one of {', '.join(map(repr, ROLES))}.")
    return deliver
