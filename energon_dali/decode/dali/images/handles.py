"""Handles that a DaliDecoder makes in the workers: what the rank may do with each without looking at it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from energon_dali.decode.interface import MediaHandle


class DaliHandle(MediaHandle):
    """A handle whose header was screened and found fit for DALI; any other handle is screened again, or goes to PIL."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class DecodedHandle(MediaHandle):
    """An image that PIL decoded where it was read and that only waits to be moved to a GPU; `data` is empty.

    A worker must not touch the GPU, and the rank's process has few threads to spare for PIL.
    """

    pixels: Any = None
    """Torch tensor, numpy array or PIL image, as the spec says."""

    def decode(self) -> Any:
        """Returns the pixels, on the CPU."""
        return self.pixels
