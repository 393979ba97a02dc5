"""Tells from the pictures of a video whether it shows them in the order in which they are stored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from energon_dali.av.container import MediaFile
from energon_dali.av.demux import demux_stream

if TYPE_CHECKING:
    from energon_dali.av.stream_facts import StreamFacts

_MPEG4_B_PICTURE = re.compile(rb"\x00\x00\x01\xb6[\x80-\xbf]")
"""ISO/IEC 14496-2 6.2.5: two bits behind the start code are 2 where a picture refers forward."""


def is_in_file_order(file: MediaFile, facts: StreamFacts) -> bool:
    """Returns whether no picture is shown before one that is stored before it; False where nothing tells.

    All packets are read, and none is decoded.

    Args:
        file: The file, inside `opened`.
        facts: Its video stream.

    Raises:
        DecodeError: It takes too long.
    """
    from av.bitstream import BitStreamFilterContext
    from av.error import FFmpegError

    container = file.rewind()
    stream: Any = container.streams[facts.position]
    file.select(stream)
    deadline = file.deadline()
    count, seen, last = 0, 0, -1
    try:
        # FFmpeg's filter puts numbers into the order of the picture order counts of H.264 and HEVC.
        ordered = None if facts.codec == "mpeg4" else BitStreamFilterContext("dts2pts", stream)
        for packet in demux_stream(container, stream):
            if not count & 63:
                deadline.check()
            if packet.size:
                packet.dts, packet.pts, packet.duration = count, None, 1
                count += 1
            if ordered is None:
                if _MPEG4_B_PICTURE.search(bytes(packet)):
                    return False
                continue
            for picture in ordered.filter(packet if packet.size else None):
                if picture.pts is None or picture.pts <= last:
                    return False
                seen, last = seen + 1, picture.pts
    except (FFmpegError, ValueError):  # a codec or a filter that this FFmpeg does not know, or damaged packets
        return False
    return ordered is None or seen == count
