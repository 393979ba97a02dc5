"""Walks the markers of a JPEG to its end (EOI), without decoding anything.

PIL refuses a file whose markers are not in order: one that has no EOI, or a marker that does not belong where it is.
Inside a scan libjpeg pads what is missing and only warns, so PIL takes such a file, and DALI makes the same pixels of
it. DALI does not look for EOI: whether it refuses a file that was cut depends on the region that it decodes.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

from energon_dali.decode.headers.header import Buffer

_SEGMENT = Struct(">xBH").unpack_from
_SOF0, _SOF2, _DHT, _RST0, _RST7, _EOI, _SOS, _DRI = 0xC0, 0xC2, 0xC4, 0xD0, 0xD7, 0xD9, 0xDA, 0xDD
_ALL_COEFFICIENTS = (1 << 64) - 1


def has_whole_scans(data: Buffer) -> bool:
    """Returns whether all markers up to EOI are in order and all scans are there.

    Costs about 10 us for a JPEG of 80 KB, which takes 1 ms to decode. If this returns False, the file may be damaged or
    unusual, and only decoding it tells.

    Args:
        data: A file whose header `read_jpeg` understood.
    """
    position, components, progressive, restart_interval = 2, b"", False, 0
    while True:
        marker, length = _SEGMENT(data, position)
        if marker == _SOS:
            break
        if _SOF0 <= marker <= _SOF2:
            progressive = marker == _SOF2
            components = bytes(data[position + 10 : position + 2 + length : 3])
        elif marker == _DRI:
            restart_interval = int.from_bytes(data[position + 4 : position + 6], "big")
        position += 2 + length
    start = position + 2 + length
    values = np.frombuffer(data, np.uint8)[start:]
    marked = values[:-1] == 0xFF  # bool[n - 1]
    marked &= values[1:] != 0
    if not progressive and not restart_interval and data[position + 4] == len(components):
        first = int(marked.argmax()) if len(marked) else 0
        return len(marked) > 0 and bool(marked[first]) and int(values[first + 1]) == _EOI
    markers: NDArray[np.int64] = np.flatnonzero(marked) + start
    return _walk(data, position, markers, _Script(components, progressive), restart_interval)


class _Script:
    """Which coefficients of which component the scans have brought in full."""

    def __init__(self, components: bytes, progressive: bool) -> None:
        self._progressive = progressive
        self._done = dict.fromkeys(components, 0)  # bit n: coefficient n

    def add(self, data: Buffer, position: int) -> bool:
        """Counts the scan whose SOS marker is at a position; returns whether its header makes sense."""
        count = data[position + 4]
        end = position + 5 + 2 * count
        if int.from_bytes(data[position + 2 : position + 4], "big") != 6 + 2 * count or end + 3 > len(data):
            return False
        first, last, precision = (data[end], data[end + 1], data[end + 2]) if self._progressive else (0, 63, 0)
        for component in bytes(data[position + 5 : end : 2]):
            if component not in self._done or not first <= last < 64:
                return False
            if not precision & 15:  # no bits are left for later scans
                self._done[component] |= (2 << last) - (1 << first)
        return True

    def is_complete(self) -> bool:
        return all(done == _ALL_COEFFICIENTS for done in self._done.values())


def _walk(data: Buffer, scan: int, markers: NDArray[np.int64], script: _Script, restart_interval: int) -> bool:
    """Returns whether the markers from the first scan on are in order.

    Args:
        data: The file.
        scan: Position of the first SOS.
        markers: Positions behind it of all bytes FF that are not followed by a zero.
        script: An empty one.
        restart_interval: As the header says; 0 if there are no restarts.
    """
    kinds = np.frombuffer(data, np.uint8)[markers + 1]
    others = np.flatnonzero((kinds < _RST0) | (kinds > _RST7))
    if not script.add(data, scan):
        return False
    position = 0  # up to where segments reach
    before = -1  # number of the marker before
    for number in others.tolist():
        marker, kind = int(markers[number]), int(kinds[number])
        restarts = kinds[before + 1 : number]
        restarts = restarts[markers[before + 1 : number] >= position]
        if len(restarts) and not (restart_interval and np.array_equal(restarts, _RST0 + np.arange(len(restarts)) % 8)):
            return False
        before = number
        if marker < position:  # inside a segment
            continue
        if kind == _EOI:
            return script.is_complete()
        if kind not in (_DHT, _SOS, _DRI) or marker + 6 > len(data):
            return False
        if kind == _SOS and not script.add(data, marker):
            return False
        if kind == _DRI:
            restart_interval = int.from_bytes(data[marker + 4 : marker + 6], "big")
        position = marker + 2 + int.from_bytes(data[marker + 2 : marker + 4], "big")
    return False
