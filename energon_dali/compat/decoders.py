"""Decoder wrappers of Energon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energon_dali.decode.part_kind import guess_part_kind, require_filetype


class GuessingHandlerWrapper:
    """Gives a handler the suffix that the content of a part has, instead of its name.

    Args:
        handler: Function of (suffix, content).
    """

    def __init__(self, handler: Callable[[str, bytes], Any]) -> None:
        require_filetype()
        self.handler = handler

    def __call__(self, key: str, data: bytes) -> Any:
        kind = guess_part_kind(data, ("basic", key))
        return self.handler(kind[1] or key, data)

    @staticmethod
    def wrap(active: bool, handlers: list[Callable[[str, bytes], Any]]) -> list[Callable[[str, bytes], Any]]:
        """Returns the handlers, wrapped if `active`."""
        return [GuessingHandlerWrapper(handler) for handler in handlers] if active else handlers
