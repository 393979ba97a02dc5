"""Tells from which packet a frame came: FFmpeg carries a mark from the one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.frame import Frame

RESTAMPED = frozenset(("vp9", "av1"))
"""Codecs that show an earlier picture again: the frame bears the time of the packet that says so, and the mark of the
packet that brought it. Their frames are known by their time, those of others by the mark."""


@dataclass(slots=True, eq=False)
class Mark:
    """The number of a packet, as its `opaque`.

    PyAV 18.1 keeps opaque objects under their `id` and forgets one as soon as any packet that bore it is freed: one
    object on two packets is lost. So every packet has a mark of its own, where an int would be shared.
    """

    number: int
    """Place of the packet in the order of decoding."""


def read_mark(frame: Frame) -> int:
    """Returns the number of the packet that a frame came from; -1 if the frame has no mark."""
    mark = frame.opaque
    return mark.number if isinstance(mark, Mark) else -1
