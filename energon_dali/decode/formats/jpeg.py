"""JPEG: reads the header up to the first scan (SOS), as DALI's parser does, and checks the markers after it.

PIL refuses a file whose markers are not in order: one without EOI, or with a marker where it does not belong. Inside a
scan libjpeg pads what is missing and only warns, so PIL accepts such a file, and DALI decodes the same pixels. DALI
does not look for EOI: whether it refuses a truncated file depends on the region that it decodes.
"""

from __future__ import annotations

import re
from io import BytesIO
from struct import Struct

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from energon_dali.decode.formats.exif import exif_orientation, xmp_orientation
from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError
from energon_dali.errors import DecodeError

_SEGMENT = Struct(">BBH").unpack_from
_MARKER_SEGMENT = Struct(">xBH").unpack_from
_SOF0, _SOF2, _DHT, _RST0, _EOI, _SOS, _DRI = 0xC0, 0xC2, 0xC4, 0xD0, 0xD9, 0xDA, 0xDD
_ALL_COEFFICIENTS = (1 << 64) - 1
_MARKER = re.compile(rb"\xff(?=[^\0])", re.DOTALL)
_FIRST_MARKER = re.compile(rb"\xff[^\0]", re.DOTALL)
"""The same for the first one: faster, but a match may hide one that begins with its second byte."""
_FRAME = Struct(">BHHB").unpack_from
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_LEAST_LENGTHS = ((0xE0, b"JFIF", 9), (0xEE, b"Adobe", 9), (0xE2, b"ICC_PROFILE\0", 16))
"""Marker and beginning of application segments, and the length that PIL needs: it refuses a file with a shorter one."""
_SHORT_LENGTH = max(length for _, _, length in _LEAST_LENGTHS)
_PHOTOSHOP, _RESOURCE = b"Photoshop 3.0\0", b"8BIM"
_SUBSAMPLINGS = {0x11: "444", 0x21: "422", 0x22: "420", 0x41: "411", 0x42: "410", 0x12: "440"}
_COLORS = {(3, -1): "ycc", (3, 0): "rgb", (3, 1): "ycc", (4, -1): "cmyk", (4, 0): "cmyk", (4, 2): "ycck"}

_MOST_PIXELS_PER_BYTE = 2048
"""A Huffman-coded block of 8 x 8 pixels takes at least one bit: 512 pixels per byte, half of that in odd subsamplings.

Without this bound a broken size below `max_pixels` would cost each decoder hundreds of megabytes for nothing."""
_HARMLESS_PIXELS = 1 << 24
"""Up to this size the bound does not apply: libjpeg pads what is missing, and PIL accepts the file."""


