"""Stores columns of whole numbers in few bytes: differences, at the least width, in planes that zlib compresses well.

A column is

    order     u8: how many times differences were taken (0, 1 or 2); 128 is added if values are missing
    width     u8: bytes per residual, 0 (all are equal), 1, 2, 4 or 8
    missing   bits, one per value, rounded up to bytes; only if values are missing
    numbers   as varints with sign: the first value of each order, then the smallest residual
    planes    the residuals minus the smallest: all their lowest bytes, then all their second bytes, ...

Arithmetic is modulo 2 to the 64th, so that every column of int64 is stored exactly.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from energon_dali.av.frame_index import NO_TIME, Bools, Int64s

_MISSING = 128
_ORDERS = (0, 1, 2)
_WIDTHS = (1, 2, 4, 8)
_TRIED_VALUES = 4096
"""How many values, from the first on, are compressed to choose the order."""
_VARINT_BYTES = 10
"""Most bytes of a number of 64 bits."""


class ColumnWriter:
    """Appends columns and numbers to a buffer."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def number(self, value: int) -> None:
        """Appends a number of at most 64 bits."""
        value = (value << 1) ^ -1 if value < 0 else value << 1
        value &= (1 << 65) - 1
        while value > 127:
            self.buffer.append(value & 127 | 128)
            value >>= 7
        self.buffer.append(value)

    def column(self, values: npt.NDArray[np.int64]) -> None:
        """Appends a column, int64 [n]; `NO_TIME` marks a missing value."""
        missing = values == NO_TIME
        has_missing = bool(missing.any())
        if has_missing:
            values = _fill(values, missing)
        order, (residuals, base, width) = _choose(values)
        self.buffer += bytes((order | _MISSING * has_missing, width))
        if has_missing:
            self.buffer += np.packbits(missing).tobytes()
        head = values
        for _ in range(min(order, len(values))):
            self.number(int(head[0]))
            head = np.diff(head)
        self.number(base)
        self.buffer += _planes(residuals, width)

    def bits(self, values: Bools) -> None:
        """Appends a column of truth values, bool [n]."""
        self.buffer += np.packbits(values).tobytes()

    def blob(self, content: bytes) -> None:
        """Appends bytes, with their number."""
        self.number(len(content))
        self.buffer += content


class ColumnReader:
    """Reads what a `ColumnWriter` wrote. Every method raises ValueError if the buffer does not contain it.

    Args:
        buffer: The bytes.
    """

    def __init__(self, buffer: bytes | memoryview) -> None:
        self._buffer = memoryview(buffer)
        self._at = 0

    def take(self, size: int) -> memoryview:
        """Returns the next `size` bytes, a view."""
        if not 0 <= size <= len(self._buffer) - self._at:
            raise ValueError(f"{size} bytes are missing at {self._at} of {len(self._buffer)}")
        self._at += size
        return self._buffer[self._at - size : self._at]

    def number(self) -> int:
        """Returns the next number."""
        value = 0
        for place in range(_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * place
            if byte < 128:
                value = (value >> 1) ^ -(value & 1)
                if not -(1 << 63) <= value < 1 << 63:
                    break
                return value
        raise ValueError(f"a number of more than 64 bits at {self._at}")

    def column(self, count: int) -> Int64s:
        """Returns the next column: int64 [count], a new array. The caller bounds `count`."""
        order, width = self.take(2)
        has_missing, order = order >= _MISSING, order % _MISSING
        if order not in _ORDERS or width not in (0, *_WIDTHS):
            raise ValueError(f"a column of order {order} and width {width}")
        missing = self.bits(count) if has_missing else None
        heads = [self.number() for _ in range(min(order, count))]
        base = np.int64(self.number())
        size = count - len(heads)
        values = np.zeros(size, np.uint64)
        planes = np.frombuffer(self.take(size * width), np.uint8).reshape(width, size)
        if width:
            narrow = np.ascontiguousarray(planes.T).view(f"<u{width}").reshape(size)
            values = narrow.astype(np.uint64)
        with np.errstate(over="ignore"):
            column: Int64s = values.view(np.int64) + base
            for head in reversed(heads):
                column = np.cumsum(np.concatenate((np.array([head], np.int64), column)), dtype=np.int64)
        if missing is not None:
            column[missing] = NO_TIME
        return column

    def bits(self, count: int) -> Bools:
        """Returns the next column of truth values: bool [count], a new array."""
        packed = np.frombuffer(self.take((count + 7) // 8), np.uint8)
        return np.unpackbits(packed, count=count).astype(bool)

    def blob(self, most: int) -> bytes:
        """Returns the next bytes, at most `most`."""
        size = self.number()
        if size > most:
            raise ValueError(f"{size} bytes where at most {most} are allowed")
        return bytes(self.take(size))

    def finish(self) -> None:
        """Checks that nothing is left."""
        if self._at != len(self._buffer):
            raise ValueError(f"{len(self._buffer) - self._at} bytes too many")


def _fill(values: Int64s, missing: Bools) -> Int64s:
    """Returns the values with missing ones replaced by those before them, or by 0."""
    last = np.maximum.accumulate(np.where(missing, -1, np.arange(len(values))))
    return np.where(last >= 0, values[np.maximum(last, 0)], 0)


def _choose(values: Int64s) -> tuple[int, tuple[Int64s, int, int]]:
    """Returns the order of differences that takes the fewest bytes, and `_residuals` of that order."""
    best, fewest = 0, -1
    for order in _ORDERS:
        tried, _, width = _residuals(values[:_TRIED_VALUES], order)
        size = len(zlib.compress(_planes(tried, width), 1)) + 2 * order
        if fewest < 0 or size < fewest:
            best, fewest = order, size
    return best, _residuals(values, best)


def _residuals(values: Int64s, order: int) -> tuple[Int64s, int, int]:
    """Returns (residuals minus the smallest, the smallest, bytes per residual)."""
    for _ in range(min(order, len(values))):
        values = np.diff(values)
    if not len(values):
        return values, 0, 0
    base = values.min()
    with np.errstate(over="ignore"):
        residuals = values - base
    most = int(residuals.view(np.uint64).max())
    width = 0 if not most else next(width for width in _WIDTHS if most < 1 << 8 * width)
    return residuals, int(base), width


def _planes(residuals: Int64s, width: int) -> bytes:
    """Returns the lowest bytes of all residuals, then their second bytes, and so on to `width`."""
    little = np.ascontiguousarray(residuals).astype("<i8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(little[:, :width].T).tobytes()
