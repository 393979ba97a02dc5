"""TIFF: reads the tags of the first directory that decide who may decode the file."""

from __future__ import annotations

from struct import unpack_from
from typing import TYPE_CHECKING

from energon_dali.decode.formats.exif import xmp_orientation
from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError

if TYPE_CHECKING:
    from PIL import Image

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_FILL_ORDER, _OFFSETS, _ORIENTATION, _SAMPLES, _ROWS, _LENGTHS = 266, 273, 274, 277, 278, 279
_PLANAR, _PREDICTOR, _TILE_WIDTH, _EXTRA_SAMPLES, _SAMPLE_FORMAT, _XMP = 284, 317, 322, 338, 339, 700
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
_CODES = {3: "H", 4: "I"}
_MOST_VALUES = 65_536
_NONE, _LZW, _DEFLATE = 1, 5, 8
_MOST_BYTES_PER_BYTE = 2731
"""At best LZW packs 4,096 bytes into twelve bits, and Deflate 258 bytes into two."""
_LISTS = frozenset({_BITS, _OFFSETS, _LENGTHS, _EXTRA_SAMPLES, _SAMPLE_FORMAT})
_USUAL = {_COMPRESSION: (_NONE, _LZW, _DEFLATE), _FILL_ORDER: (1,), _PLANAR: (1,), _PREDICTOR: (1, 2)}
"""Values that PIL and DALI treat alike."""
_SINGLE = frozenset({_WIDTH, _HEIGHT, _PHOTOMETRIC, _ORIENTATION, _SAMPLES, _ROWS, _TILE_WIDTH, *_USUAL})


def read_tiff(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with "II*" or "MM" and is a plain 8-bit image in strips.

    Raises:
        IrregularHeaderError: It is anything else, which PIL examines, or it is truncated.
        struct.error: The file ends inside the directory.
    """
    byte_order = "<" if data[:2] == b"II" else ">"
    tags = _read_directory(data, byte_order)
    samples = tags.get(_SAMPLES, (1,))[0]
    if tags.get(_ORIENTATION, (1,)) != (1,) or _TILE_WIDTH in tags or not samples:
        raise IrregularHeaderError
    if any(tags.get(tag, (1,))[0] not in allowed for tag, allowed in _USUAL.items()):
        raise IrregularHeaderError
    if tags.get(_BITS) != (8,) * samples or set(tags.get(_SAMPLE_FORMAT, (1,))) != {1}:
        raise IrregularHeaderError
    photometric = tags[_PHOTOMETRIC][0] if _PHOTOMETRIC in tags else -1
    if (photometric, samples) not in ((1, 1), (2, 3)) or _EXTRA_SAMPLES in tags:
        raise IrregularHeaderError
    if _WIDTH not in tags or _HEIGHT not in tags or len(tags.get(_SAMPLE_FORMAT, (1,) * samples)) != samples:
        raise IrregularHeaderError
    width, height = tags[_WIDTH][0], tags[_HEIGHT][0]
    offsets, lengths = tags.get(_OFFSETS, ()), tags.get(_LENGTHS, ())
    if not offsets or len(offsets) != len(lengths):
        raise IrregularHeaderError
    if any(offset + length > len(data) for offset, length in zip(offsets, lengths, strict=True)):
        raise IrregularHeaderError
    plain = tags.get(_COMPRESSION, (1,))[0] == _NONE
    if sum(lengths) * (1 if plain else _MOST_BYTES_PER_BYTE) < width * height * samples:
        raise IrregularHeaderError
    # Only unpacking shows whether compressed strips are whole, and DALI fills in what it cannot unpack.
    return ImageHeader("tiff", width, height, samples, color="gray" if samples == 1 else "rgb", dali_decodable=plain)


def _read_directory(data: Buffer, byte_order: str) -> dict[int, tuple[int, ...]]:
    """Returns the values of the tags that matter; only integer tags are supported."""
    (position,) = unpack_from(byte_order + "I", data, 4)
    (count,) = unpack_from(byte_order + "H", data, position)
    end = position + 2 + 12 * count
    if position < 8 or not count or end + 4 > len(data):
        raise IrregularHeaderError
    tags: dict[int, tuple[int, ...]] = {}
    last = 0
    for entry in range(position + 2, end, 12):
        tag, kind, values = unpack_from(byte_order + "HHI", data, entry)
        if kind not in _SIZES or tag <= last:
            raise IrregularHeaderError
        where, last, length = entry + 8, tag, values * _SIZES[kind]
        if length > 4:
            (where,) = unpack_from(byte_order + "I", data, where)
            if where + length > len(data):
                raise IrregularHeaderError
        if tag == _XMP and xmp_orientation(bytes(data[where : where + length])) > 1:
            raise IrregularHeaderError  # PIL rotates the image when it loads it
        if tag not in _LISTS and tag not in _SINGLE:
            continue
        if kind not in _CODES or not 0 < values <= (_MOST_VALUES if tag in _LISTS else 1):
            raise IrregularHeaderError
        tags[tag] = unpack_from(f"{byte_order}{values}{_CODES[kind]}", data, where)
    return tags


def _turns_by_xmp(image: Image.Image) -> bool:
    """Returns whether only the XMP document has an orientation, by which PIL swaps the sides on loading."""
    xmp = image.info.get("xmp")
    return _ORIENTATION not in getattr(image, "tag_v2", ()) and isinstance(xmp, bytes) and xmp_orientation(xmp) >= 5


FORMAT = ImageFormat(
    "tiff",
    pil_names=("TIFF",),
    suffixes=("tif", "tiff"),
    signature=rb"II\*\0|MM\0\*",
    read_header=read_tiff,
    reads_orientation=True,  # PIL rotates the image
    swaps_sides=_turns_by_xmp,
    max_pixels_per_byte={
        "raw": 8,
        "packbits": 8 * 64,
        "tiff_lzw": 8 * _MOST_BYTES_PER_BYTE,
        "tiff_adobe_deflate": 8 * 1033,
        "tiff_deflate": 8 * 1033,
        "jpeg": 2048,
    },
    gpu_codec=True,
)
