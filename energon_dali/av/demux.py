"""Takes packets out of a container one by one, as far as they can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av.packet import Packet


def demux_stream(container: Any, stream: Any, *, tolerant: bool = False) -> Iterator[Packet[Any]]:
    """Yields the packets of a stream from where the container stands, and mostly an empty one behind the last.

    Args:
        container: PyAV's open container.
        stream: One of its streams.
        tolerant: Takes a place that cannot be read for the end; else its error comes out.

    Raises:
        FFmpegError: The container cannot be read on.
    """
    from av.error import FFmpegError

    try:
        yield from container.demux(stream)
    except IndexError:
        # PyAV 18.1 fails so behind the last packet, by chance, where FFmpeg met more streams on the way (FLV, MPEG-TS).
        return
    except (FFmpegError, EOFError):
        if not tolerant:
            raise
