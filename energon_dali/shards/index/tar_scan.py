"""Scans the headers of a tar file (ustar, GNU long names, PAX), and groups its members into samples.

The formats are those of POSIX.1-2017 (pax, "ustar Interchange Format" and "pax Extended Header") and of the manual of
GNU tar ("Basic Tar Format"). The tests compare with the standard library's tarfile. That one is slower, and takes a
damaged header for the end of the archive, which loses samples silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from energon_dali.errors import ShardError

TAR_BLOCK_BYTES = 512
OCTAL_SIZE_LIMIT = 8 << 30
"""Sizes of at least this many bytes do not fit the octal digits of a header."""
ReadAt = Callable[[int, int], bytes]
"""Takes (offset, size) and returns that many bytes; fewer only at the end of the file."""

_ZEROS = bytes(TAR_BLOCK_BYTES)
_REGULAR = frozenset(b"0\x007")
_WITHOUT_CONTENT = frozenset(b"123456")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_SOLARIS, _PAX_GLOBAL, _SPARSE = b"LKxXgS"
_MAX_EXTENDED_BYTES = 1 << 20
_MAX_PADDING_BYTES = 1 << 20
_MAX_DECIMAL_DIGITS = 19
_META = re.compile(r"__[^/]*__(?:/|\Z)")


class TarMember(NamedTuple):
    """A regular file in a tar."""

    name: str
    """Path within the tar."""
    offset: int
    """Where its first header begins, extended headers included, in bytes."""
    content_offset: int
    """Where its content begins, in bytes."""
    size: int
    """Size of its content in bytes."""


class TarEnd(NamedTuple):
    """The end of the members."""

    offset: int
    """Where the next header would begin, in bytes: at the first tar block of zeros, or at the end of the file."""


class PartMember(NamedTuple):
    """A member of a tar that is a part of a sample."""

    key: str
    part: str
    new_sample: bool
    """Whether this is the first part of its sample."""
    member: TarMember


def scan_tar(read_at: ReadAt, size: int, shard: str) -> Iterator[TarMember | TarEnd]:
    """Yields the regular files of a tar in order, and then the end.

    Args:
        read_at: Reads the file.
        size: Size of the file in bytes.
        shard: Name of the shard, for messages.

    Raises:
        ShardError: The file is not a tar, is compressed, ends in the middle of a member, or has a damaged header.
    """
    offset = first = 0
    long_name: str | None = None
    long_size: int | None = None
    while True:
        header = read_at(offset, TAR_BLOCK_BYTES)
        if not header or header == _ZEROS:
            if offset != first:
                raise ShardError(f"{_at(shard, first)}: the file ends after an extended header. {_REMEDY}", shard)
            if not header and offset == 0:
                raise ShardError(f"{shard} is empty (0 bytes): it is not a tar file. {_REMEDY}", shard)
            _check_padding(read_at, offset, size, shard)
            yield TarEnd(offset)
            return
        member_size, kind = check_header(header, offset, size, shard)
        content = offset + TAR_BLOCK_BYTES
        if kind in _WITHOUT_CONTENT:
            offset = first = content
            long_name = long_size = None
            continue
        if kind not in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_SOLARIS, _PAX_GLOBAL) and long_size is not None:
            # The size may differ from the header's only if it does not fit there: readers compare the two.
            if member_size != long_size < OCTAL_SIZE_LIMIT:
                raise ShardError(
                    f"{_at(shard, offset)}: a member of {member_size} bytes by its header, and of {long_size} bytes by "
                    f"its extended header. {_REMEDY}",
                    shard,
                )
            member_size = long_size
        if content + member_size > size:
            raise ShardError(
                f"{_at(shard, offset)}: a member of {member_size} bytes does not fit into the file, which has {size} "
                f"bytes: it was cut off. {_REMEDY}",
                shard,
            )
        following = content + -(-member_size // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
        if kind in (_PAX, _PAX_SOLARIS, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
            if member_size > _MAX_EXTENDED_BYTES:
                raise ShardError(f"{_at(shard, offset)}: an extended header of {member_size} bytes. {_REMEDY}", shard)
            body = read_at(content, member_size)
            if kind in (_PAX, _PAX_SOLARIS, _PAX_GLOBAL):
                path, pax_size = parse_pax(body, shard, offset)
                if kind == _PAX_GLOBAL and (path is not None or pax_size is not None):
                    raise ShardError(
                        f"{_at(shard, offset)}: a global header gives one name or size to all members. {_REMEDY}", shard
                    )
                long_name, long_size = (path or long_name, long_size if pax_size is None else pax_size)
            elif kind == _LONG_NAME:
                long_name = _text(body)
            offset = following
            if kind == _PAX_GLOBAL:
                first = offset
            continue
        name = header_name(header) if long_name is None else long_name
        if kind == _SPARSE:
            raise ShardError(
                f"{_at(shard, offset)}: {name!r} is a sparse file, which is not supported. {_REMEDY}", shard
            )
        if kind in _REGULAR and not (kind == 0 and name.endswith("/")):
            yield TarMember(name, first, content, member_size)
        offset = first = following
        long_name = long_size = None


def _check_padding(read_at: ReadAt, offset: int, size: int, shard: str) -> None:
    """Checks what follows the end of the members, so that a shard with a hole is not taken for a shorter one.

    Raises:
        ShardError: It is not the padding that programs write.
    """
    remaining = size - offset
    if remaining > _MAX_PADDING_BYTES or read_at(offset, remaining).strip(b"\0"):
        raise ShardError(
            f"{_at(shard, offset)}: the tar ends here, but the file goes on for {remaining:,} bytes. They were never "
            f"written, or another tar was appended (`tar --concatenate` joins two). {_REMEDY}",
            shard,
        )


def check_header(header: bytes, offset: int, size: int, shard: str) -> tuple[int, int]:
    """Returns (size of the content in bytes, type flag) of a header.

    Raises:
        ShardError: The header is cut off or damaged; the message says so if the file is compressed.
    """
    if offset == 0 and header[:2] == b"\x1f\x8b":
        raise ShardError(
            f"{shard} is compressed with gzip. Samples are read at their position in the file, which a compressed tar "
            "does not allow. Unpack it to a .tar (gunzip); the media in it are compressed anyway. Then run "
            "`energon-dali prepare PATH`.",
            shard,
        )
    if len(header) < TAR_BLOCK_BYTES:
        raise ShardError(
            f"{_at(shard, offset)}: the file ends in the middle of a header, after {size} bytes. {_REMEDY}", shard
        )
    stored = _number(header[148:156])
    # The sum of all bytes, with 8 spaces in the checksum field.
    unsigned = 256 + sum(header[:148]) + sum(header[156:])
    if stored != unsigned and stored != _signed_sum(header):
        what = "is not a tar file" if offset == 0 else f"has a damaged header at byte {offset}"
        raise ShardError(f"{shard} {what}: the checksum is {stored}, and should be {unsigned}. {_REMEDY}", shard)
    content_size = _number(header[124:136])
    if content_size is None or content_size < 0:
        raise ShardError(f"{_at(shard, offset)}: the size {header[124:136]!r} is not a number. {_REMEDY}", shard)
    return content_size, header[156]


def header_name(header: bytes) -> str:
    """Returns the name in a header, with its prefix."""
    name = _text(header[:100])
    prefix = header[345:500]
    return f"{_text(prefix)}/{name}" if prefix[0] else name


def parse_pax(body: bytes, shard: str, offset: int) -> tuple[str | None, int | None]:
    """Returns (path, size in bytes) of a PAX header, None for what it does not contain.

    Raises:
        ShardError: The header is damaged, or describes a sparse file.
    """
    path: str | None = None
    size: int | None = None
    position = 0
    while position < len(body) and body[position] != 0:
        try:
            space = body.index(b" ", position)
            length = _decimal(body[position:space], "length")
            record = body[space + 1 : position + length]
            keyword, equals, value = record.partition(b"=")
            if not equals or record[-1:] != b"\n" or position + length > len(body):
                raise ValueError("not a record")
            if keyword == b"path":
                path = value[:-1].decode("utf-8", "surrogateescape").rstrip("/")
            elif keyword == b"size":
                size = _decimal(value[:-1], "size")
        except ValueError as error:
            raise ShardError(f"{_at(shard, offset)}: a damaged extended header ({error}). {_REMEDY}", shard) from error
        if keyword.startswith(b"GNU.sparse."):
            raise ShardError(f"{_at(shard, offset)}: a sparse file, which is not supported. {_REMEDY}", shard)
        position += length
    return path, size


_REMEDY = "Copy or write the shard again, then run `energon-dali prepare PATH`."


def _at(shard: str, offset: int) -> str:
    return f"{shard} at byte {offset}"


def _text(field: bytes) -> str:
    end = field.find(0)
    return (field if end < 0 else field[:end]).decode("utf-8", "surrogateescape")


def _decimal(digits: bytes, what: str) -> int:
    """Returns a number of a PAX record. Negative numbers are rejected: with a negative size the scan would never end.

    Raises:
        ValueError: It is not made of decimal digits only, or does not fit 64 bits.
    """
    if not digits.isdigit() or len(digits) > _MAX_DECIMAL_DIGITS:
        raise ValueError(f"the {what} {digits[:_MAX_DECIMAL_DIGITS]!r} is not a number of bytes")
    return int(digits)


def _number(field: bytes) -> int | None:
    """Returns a number field: octal digits, or base 256 if the first bit is set (GNU); None if it is neither."""
    if field[0] & 0x80:
        value = int.from_bytes(field[1:], "big")
        return value - (1 << (8 * (len(field) - 1))) if field[0] == 0xFF else value
    text = field.split(b"\0", 1)[0].strip()
    if not text:
        return 0
    try:
        return int(text, 8)
    except ValueError:
        return None


def _signed_sum(header: bytes) -> int:
    """Returns the checksum of signed bytes, as some old programs wrote it."""
    return 256 + sum(byte - 256 if byte > 127 else byte for byte in header[:148] + header[156:])


def split_member_name(name: str) -> tuple[str, str] | None:
    """Returns (sample key, part name) of a member, None if it does not belong to a sample.

    The key ends at the first dot of the file name: `a/b.detail.json` is part `detail.json` of sample `a/b`. Names that
    start with `__...__` are not data. A file name that begins with a dot belongs to a sample only in a folder without a
    dot in its name, as in webdataset: `a/.json` is part `json` of sample `a/`.
    """
    if _META.match(name):
        return None
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0:
        return None
    if dot == slash + 1 and (slash < 0 or "." in name[name.rfind("/", 0, slash) + 1 : slash]):
        return None
    return name[:dot], name[dot + 1 :]


def group_members(members: Iterable[TarMember | TarEnd]) -> Iterator[PartMember | TarEnd]:
    """Yields the members that are parts; consecutive parts with the same key make a sample."""
    last_key: str | None = None
    for member in members:
        if isinstance(member, TarEnd):
            yield member
            continue
        names = split_member_name(member.name)
        if names is None:
            continue
        key, part = names
        yield PartMember(key, part, key != last_key, member)
        last_key = key