def read_jpeg(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with FF D8 FF.

    Raises:
        IrregularHeaderError: The segments are not in order, or there is no frame.
        struct.error: The file ends inside the header.
        DecodeError: The file is too short for its size.
    """
    position, size, orientation, adobe, frame, frame_marker = 2, len(data), 0, -1, 0, 0
    exif_blocks, regular, xmp = 0, True, b""
    while True:
        prefix, marker, length = _SEGMENT(data, position)
        end = position + 2 + length
        if prefix != 0xFF or not 0xC0 <= marker < 0xFF or length < 2 or end > size or 0xD0 <= marker <= 0xD9:
            raise IrregularHeaderError
        if marker in _FRAME_MARKERS:
            if frame:
                raise IrregularHeaderError
            frame, frame_marker, frame_length = position + 4, marker, length
        elif marker == 0xDA:
            break
        elif marker == 0xE1 and length >= 8 and data[position + 4 : position + 10] == b"Exif\0\0":
            exif_blocks += 1
            if exif_blocks == 1:  # as in PIL
                orientation, alike = exif_orientation(data, position + 10, end)
                regular &= alike
        elif marker == 0xE1 and data[position + 4 : position + 33] == _XMP:
            xmp = bytes(data[position + 33 : end])
        elif marker == 0xEE and length >= 14 and data[position + 4 : position + 9] == b"Adobe":
            adobe = data[position + 15]
        elif marker == 0xED:
            regular &= _has_whole_resources(bytes(data[position + 4 : end]))
        if length < _SHORT_LENGTH:
            regular &= not _is_cut(marker, bytes(data[position + 4 : end]))
        position = end
    if not frame:
        raise IrregularHeaderError
    if not orientation and xmp:
        orientation = xmp_orientation(xmp)
        regular &= orientation < 2  # DALI does not read XMP
    header = _read_frame(data, frame, frame_marker, frame_length, orientation or 1, adobe)
    # DALI handles several EXIF blocks as it does several orientations in one. It rounds CMYK differently where there is
    # black, and inverts CMYK if Adobe's marker is missing.
    header.dali_decodable &= regular and exif_blocks < 2 and header.channels < 4
    return header


def _is_cut(marker: int, content: bytes) -> bool:
    """Returns whether an application segment lacks fields that PIL reads. DALI skips the segment."""
    return any(
        marker == known and content.startswith(beginning) and len(content) + 2 < least
        for known, beginning, least in _LEAST_LENGTHS
    )


def _has_whole_resources(content: bytes) -> bool:
    """Returns whether the headers of Photoshop's resources in an APP13 segment are whole: PIL refuses some others.

    The data of the last resource may be cut: it continues in the next segment.
    """
    if not content.startswith(_PHOTOSHOP):
        return True
    position = len(_PHOTOSHOP)
    while content.startswith(_RESOURCE, position):
        # Four bytes, a number of two, a name after its length, padding to an even position, and the size of the data.
        if position + 6 >= len(content):
            return False
        position += 7 + content[position + 6]
        position += position & 1
        if position + 4 > len(content):
            return False
        position += 4 + int.from_bytes(content[position : position + 4], "big")
        position += position & 1
    return True


def _read_frame(data: Buffer, position: int, marker: int, length: int, orientation: int, adobe: int) -> ImageHeader:
    """Returns the header that the content of a SOF segment at `position` describes."""
    precision, height, width, components = _FRAME(data, position)
    if length != 8 + 3 * components or components not in (1, 3, 4):
        raise IrregularHeaderError
    if marker <= 0xC2 and width * height > max(_HARMLESS_PIXELS, len(data) * _MOST_PIXELS_PER_BYTE):
        raise DecodeError(
            f"{len(data):,} bytes cannot hold {width} x {height} pixels: its header is broken", "jpeg", "screen"
        )
    factors = data[position + 7]
    others = {data[position + 10], data[position + 13]} if components > 1 else set()
    if components == 1:
        subsampling, color = "gray", "gray"
    else:
        # One full component and smaller others; the fourth of CMYK is as large as the first.
        if others == {factors}:
            subsampling = "444"
        else:
            subsampling = _SUBSAMPLINGS.get(factors, "other") if others == {0x11} else "other"
        color = _COLORS.get((components, adobe), "ycc")
        if adobe < 0 and (data[position + 6], data[position + 9], data[position + 12]) == (82, 71, 66):
            color = "rgb"  # component names "R", "G", "B"
    return ImageHeader(
        "jpeg",
        width,
        height,
        components,
        precision,
        False,
        orientation,
        color,
        subsampling,
        marker in (0xC2, 0xC6, 0xCA, 0xCE),
        precision == 8 and marker <= 0xC2,
    )


def has_whole_scans(data: Buffer) -> bool:
    """Returns whether all markers up to EOI are in order and no scan is missing.

    Costs about 35 us for a JPEG of 100 KB, which takes 1.3 ms to decode. numpy would take a third of that, but it
    releases the interpreter lock, and next to a thread that is busy in Python it takes 5 ms to get the lock back. If
    this returns False, the file may be damaged or unusual, and only decoding shows which.

    Args:
        data: A file whose header `read_jpeg` accepted.
    """
    position, components, progressive, restart_interval, frame = 2, b"", False, 0, 0
    while True:
        marker, length = _MARKER_SEGMENT(data, position)
        if marker == _SOS:
            break
        if _SOF0 <= marker <= _SOF2:
            progressive, frame = marker == _SOF2, position
            components = bytes(data[position + 10 : position + 2 + length : 3])
        elif marker == _DRI:
            restart_interval = int.from_bytes(data[position + 4 : position + 6], "big")
        position += 2 + length
    start = position + 2 + length
    if not progressive and not restart_interval and data[position + 4] == len(components):
        first = _FIRST_MARKER.search(data, start)
        return first is not None and data[first.start() + 1] == _EOI
    markers = np.fromiter((found.start() for found in _MARKER.finditer(data, start)), np.int64)
    return _walk(data, position, markers, _ScanProgress(components, progressive), restart_interval, frame)


def open_reduced(data: Buffer, factor: int, rows: int) -> Image.Image:
    """Returns an image that PIL will load at 1/factor of its size (in libjpeg's inverse DCT), without its last rows.

    libjpeg stops after the height that the header says. A smaller height therefore leaves out the rows below it; the
    others stay as they are, except the last one, for which it interpolates chroma.

    Args:
        data: A file for which `has_whole_scans` is true.
        factor: 1, 2, 4 or 8.
        rows: How many rows are needed, without the one that changes.

    Raises:
        IrregularHeaderError: The file is not Huffman-coded.
    """
    position = 2
    while not _SOF0 <= data[position + 1] <= _SOF2:
        marker, length = _MARKER_SEGMENT(data, position)
        if marker == _SOS:
            raise IrregularHeaderError
        position += 2 + length
    _, height, width, components = _FRAME(data, position + 4)
    # Whole rows of blocks, as many as the largest component has in a unit.
    unit = 8 * max(data[at + 1] & 15 for at in range(position + 10, position + 10 + 3 * components, 3))
    kept = min(height, -(-rows // unit) * unit)
    file = BytesIO(data)
    if kept < height:
        with file.getbuffer() as content:
            content[position + 5 : position + 7] = kept.to_bytes(2, "big")
    if "JPEG" not in Image.OPEN:
        Image.init()
    image = Image.OPEN["JPEG"][0](file, "")
    if image.size != (width, kept):
        raise IrregularHeaderError
    if factor > 1:
        image.draft(None, (width // factor, kept // factor))
    if image.size != (-(-width // factor), -(-kept // factor)):
        raise IrregularHeaderError
    return image


class _ScanProgress:
    """The coefficients of each component that the scans so far have transmitted in full."""

    def __init__(self, components: bytes, progressive: bool) -> None:
        self._progressive = progressive
        self._done = dict.fromkeys(components, 0)  # bit n: coefficient n

    def add(self, data: Buffer, position: int) -> bool:
        """Adds the scan whose SOS marker is at a position; returns whether its header is valid."""
        count = data[position + 4]
        end = position + 5 + 2 * count
        if end + 3 > len(data) or data[position + 2] << 8 | data[position + 3] != 6 + 2 * count:
            return False
        first, last, precision = data[end : end + 3] if self._progressive else (0, 63, 0)
        if not first <= last < 64:
            return False
        sent = (2 << last) - (1 << first)
        for component in data[position + 5 : end : 2]:
            if component not in self._done:
                return False
            if precision & 15:  # more bits follow in later scans; libjpeg goes by the last scan
                self._done[component] &= ~sent
            else:
                self._done[component] |= sent
        return True

    def is_complete(self) -> bool:
        return all(done == _ALL_COEFFICIENTS for done in self._done.values())


def _units(data: Buffer, frame: int, scan: int) -> int:
    """Returns the number of units (MCUs or blocks) that the restart interval of a scan counts (ITU-T T.81, A.2).

    Args:
        data: The file.
        frame: Position of its SOF.
        scan: Position of the SOS.
    """
    height, width = data[frame + 5] << 8 | data[frame + 6], data[frame + 7] << 8 | data[frame + 8]
    factors = {
        data[at]: (data[at + 1] >> 4, data[at + 1] & 15)
        for at in range(frame + 10, frame + 10 + 3 * data[frame + 9], 3)
    }
    most_across = max(1, *(across for across, _ in factors.values()))
    most_down = max(1, *(down for _, down in factors.values()))
    if data[scan + 4] > 1:
        return -(-width // (8 * most_across)) * -(-height // (8 * most_down))
    across, down = factors.get(data[scan + 5], (1, 1))
    return -(-width * across // (8 * most_across)) * -(-height * down // (8 * most_down))


def _walk(
    data: Buffer, scan: int, markers: NDArray[np.int64], progress: _ScanProgress, restart_interval: int, frame: int
) -> bool:
    """Returns whether the markers from the first scan on are in order.

    Args:
        data: The file.
        scan: Position of the first SOS.
        markers: Positions after it of all FF bytes that are not followed by a zero.
        progress: A new one.
        restart_interval: As in the header; 0 if there are no restarts.
        frame: Position of the SOF.
    """
    kinds = np.frombuffer(data, np.uint8)[markers + 1]
    others: list[int] = np.flatnonzero((kinds & 0xF8) != _RST0).tolist()
    if not progress.add(data, scan):
        return False
    position = 0  # where the segments so far end
    before = -1  # index of the marker before
    in_scan = True
    for number in others:
        marker, kind = int(markers[number]), int(kinds[number])
        if number > before + 1:
            restarts = kinds[before + 1 : number][markers[before + 1 : number] >= position]
            expected = _RST0 + np.arange(len(restarts)) % 8
            if len(restarts) and not (restart_interval and np.array_equal(restarts, expected)):
                return False
            # If a range is missing or repeated, the order may still look right, but there are too few or too many.
            if len(restarts) and len(restarts) != -(-_units(data, frame, scan) // restart_interval) - 1:
                return False
        is_bare = number == before + 1
        before = number
        if marker < position:  # inside a segment
            continue
        if is_bare and in_scan and 0 < restart_interval < _units(data, frame, scan):
            return False
        in_scan = kind == _SOS
        if kind == _EOI:
            return progress.is_complete()
        if kind not in (_DHT, _SOS, _DRI) or marker + 6 > len(data):
            return False
        if kind == _SOS:
            scan = marker
            if not progress.add(data, marker):
                return False
        if kind == _DRI:
            restart_interval = data[marker + 4] << 8 | data[marker + 5]
        position = marker + 2 + (data[marker + 2] << 8 | data[marker + 3])
    return False


FORMAT = ImageFormat(
    "jpeg",
    pil_names=("JPEG", "MPO"),
    suffixes=("jpg", "jpeg", "jpe", "jfif", "mpo"),
    signature=rb"\xff\xd8\xff",
    read_header=read_jpeg,
    is_whole=has_whole_scans,
    reads_orientation=True,
    open_reduced=open_reduced,
    cuts_rows=True,
    max_pixels_per_byte=_MOST_PIXELS_PER_BYTE,
    gpu_codec=True,
)
