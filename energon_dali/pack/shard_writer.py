"""Writes a tar whose bytes follow from its content alone."""

from __future__ import annotations

import tarfile
from typing import BinaryIO

from energon_dali.shards.index.tar_scan import OCTAL_SIZE_LIMIT, TAR_BLOCK_BYTES

_ZEROS = bytes(TAR_BLOCK_BYTES)
_MODE = 0o644


class ShardWriter:
    """Writes members one after the other; time, owner and mode are the same for all.

    Args:
        file: Where to write.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.written_bytes = 0

    def add(self, name: str, content: bytes) -> None:
        """Writes a member.

        Args:
            name: Its name, KEY.PART.
            content: Its content.

        Raises:
            OSError: The file cannot be written.
        """
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = _MODE
        # The same bytes where both formats can hold the name and the size, in less time.
        is_plain = name.isascii() and len(name) <= tarfile.LENGTH_NAME and member.size < OCTAL_SIZE_LIMIT
        form = tarfile.USTAR_FORMAT if is_plain else tarfile.PAX_FORMAT
        header = member.tobuf(form, "utf-8", "surrogateescape")  # type: ignore[arg-type]  # typeshed wants a literal
        padding = _ZEROS[: -len(content) % TAR_BLOCK_BYTES]
        self._file.write(header)
        self._file.write(content)
        self._file.write(padding)
        self.written_bytes += len(header) + len(content) + len(padding)

    def finish(self) -> None:
        """Writes the end of the tar.

        Raises:
            OSError: The file cannot be written.
        """
        self._file.write(2 * _ZEROS)
        self.written_bytes += 2 * len(_ZEROS)
