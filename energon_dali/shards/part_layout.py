"""Takes samples out of bytes that were read from a shard, and makes sure that they are what the index says."""

from __future__ import annotations

from collections.abc import Callable

from energon_dali.errors import ShardError
from energon_dali.shards.index.extents import BLOCK, ShardExtents
from energon_dali.shards.index.tar_scan import OCTAL_SIZE_LIMIT, check_header, header_name

GAP_BYTES = 16 << 10
"""Unwanted bytes between wanted parts up to which one request is cheaper than two, on a local disk."""

VIEW_BYTES = 4096
"""Parts from this size on are views of what was read, not copies."""

Piece = tuple[int, int, int, int]
"""(first part, part behind the last one, offset of the first header, size in bytes): parts of one request."""


class PartLayout:
    """The wanted parts of the samples of one shard, and where they lie.

    Args:
        shard: Name of the shard.
        extents: Its extents.
        part_filter: Says which parts are wanted, by name; None takes all.
        gap_bytes: Unwanted bytes up to which parts are read in one request.

    Raises:
        RuntimeError: The filter raised StopIteration; any other exception of it is raised as it is.
    """

    __slots__ = ("_all", "_gap", "extents", "names", "shard", "wanted")

    def __init__(
        self, shard: str, extents: ShardExtents, part_filter: Callable[[str], bool] | None, gap_bytes: int = GAP_BYTES
    ) -> None:
        self.shard = shard
        self.extents = extents
        self.names = extents.part_names
        try:
            self.wanted = [part_filter is None or bool(part_filter(name)) for name in extents.part_names]
        except StopIteration as end:  # as it is, it would end the epoch in silence
            raise RuntimeError(f"part_filter raised StopIteration for a part of {shard}.") from end
        self._all = all(self.wanted)
        self._gap = gap_bytes

    def pieces(self, sample: int) -> list[Piece]:
        """Returns what has to be read for a sample; each piece begins with the header of its first part."""
        extents = self.extents
        first, behind = extents.first_part[sample], extents.first_part[sample + 1]
        block, size = extents.part_block, extents.part_size
        if self._all and first < behind:
            start = block[first] * BLOCK - BLOCK
            end = block[behind - 1] * BLOCK + size[behind - 1]
            # Without gaps, what lies between is headers and padding; anything more is members that are no parts.
            if behind - first == 1 or end - start < 1 << 20:
                return [(first, behind, start, end - start)]
        pieces: list[Piece] = []
        wanted, name = self.wanted, extents.part_name
        begin = start = end = last = -1
        for part in range(first, behind):
            if not wanted[name[part]]:
                continue
            content = block[part] * BLOCK
            if begin >= 0 and content - BLOCK - end > self._gap:
                pieces.append((begin, last, start, end - start))
                begin = -1
            if begin < 0:
                begin, start = part, content - BLOCK
            end, last = content + size[part], part + 1
        if begin >= 0:
            pieces.append((begin, last, start, end - start))
        return pieces

    def take(self, key: str, piece: Piece, data: bytes, base: int, parts: dict[str, bytes | memoryview]) -> None:
        """Adds the parts of a piece to `parts`, after checking that the header before each is that part's.

        Args:
            key: Key of the sample.
            piece: What was read.
            data: Bytes that hold it.
            base: Offset of `data` in the shard.
            parts: Takes the contents.

        Raises:
            ShardError: The shard is not what the index describes.
        """
        extents = self.extents
        names, wanted, numbers = self.names, self.wanted, extents.part_name
        block, sizes = extents.part_block, extents.part_size
        for part in range(piece[0], piece[1]):
            number = numbers[part]
            if not wanted[number]:
                continue
            name, size = names[number], sizes[part]
            content = block[part] * BLOCK - base
            member = f"{key}.{name}".encode()
            header = content - BLOCK
            # The common header, as nearly every program writes it: a whole name, and the size as 11 octal digits.
            if not (
                len(member) < 100
                and data.startswith(member, header)
                and data[header + len(member) : header + len(member) + 1] == b"\0"
                and data[header + 124 : header + 135] == b"%011o" % size
            ):
                self._check_header(data[header:content], member, size, content + base)
            if content + size > len(data):
                raise self.changed(f"it ends before byte {content + base + size}")
            # A large part is a view of what was read: a copy of it would cost as much as reading it.
            parts[name] = (
                data[content : content + size] if size < VIEW_BYTES else memoryview(data)[content : content + size]
            )

    def _check_header(self, header: bytes, member: bytes, size: int, offset: int) -> None:
        check_member(self.shard, header, member, size, offset)

    def changed(self, what: str) -> ShardError:
        """Returns the error for a shard that is not what was indexed."""
        return changed_shard(self.shard, what)


def check_member(shard: str, header: bytes, member: bytes, size: int, offset: int) -> None:
    """Refuses a header that is not that of a member; names that do not fit a header are believed.

    Args:
        shard: Name of the shard.
        header: The block before the content.
        member: `KEY.PART` of the member.
        size: Size of its content in bytes.
        offset: Where its content begins in the shard.

    Raises:
        ShardError: The shard is not what was indexed.
    """
    if len(header) < BLOCK:
        raise changed_shard(shard, f"it ends before byte {offset}")
    try:
        found_size, kind = check_header(header, offset - BLOCK, offset + size, shard)
    except ShardError as error:
        raise changed_shard(shard, f"no header is at byte {offset - BLOCK}") from error
    name = header_name(header).encode("utf-8", "surrogateescape")
    # Long names, and names with other letters than ASCII, stand whole in an extended header before this one.
    fits = len(member) <= 100 and member.isascii()
    same_name = name == member if fits else len(member) > 100 or name == member or len(name) <= len(member)
    same_size = found_size == size or size >= OCTAL_SIZE_LIMIT
    if kind not in b"0\x007" or not same_name or not same_size:
        raise changed_shard(
            shard,
            f"at byte {offset} it has {name.decode('utf-8', 'replace')!r} of {found_size} bytes in place of "
            f"{member.decode('utf-8', 'replace')!r} of {size} bytes",
        )


def changed_shard(shard: str, what: str) -> ShardError:
    """Returns the error for a shard that is not what was indexed."""
    return ShardError(
        f"The shard {shard} changed since it was indexed: {what}. Run `energon-dali prepare` on its dataset.", shard
    )
